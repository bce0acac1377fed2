# /// script
# dependencies = ["hf_encoders"]
# ///
"""Distil a BERT: a student of some of its layers learns its scores, the masked tokens, its states (Sanh et al. 2019).

    python examples/distil_bert.py --output_dir runs/student --max_steps 300
    python examples/distil_bert.py --teacher google-bert/bert-base-uncased --layers 0 2 4 7 9 11 --max_length 128 \
        --text_files corpus/*.txt --output_dir runs/student --num_train_epochs 3

Without --teacher it first pre-trains one of four layers for as many steps, on its text; without --text_files, text is
the documentation inside Python. The first command takes a few minutes on two CPU cores. It ends with the
held-out losses of the student. `hf-encoders distil` does the same, planned, resumable and with a card.
"""

from dataclasses import dataclass, field
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
    student_from,
    tokenize_documents,
    train_tokenizer,
    with_teacher,
)
from hf_encoders.tokenizer_loading import load_tokenizer

from transformers import HfArgumentParser, PreTrainedModel, TrainingArguments, set_seed


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    teacher: str | None = field(default=None, metadata={"help": "folder or name of a BERT with its masked-LM head"})
    layers: list[int] = field(default_factory=lambda: [0, 3], metadata={"help": "the teacher's, of the student"})
    soft_targets: str = field(default="predicted", metadata={"help": "tokens to compare: predicted or all"})
    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    vocab_size: int = field(default=4000, metadata={"help": "maximum size of the vocabulary, without --teacher"})
    hidden_size: int = field(default=128, metadata={"help": "hidden size, a multiple of 64, without --teacher"})
    max_length: int = field(default=64, metadata={"help": "maximum length of an example in tokens"})


def main() -> None:
    """Make or load a teacher, distil, evaluate and save."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(
        learning_rate=1e-3,
        warmup_steps=50,
        per_device_train_batch_size=32,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        optim="adamw_torch_fused",
    )
    arguments, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    # 1. Text, with the teacher's tokenizer.
    documents = [split_sentences(text) for text in topics.values()]
    if arguments.text_files:
        documents = list(read_documents(arguments.text_files))
    if arguments.teacher is None:
        sentences = (sentence for document in documents for sentence in document)
        tokenizer = train_tokenizer(sentences, HfeBertConfig, arguments.vocab_size, arguments.max_length)
    else:
        tokenizer = load_tokenizer(arguments.teacher)
    corpus = tokenize_documents(documents, tokenizer, max_sentence_tokens=arguments.max_length)
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=training.seed)

    def train(model: PreTrainedModel) -> PreTrainingTrainer:
        trainer = PreTrainingTrainer(
            model=model,
            args=training,
            train_dataset=SentenceBlocks(corpus, arguments.max_length, seed=training.seed),
            eval_dataset=SentenceBlocks(held_out, arguments.max_length, seed=training.seed, redraw=False),
            data_collator=DataCollatorForMaskedLM(tokenizer, packed=True),
            processing_class=tokenizer,
        )
        trainer.train()
        return trainer

    # 2. Teacher: yours, or a small one that is pre-trained here.
    if arguments.teacher is None:
        sizes = {"hidden_size": arguments.hidden_size, "intermediate_size": 4 * arguments.hidden_size}
        heads = arguments.hidden_size // 64
        config = HfeBertConfig(vocab_size=len(tokenizer), **sizes, num_hidden_layers=4, num_attention_heads=heads)
        teacher = train(HfeBertForMaskedLM(config)).model
    else:
        teacher = HfeBertForMaskedLM.from_pretrained(arguments.teacher)

    # 3. Student: a DistilBERT of its layers, which learns three things from the same masked text.
    student = with_teacher(student_from(teacher, arguments.layers), teacher, soft_targets=arguments.soft_targets)
    trainer = train(student)
    share = student.num_parameters() / teacher.num_parameters()
    print(f"a student of {share:.0%} of its teacher's parameters: {trainer.evaluate()}")
    trainer.save_model()  # the student alone


if __name__ == "__main__":
    main()
