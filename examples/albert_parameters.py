# /// script
# dependencies = ["hf_encoders"]
# ///
"""What ALBERT saves: factorised embeddings and shared layers (Lan et al. 2019, tables 3 and 4), scaled down.

    python examples/albert_parameters.py --output_dir runs/albert_parameters
    python examples/albert_parameters.py --text_files corpus/*.txt --take_every 16 --output_dir runs/albert_parameters

Compares embedding sizes E with and without shared layers, and what layers share: nothing, attention, feed-forward, or
everything; trained on MLM and sentence order (SOP). docs/measurements.md has the results of the second command and its
time on one core.
"""

import time
from dataclasses import dataclass, field
from itertools import chain, product
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    PreTrainingTrainer,
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
    vocab_size: int = field(default=6000, metadata={"help": "maximum size of the vocabulary"})
    num_hidden_layers: int = field(default=4, metadata={"help": "number of layers"})
    embedding_sizes: list[int] = field(
        default_factory=lambda: [16, 64, 128], metadata={"help": "embedding sizes; the second one is used for table 4"}
    )
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})
    seeds: int = field(default=1, metadata={"help": "runs per variant, each with its own seed"})


def main() -> None:
    """Pre-train each variant and compare."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(learning_rate=2e-3, warmup_steps=100, adam_beta2=0.98, max_steps=300, weight_decay=0.01)
    parser.set_defaults(per_device_train_batch_size=16, per_device_eval_batch_size=128, eval_strategy="steps")
    parser.set_defaults(save_strategy="no", report_to="none", optim="adamw_torch_fused", disable_tqdm=True)
    arguments, training = parser.parse_args_into_dataclasses()
    training.eval_steps = max(1, training.max_steps // 5)

    # 1. Data: documents of sentences.
    if arguments.text_files:
        texts = list(read_documents(arguments.text_files, sentence_splitter=lambda line: [line]))
    else:
        texts = [[text] for text in topics.values()]
    documents = [[*chain.from_iterable(map(split_sentences, text))] for text in texts[:: arguments.take_every]]

    # 2. Tokenizer: Unigram, as ALBERT's; a share of the documents is held out.
    length = arguments.max_length
    tokenizer = train_tokenizer(chain(*documents), HfeAlbertConfig, arguments.vocab_size, length)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=0)
    eval_set = DocumentChunks(held_out, length, redraw=False)
    eval_set = Subset(eval_set, np.linspace(0, len(eval_set) - 1, min(len(eval_set), 600)).astype(int).tolist())

    # 3. Models: small; narrow ones need a larger initializer_range than the papers' wide ones.
    layers, sizes = arguments.num_hidden_layers, arguments.embedding_sizes
    sharing = {
        "all": {"num_hidden_groups": 1},
        "attention": {"num_hidden_groups": layers, "shared_between_groups": "attention"},
        "feed-forward": {"num_hidden_groups": layers, "shared_between_groups": "feed_forward"},
        "nothing": {"num_hidden_groups": layers},
    }
    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 512,
        "initializer_range": 0.05,
        "position_embedding_type": "relative_key",  # shortens the plateau at the unigram cross-entropy
        **tokenizer_fields(HfeAlbertConfig, tokenizer, length),
    }
    variants = [
        (size, shared) for size in sizes for shared in sharing if size == sizes[1] or shared in ("all", "nothing")
    ]
    metrics, curves = {}, {}
    for (size, shared), seed in product(variants, range(arguments.seeds)):
        # 4. Examples and collator.
        train_set = DocumentChunks(corpus, length, seed=seed + 1)
        collator = DataCollatorForSentenceOrderPrediction(tokenizer, length)

        # 5. Train, and evaluate on held-out text.
        set_seed(seed)
        started = time.process_time()
        model = HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=size, **sharing[shared], **fields))
        trainer = PreTrainingTrainer(model, training, collator, train_set, eval_set, processing_class=tokenizer)
        trainer.train()
        results = trainer.evaluate()
        row = {
            "parameters": model.num_parameters(),
            "MLM loss, held-out": results["eval_mlm_loss"],
            "perplexity, held-out": results["eval_perplexity"],
            "SOP accuracy": results["eval_pair_accuracy"],
            "core minutes": (time.process_time() - started) / 60,
        }
        metrics.setdefault(f"E = {size}, shared: {shared}", []).append(row)
        if seed == 0:
            curves[f"E = {size}, shared: {shared}"] = logged_points(trainer.state.log_history, "eval_mlm_loss")

    # 6. Table and picture.
    labels = ("optimizer steps", "held-out MLM loss (nats per token)")
    print(write_comparison(training.output_dir, "ALBERT's embeddings and sharing", metrics, curves, *labels))


if __name__ == "__main__":
    main()
