# /// script
# dependencies = ["hf_encoders"]
# ///
"""Pre-train ELECTRA: a generator fills masks, a discriminator tells its tokens from the original ones (Clark 2020).

    python examples/pretrain_electra.py --output_dir runs/electra --max_steps 300
    python examples/pretrain_electra.py --text_files corpus/*.txt --output_dir runs/electra --num_train_epochs 3

Without --text_files it trains on the documentation inside Python (`help()` topics), so it runs anywhere, offline.
The folder holds the discriminator, which is fine-tuned, and the generator in the folder `generator`.
"""

from dataclasses import dataclass, field
from functools import partial
from pydoc_data.topics import topics

from hf_encoders import (
    HfeElectraConfig,
    PreTrainingTrainer,
    SentenceBlocks,
    read_documents,
    split_sentences,
    split_train_validation,
    tokenize_documents,
    train_tokenizer,
)
from hf_encoders.objectives.rtd import DataCollatorForReplacedTokenDetection, ReplacedTokenDetectionModel

from transformers import HfArgumentParser, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    vocab_size: int = field(default=4000, metadata={"help": "maximum size of the vocabulary"})
    max_length: int = field(default=128, metadata={"help": "maximum length of an example in tokens"})
    hidden_size: int = field(default=128, metadata={"help": "hidden size, a multiple of 64"})
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

    # 2. Tokenizer: WordPiece, as BERT's.
    sentences = (sentence for document in documents for sentence in document)
    tokenizer = train_tokenizer(sentences, HfeElectraConfig, arguments.vocab_size, arguments.max_length)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=arguments.max_length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=training.seed)

    # 3. Models: small, randomly initialised; the generator is half as wide.
    config = HfeElectraConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.hidden_size // 64,
        intermediate_size=4 * arguments.hidden_size,
        max_position_embeddings=HfeElectraConfig.position_rows(arguments.max_length, tokenizer.pad_token_id),
        pad_token_id=tokenizer.pad_token_id,
        generator_size=0.5,
    )
    model = ReplacedTokenDetectionModel(config)

    # 4. Examples and collator: blocks of whole sentences, with new masks every epoch.
    train_set = SentenceBlocks(corpus, arguments.max_length, seed=training.seed)
    eval_set = SentenceBlocks(held_out, arguments.max_length, seed=training.seed, redraw=False)
    collator = DataCollatorForReplacedTokenDetection(tokenizer)

    # 5. Train; each of the two losses is divided by its own tokens of the whole batch.
    trainer = PreTrainingTrainer(
        model=model,
        args=training,
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=collator,
        processing_class=tokenizer,
    )
    trainer.train()
    print(trainer.evaluate())

    # 6. Save both models with configuration, code and tokenizer; push with --push_to_hub True.
    trainer.save_model()
    if training.push_to_hub:
        trainer.push_to_hub()


if __name__ == "__main__":
    main()
