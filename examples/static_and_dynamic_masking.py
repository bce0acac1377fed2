# /// script
# dependencies = ["hf_encoders"]
# ///
"""Static and dynamic masking (RoBERTa, Liu et al. 2019, section 4.1 and table 1), scaled down.

    python examples/static_and_dynamic_masking.py --output_dir runs/masking
    python examples/static_and_dynamic_masking.py --text_files corpus/*.txt --take_every 400 --output_dir runs/masking

The same text is masked once for all epochs, ten times in turn (BERT's data), or again in every epoch. A difference
requires masks that are seen many times, so use a short text. docs/measurements.md has the results of the second
command.
"""

import time
from dataclasses import dataclass, field
from itertools import chain, product
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
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
from hf_encoders.runs.recipe import tokenizer_fields

import numpy as np
from torch.utils.data import Subset
from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    take_every: int = field(default=1, metadata={"help": "use every N-th document"})
    vocab_size: int = field(default=4000, metadata={"help": "maximum size of the vocabulary"})
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})
    seeds: int = field(default=1, metadata={"help": "runs per variant, each with its own seed"})


# Arguments of the dataset: how often masks are sampled.
VARIANTS = {
    "static, one draw": {"redraw": False},
    "static, 10 draws": {"dupe_factor": 10},
    "dynamic": {},
}


def main() -> None:
    """Pre-train with each kind of masking and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=2e-3, warmup_steps=100, adam_beta2=0.98, max_steps=600, weight_decay=0.01)
    parser.set_defaults(
        per_device_train_batch_size=16, per_device_eval_batch_size=128, logging_steps=100, eval_strategy="steps"
    )
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()
    training.eval_steps = max(1, training.max_steps // 5)

    # 1. Data: documents of sentences.
    if arguments.text_files:
        texts = list(read_documents(arguments.text_files, sentence_splitter=lambda line: [line]))
    else:
        texts = [[text] for text in topics.values()]
    documents = [[*chain.from_iterable(map(split_sentences, text))] for text in texts[:: arguments.take_every]]

    # 2. Tokenizer: WordPiece, as BERT's; a share of the documents is held out.
    length = arguments.max_length
    tokenizer = train_tokenizer(chain(*documents), HfeBertConfig, arguments.vocab_size, length)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.5, seed=0)
    eval_set = SentenceBlocks(held_out, length, redraw=False)
    eval_set = Subset(eval_set, np.linspace(0, len(eval_set) - 1, min(len(eval_set), 500)).astype(int).tolist())

    # 3. Model: small; a narrow model needs a larger initializer_range than the papers' wide ones.
    config = HfeBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        position_embedding_type="relative_key",  # shortens the plateau at the unigram cross-entropy
        **tokenizer_fields(HfeBertConfig, tokenizer, length),
    )
    metrics, curves = {}, {}
    for variant, seed in product(VARIANTS, range(arguments.seeds)):
        # 4. Examples and collator.
        train_set = SentenceBlocks(corpus, length, seed=seed + 1, **VARIANTS[variant])
        collator = DataCollatorForMaskedLM(tokenizer)

        # 5. Train, and evaluate on held-out text.
        set_seed(seed)
        started = time.process_time()
        model = HfeBertForMaskedLM(config)
        trainer = PreTrainingTrainer(model, training, collator, train_set, eval_set, processing_class=tokenizer)
        trainer.train()
        results = trainer.evaluate()
        row = {
            "epochs": trainer.state.epoch,
            "MLM loss in training, last": logged_points(trainer.state.log_history, "mlm_loss")[-1][1],
            "MLM loss, held-out": results["eval_mlm_loss"],
            "perplexity, held-out": results["eval_perplexity"],
            "core minutes": (time.process_time() - started) / 60,
        }
        metrics.setdefault(variant, []).append(row)
        if seed == 0:
            curves[variant] = logged_points(trainer.state.log_history, "eval_mlm_loss")

    # 6. Table and picture.
    labels = ("optimizer steps", "held-out MLM loss (nats per token)")
    print(write_comparison(training.output_dir, "Static and dynamic masking", metrics, curves, *labels))


if __name__ == "__main__":
    main()
