# /// script
# dependencies = ["hf_encoders"]
# ///
"""Vocabulary size: parameters, and loss per byte, scaled down.

    python examples/vocabulary_size.py --output_dir runs/vocabularies
    python examples/vocabulary_size.py --text_files corpus/*.txt --take_every 16 --output_dir runs/vocabularies

Losses per token are not comparable between tokenizers: a larger vocabulary makes fewer, longer tokens. Nats per byte
are: the pseudo-log-likelihood of held-out sentences (each word predicted from the others, its tokens one after the
other; Kauf and Ivanova 2023) divided by their bytes. Byte-level BPE has no unknown token. All runs have the same steps
and tokens per step. docs/measurements.md has the results of the second command and its time on one core.
"""

import time
from dataclasses import dataclass, field
from itertools import chain, product
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    PreTrainingTrainer,
    SentenceBlocks,
    read_documents,
    split_sentences,
    split_train_validation,
    token_log_probabilities,
    tokenize_documents,
    train_tokenizer,
    write_comparison,
)
from hf_encoders.runs.recipe import tokenizer_fields

import numpy as np
from datasets import Dataset
from torch.utils.data import Subset
from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    take_every: int = field(default=1, metadata={"help": "use every N-th document"})
    vocab_sizes: list[int] = field(default_factory=lambda: [500, 2000, 8000], metadata={"help": "sizes to compare"})
    eval_sentences: int = field(default=200, metadata={"help": "number of held-out sentences to score"})
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})
    seeds: int = field(default=1, metadata={"help": "runs per variant, each with its own seed"})


def main() -> None:
    """Pre-train with each vocabulary and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=2e-3, warmup_steps=100, adam_beta2=0.98, max_steps=400, weight_decay=0.01)
    parser.set_defaults(per_device_train_batch_size=16, per_device_eval_batch_size=128)
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()

    # 1. Data: documents of sentences.
    if arguments.text_files:
        texts = list(read_documents(arguments.text_files, sentence_splitter=lambda line: [line]))
    else:
        texts = [[text] for text in topics.values()]
    documents = [
        {"text": [*chain.from_iterable(map(split_sentences, text))]} for text in texts[:: arguments.take_every]
    ]
    documents, held_out = split_train_validation(Dataset.from_list(documents), validation_share=0.1, seed=0)
    # At most as many bytes as an example has tokens, so that every sentence fits with every vocabulary.
    length = arguments.max_length
    sentences = [text for text in chain(*held_out["text"]) if length // 3 <= len(text.encode()) <= length - 2]
    sentences = sentences[:: max(1, len(sentences) // arguments.eval_sentences)]
    num_bytes = sum(len(text.encode()) for text in sentences)

    metrics, curves = {}, {"RoBERTa, 2 layers × 128": []}
    for vocab_size, seed in product(arguments.vocab_sizes, range(arguments.seeds)):
        # 2. Tokenizer: byte-level BPE, as RoBERTa's.
        tokenizer = train_tokenizer(chain(*documents["text"]), HfeRobertaConfig, vocab_size, length)
        corpus, blocks = (
            tokenize_documents(part["text"], tokenizer, max_sentence_tokens=length) for part in (documents, held_out)
        )
        blocks = SentenceBlocks(blocks, length, redraw=False)
        blocks = Subset(blocks, np.linspace(0, len(blocks) - 1, min(len(blocks), 500)).astype(int).tolist())

        # 3. Model: small; a narrow model needs a larger initializer_range than the papers' wide ones.
        size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = HfeRobertaConfig(
            vocab_size=len(tokenizer),
            **size,
            **dropout,
            initializer_range=0.05,
            position_embedding_type="relative_key",  # shortens the plateau at the unigram cross-entropy
            **tokenizer_fields(HfeRobertaConfig, tokenizer, length),
        )

        # 4. Examples and collator.
        train_set = SentenceBlocks(corpus, length, seed=seed + 1)
        collator = DataCollatorForMaskedLM(tokenizer)

        # 5. Train, and evaluate on held-out text.
        set_seed(seed)
        started = time.process_time()
        model = HfeRobertaForMaskedLM(config)
        trainer = PreTrainingTrainer(model, training, collator, train_set, blocks, processing_class=tokenizer)
        trainer.train()
        minutes = (time.process_time() - started) / 60
        scores = token_log_probabilities(model, tokenizer, sentences, mask_rest_of_word=True)
        row = {
            "parameters": model.num_parameters(),
            "in the embeddings": model.get_input_embeddings().weight.numel(),
            "bytes per token": num_bytes / sum(map(len, scores)),
            "MLM loss, nats per token": trainer.evaluate()["eval_mlm_loss"],
            "nats per byte": -sum(score.sum() for score in scores) / num_bytes,
            "core minutes": minutes,
        }
        metrics.setdefault(f"{vocab_size:,} entries", []).append(row)
        if seed == 0:
            curves["RoBERTa, 2 layers × 128"].append((len(tokenizer), row["nats per byte"]))

    # 6. Table and picture.
    labels = ("entries in the vocabulary", "held-out pseudo-log-likelihood (nats per byte)")
    print(write_comparison(training.output_dir, "Vocabulary size", metrics, curves, *labels, log_x=True))


if __name__ == "__main__":
    main()
