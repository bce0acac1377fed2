# /// script
# dependencies = ["hf_encoders"]
# ///
"""Batch size at equal tokens, over learning rates (RoBERTa, Liu et al. 2019, table 3), scaled down.

    python examples/batch_size_at_equal_tokens.py --output_dir runs/batches
    python examples/batch_size_at_equal_tokens.py --text_files corpus/*.txt --take_every 16 --output_dir runs/batches

Every run sees the same number of examples, in fewer steps for larger batches; a tenth of the steps is warm-up.
docs/measurements.md has results and times on one core (9,600 examples: 8 minutes).
"""

import math
import time
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, product
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    PreTrainingTrainer,
    SentenceBlocks,
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
    vocab_size: int = field(default=6000, metadata={"help": "maximum size of the vocabulary"})
    batch_sizes: list[int] = field(default_factory=lambda: [4, 16, 64], metadata={"help": "examples per step"})
    learning_rates: list[float] = field(default_factory=lambda: [1e-3, 2e-3, 4e-3], metadata={"help": "peak values"})
    examples: int = field(default=3200, metadata={"help": "examples per run"})
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})
    seeds: int = field(default=1, metadata={"help": "runs per variant, each with its own seed"})


def main() -> None:
    """Pre-train with each batch size and learning rate and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(adam_beta2=0.98, weight_decay=0.01)
    parser.set_defaults(per_device_train_batch_size=16, per_device_eval_batch_size=128)
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()

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
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=0)
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
    for size, rate, seed in product(arguments.batch_sizes, arguments.learning_rates, range(arguments.seeds)):
        # 4. Settings, examples and collator.
        settings = copy(training)
        settings.per_device_train_batch_size, settings.learning_rate = size, rate
        settings.max_steps = math.ceil(arguments.examples / size)
        settings.warmup_steps = math.ceil(settings.max_steps / 10)
        train_set = SentenceBlocks(corpus, length, seed=seed + 1)
        collator = DataCollatorForMaskedLM(tokenizer)

        # 5. Train, and evaluate on held-out text.
        set_seed(seed)
        started = time.process_time()
        model = HfeBertForMaskedLM(config)
        trainer = PreTrainingTrainer(model, settings, collator, train_set, eval_set, processing_class=tokenizer)
        trainer.train()
        results = trainer.evaluate()
        row = {
            "steps": settings.max_steps,
            "MLM loss, held-out": results["eval_mlm_loss"],
            "perplexity, held-out": results["eval_perplexity"],
            "core minutes": (time.process_time() - started) / 60,
        }
        metrics.setdefault(f"{size} examples, {rate:g}", []).append(row)
        if seed == 0:
            curves.setdefault(f"{size} examples per step", []).append((rate, results["eval_mlm_loss"]))

    # 6. Table and picture.
    labels = ("peak learning rate", "held-out MLM loss (nats per token)")
    print(write_comparison(training.output_dir, "Batch size at equal tokens", metrics, curves, *labels, log_x=True))


if __name__ == "__main__":
    main()
