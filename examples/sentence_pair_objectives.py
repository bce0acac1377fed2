# /// script
# dependencies = ["hf_encoders"]
# ///
"""What NSP and SOP, next-sentence and sentence-order prediction, teach (ALBERT, Lan et al. 2019, section 4.6).

    python examples/sentence_pair_objectives.py --output_dir runs/pairs
    python examples/sentence_pair_objectives.py --text_files corpus/*.txt --output_dir runs/pairs

New pair heads on frozen [CLS] vectors show what pre-training left there. NSP / SOP accuracy of the second command on
textbooks (2.7 M words, standard error 0.7): untrained 49.9 / 50.8 %, MLM only 61.9 / 55.3, with NSP 71.4 / 55.2, with
SOP 60.4 / 60.2. As in the paper, NSP does not teach order; that SOP teaches NSP does not appear in so short a run.
docs/measurements.md has tables, pictures, times and a second seed.
"""

import time
from dataclasses import dataclass, field
from itertools import chain

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeBertConfig,
    HfeBertForPreTraining,
    PreTrainingTrainer,
    SentenceBlocks,
    logged_points,
    read_documents,
    split_sentences,
    split_train_validation,
    tokenize_documents,
    train_tokenizer,
    write_comparison,
)
from hf_encoders.corpus.python_docs import read_python_documents

import torch
from datasets import Dataset
from torch import nn
from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "UTF-8 text, one paragraph per line"})
    vocab_size: int = field(default=6000, metadata={"help": "maximum size of the vocabulary"})
    max_length: int = field(default=96, metadata={"help": "maximum length of a pair in tokens"})


def probe(model: HfeBertForPreTraining, collator: DataCollatorForMaskedLM, *sets: DocumentChunks) -> float:
    """Train a new pooler and classifier on the frozen [CLS] of the first set; its accuracy on the second set."""
    pairs = []
    for chunks in sets:
        vectors, labels = [], []
        for batch in torch.utils.data.DataLoader(chunks, batch_size=128, collate_fn=collator):
            batch = {name: values.to(model.device) for name, values in batch.items() if name != "labels"}
            labels.append(batch.pop(collator.label_name))
            vectors.append(model.bert(**batch).last_hidden_state[:, 0])
        has_label = torch.cat(labels) >= 0  # single-sentence paragraphs have no pair label
        pairs.append((torch.cat(vectors)[has_label], torch.cat(labels)[has_label]))
    (vectors, labels), (eval_vectors, eval_labels), width = *pairs, model.config.hidden_size
    head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)).to(vectors.device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01)
    for rows in (rows for _ in range(20) for rows in torch.randperm(len(labels)).split(256)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(vectors[rows]), labels[rows]).backward()
        optimizer.step()
    return (head(eval_vectors).argmax(dim=-1) == eval_labels).double().mean().item()


def main() -> None:
    """Pre-train and probe."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=1.5e-3, warmup_steps=200, adam_beta2=0.98, max_steps=3600, logging_steps=200)
    parser.set_defaults(per_device_train_batch_size=32, per_device_eval_batch_size=128, disable_tqdm=True)
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused")
    arguments, training = parser.parse_args_into_dataclasses()
    length, seed = arguments.max_length, training.seed

    # 1. Data, tokenizer. A document is a paragraph: in long texts, so small a model learns no order.
    if arguments.text_files:
        lines = read_documents(arguments.text_files, sentence_splitter=lambda line: [line])
        texts = [[split_sentences(line) for line in text] for text in lines]
    else:
        texts = [module.passages for module in read_python_documents(split_sentences, max_characters=1_200_000)]
    parts = split_train_validation(Dataset.from_dict({"text": texts}), validation_share=0.1, seed=seed)
    parts = [[paragraph for text in part["text"] for paragraph in text if paragraph] for part in parts]
    tokenizer = train_tokenizer(chain.from_iterable(parts[0]), HfeBertConfig, arguments.vocab_size, length)
    corpus, held_out = (tokenize_documents(part, tokenizer, max_sentence_tokens=length) for part in parts)
    train_set = DocumentChunks(corpus, length, seed=seed)
    probe_set = DocumentChunks(corpus, length, seed=seed + 1, redraw=False)
    probe_set = torch.utils.data.Subset(probe_set, range(0, len(probe_set), max(1, len(probe_set) // 20_000)))
    eval_set = DocumentChunks(held_out, length, seed=seed, redraw=False)
    blocks = SentenceBlocks(held_out, length, seed=seed, redraw=False)

    # 2. Collators: one name for both pair labels, so that only labels and second segments differ.
    nsp = DataCollatorForNextSentencePrediction(tokenizer, length)
    sop = DataCollatorForSentenceOrderPrediction(tokenizer, length, label_name=nsp.label_name)
    mlm = {"mlm": lambda rows: {name: x for name, x in sop(rows).items() if name != nsp.label_name}}

    # 3. Models with the same initial weights. Relative positions shorten the plateau at the unigram cross-entropy.
    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": length}
    config = HfeBertConfig(**size, **dropout, **ids, position_embedding_type="relative_key", initializer_range=0.05)
    metrics, curves = {}, {}
    for objective, collator in {"untrained": sop, **mlm, "nsp": nsp, "sop": sop}.items():
        started = time.perf_counter()
        set_seed(seed)
        model = HfeBertForPreTraining(config)
        trainer = PreTrainingTrainer(model, training, collator, train_set, processing_class=tokenizer)
        if objective != "untrained":
            trainer.train()
        row = {"minutes": (time.perf_counter() - started) / 60}

        # 4. Held-out metrics: MLM on running text; pairs, with the model's own head and with a new one.
        trainer.data_collator = DataCollatorForMaskedLM(tokenizer)
        row |= {name[5:]: value for name, value in trainer.evaluate(blocks).items() if name.startswith("eval_mlm")}
        model.eval().requires_grad_(False)
        for task, task_collator in {"nsp": nsp, "sop": sop}.items():
            trainer.data_collator = task_collator
            row[f"{task}_own_head"] = trainer.evaluate(eval_set)["eval_pair_accuracy"]
            row[f"{task}_probe"] = probe(model, task_collator, probe_set, eval_set)
        metrics[objective] = [row]
        if points := logged_points(trainer.state.log_history, "pair_accuracy"):
            curves[objective] = points

    # 5. Table and picture.
    labels = ("optimizer steps", "pair accuracy in training, own task")
    print(write_comparison(training.output_dir, "Sentence-pair objectives", metrics, curves, *labels))


if __name__ == "__main__":
    main()
