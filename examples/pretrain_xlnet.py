# /// script
# dependencies = ["hf_encoders"]
# ///
"""Pre-train XLNet: tokens are predicted one after the other in a random order (Yang et al. 2019).

    python examples/pretrain_xlnet.py --output_dir runs/xlnet --max_steps 300
    python examples/pretrain_xlnet.py --text_files corpus/*.txt --output_dir runs/xlnet --num_train_epochs 3

Without --text_files it trains on the documentation inside Python (`help()` topics), so it runs anywhere, offline.
"""

from dataclasses import dataclass, field
from functools import partial
from pydoc_data.topics import topics

from hf_encoders import (
    DataCollatorForPermutationLM,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    PreTrainingTrainer,
    ReusedChunks,
    read_documents,
    split_sentences,
    split_train_validation,
    tokenize_documents,
    train_tokenizer,
)

from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    vocab_size: int = field(default=4000, metadata={"help": "maximum size of the vocabulary"})
    max_length: int = field(default=128, metadata={"help": "maximum length of an example in tokens"})
    reuse: bool = field(default=True, metadata={"help": "the text before it is the first half of an example"})
    hidden_size: int = field(default=128, metadata={"help": "width, a multiple of 64"})
    num_hidden_layers: int = field(default=2, metadata={"help": "number of layers"})
    language: str = field(default="en", metadata={"help": "language of the text, for sentence splitting"})


def main() -> None:
    """Pre-train, evaluate and save."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(
        learning_rate=2e-3,
        warmup_steps=50,
        per_device_train_batch_size=32,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        optim="adamw_torch_fused",
    )
    arguments, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    # 1. Data: documents, each a list of sentences.
    splitter = partial(split_sentences, language=arguments.language)
    if arguments.text_files:
        documents = list(read_documents(arguments.text_files, sentence_splitter=splitter))
    else:
        documents = [splitter(text) for text in topics.values()]

    # 2. Tokenizer: Unigram, as XLNet's, with <sep> <cls> at the end.
    sentences = (sentence for document in documents for sentence in document)
    tokenizer = train_tokenizer(sentences, HfeXLNetConfig, arguments.vocab_size, arguments.max_length)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=arguments.max_length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=training.seed)

    # 3. Model: small, randomly initialised. Rows may be of any length: XLNet has distances, no table of positions.
    config = HfeXLNetConfig(
        vocab_size=len(tokenizer),
        d_model=arguments.hidden_size,
        n_layer=arguments.num_hidden_layers,
        n_head=arguments.hidden_size // 64,
        d_inner=4 * arguments.hidden_size,
        dropout=0.0,
        initializer_range=0.05,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = HfeXLNetLMHeadModel(config)

    # 4. Examples and collator: pairs of segments, with other targets and another order every epoch, without padding.
    options = {"reuse": arguments.reuse, "seed": training.seed}
    train_set = ReusedChunks(corpus, arguments.max_length, **options)
    eval_set = ReusedChunks(held_out, arguments.max_length, redraw=False, **options)
    collator = DataCollatorForPermutationLM(tokenizer, packed=True)

    # 5. Train, evaluate, save.
    trainer = PreTrainingTrainer(
        model=model,
        args=training,
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=collator,
        processing_class=tokenizer,
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    trainer.save_metrics("eval", metrics)
    print(f"predicted tokens {metrics['eval_plm_loss']:.3f} nats, accuracy {metrics['eval_plm_accuracy']:.1%}")


if __name__ == "__main__":
    main()
