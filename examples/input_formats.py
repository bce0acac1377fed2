# /// script
# dependencies = ["hf_encoders"]
# ///
"""The four input formats of RoBERTa (Liu et al. 2019, section 4.2 and table 2), scaled down.

    python examples/input_formats.py --output_dir runs/formats
    python examples/input_formats.py --text_files corpus/*.txt --take_every 16 --output_dir runs/formats

SEGMENT-PAIR and SENTENCE-PAIR with next-sentence prediction (NSP), FULL-SENTENCES and DOC-SENTENCES without. As in the
paper, a step has about as many tokens in each format. Every model is evaluated on the same held-out blocks, and on
held-out text in its own format. Results are in docs/measurements.md.
"""

import time
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
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
from hf_encoders.objectives.sentence_pairs import ChunkExample
from hf_encoders.runs.recipe import tokenizer_fields

import numpy as np
from torch.utils.data import Subset
from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    take_every: int = field(default=1, metadata={"help": "use every N-th document"})
    vocab_size: int = field(default=6000, metadata={"help": "maximum size of the vocabulary"})
    tokens_per_step: int = field(default=1024, metadata={"help": "tokens per optimizer step, special tokens included"})
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})
    seeds: int = field(default=1, metadata={"help": "runs per variant, each with its own seed"})


# Format -> dataset, whether it has NSP pairs, arguments of the dataset.
VARIANTS = {
    "SEGMENT-PAIR, NSP": (DocumentChunks, True, {}),
    "SENTENCE-PAIR, NSP": (DocumentChunks, True, {"segments": "sentences"}),
    "FULL-SENTENCES": (SentenceBlocks, False, {}),
    "DOC-SENTENCES": (SentenceBlocks, False, {"cross_documents": False}),
}


def main() -> None:
    """Pre-train on each format and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=2e-3, warmup_steps=100, adam_beta2=0.98, max_steps=500, weight_decay=0.01)
    parser.set_defaults(per_device_train_batch_size=1, per_device_eval_batch_size=128, eval_strategy="steps")
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()
    training.eval_steps = max(1, training.max_steps // 5)

    # 1. Data: documents of sentences.
    texts = [[text] for text in topics.values()]
    if arguments.text_files:
        texts = list(read_documents(arguments.text_files, sentence_splitter=lambda line: [line]))
    documents = [[*chain.from_iterable(map(split_sentences, text))] for text in texts[:: arguments.take_every]]

    # 2. Tokenizer: WordPiece, as BERT's; a share of the documents is held out.
    length = arguments.max_length
    tokenizer = train_tokenizer(chain(*documents), HfeBertConfig, arguments.vocab_size, length)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=0)
    eval_set = SentenceBlocks(held_out, length, redraw=False)
    eval_set = Subset(eval_set, np.linspace(0, len(eval_set) - 1, min(len(eval_set), 500)).astype(int).tolist())

    # 3. Model: small; a narrow model needs a larger initializer_range than the papers' wide ones.
    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    size |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05}
    size |= {"position_embedding_type": "relative_key"}  # shortens the plateau at the unigram cross-entropy
    size |= {"vocab_size": len(tokenizer), **tokenizer_fields(HfeBertConfig, tokenizer, length)}
    metrics, curves = {}, {}
    for variant, seed in product(VARIANTS, range(arguments.seeds)):
        # 4. Examples and collators: as many examples a step as have its tokens on average, packed.
        dataset, is_paired, options = VARIANTS[variant]
        mlm = DataCollatorForMaskedLM(tokenizer, packed=True)
        collator = DataCollatorForNextSentencePrediction(tokenizer, packed=True) if is_paired else mlm
        examples = dataset(corpus, length, seed=seed + 1, **options)
        examples.set_epoch(0)
        sample = collator(examples[np.linspace(0, len(examples) - 1, 200).astype(int)])
        number = max(1, round(arguments.tokens_per_step * 200 / sample["input_ids"].numel()))
        step = replace(training, per_device_train_batch_size=number)
        own = dataset(held_out, length, redraw=False, **options)
        own = Subset(own, np.linspace(0, len(own) - 1, min(len(own), 1000)).astype(int).tolist())

        # 5. Train, and evaluate on held-out text.
        set_seed(seed)
        started = time.process_time()
        trainer = PreTrainingTrainer(
            HfeBertForPreTraining(HfeBertConfig(**size)),
            step,
            lambda features, mlm=mlm, own=collator: (own if isinstance(features[0], ChunkExample) else mlm)(features),
            examples,
            {"blocks": eval_set, "own": own},
            processing_class=tokenizer,
        )
        trainer.train()
        results = trainer.evaluate()
        row = {
            "examples per step": step.per_device_train_batch_size,
            "MLM loss on blocks": results["eval_blocks_mlm_loss"],
            "MLM loss, own format": results["eval_own_mlm_loss"],
            "NSP accuracy": results.get("eval_own_pair_accuracy"),
            "core minutes": (time.process_time() - started) / 60,
        }
        metrics.setdefault(variant, []).append(row)
        if seed == 0:
            curves[variant] = logged_points(trainer.state.log_history, "eval_blocks_mlm_loss")

    # 6. Table and picture.
    label = "held-out MLM loss on blocks (nats per token)"
    print(write_comparison(training.output_dir, "Input formats", metrics, curves, "optimizer steps", label))


if __name__ == "__main__":
    main()
