# /// script
# dependencies = ["hf_encoders[chinese]"]
# ///
"""Pre-train MacBERT: words replaced by similar ones + sentence-order prediction, on BERT (Cui et al. 2020).

    python examples/pretrain_macbert.py --output_dir runs/macbert --max_steps 300
    python examples/pretrain_macbert.py --text_files corpus/*.txt --output_dir runs/macbert --num_train_epochs 3

Without --text_files it trains on Chinese that it makes up, in which words of a kind stand for each other. The first
command takes about a minute on two CPU cores and ends with an eval_loss of about 0.7 nats (MLM + SOP).
Similar words are learned from the text itself, in any language; for Chinese (--language zh), jieba finds the words.
"""

from dataclasses import dataclass, field
from functools import partial

from hf_encoders import (
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    EpochCallback,
    HfeBertConfig,
    HfeBertForPreTraining,
    build_similar_words,
    jieba_segmenter,
    read_documents,
    split_sentences,
    split_train_validation,
    tokenize_documents,
    train_tokenizer,
)
from hf_encoders.objectives import presets

import numpy as np
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed


PEOPLE, PLACES = ("老师", "学生", "医生", "司机", "记者"), ("北京", "上海", "广州", "成都", "武汉")
TIMES, THINGS = ("昨天", "今天", "早上", "晚上", "周末"), ("苹果", "香蕉", "面包", "牛奶", "鸡蛋")
TELL = (
    "{person}{time}去了{place}。",
    "{person}在{place}买了{thing}。",
    "{person}喜欢{thing}。",
    "{person}从{place}回来了。",
)


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    text_files: list[str] = field(default_factory=list, metadata={"help": "text; blank lines separate documents"})
    vocab_size: int = field(default=4000, metadata={"help": "maximum size of the vocabulary"})
    max_length: int = field(default=128, metadata={"help": "maximum length of an example in tokens"})
    hidden_size: int = field(default=128, metadata={"help": "hidden size, a multiple of 64"})
    num_hidden_layers: int = field(default=2, metadata={"help": "number of layers"})
    language: str = field(default="zh", metadata={"help": "language of the text, for sentences and words"})


def make_documents(number: int = 2000) -> list[list[str]]:
    """Stories of four sentences about one person and place each."""
    draw = np.random.default_rng(0).choice
    kinds = {"person": PEOPLE, "place": PLACES, "time": TIMES, "thing": THINGS}
    words = [{kind: draw(of_kind) for kind, of_kind in kinds.items()} for _ in range(number)]
    return [[sentence.format(**chosen) for sentence in TELL] for chosen in words]


def main() -> None:
    """Pre-train, evaluate and save."""
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

    # 1. Data: documents, each a list of sentences; tokens are characters, and jieba says which are a word.
    splitter = partial(split_sentences, language=arguments.language)
    documents = make_documents()
    if arguments.text_files:
        documents = list(read_documents(arguments.text_files, sentence_splitter=splitter))
    sentences = (sentence for document in documents for sentence in document)
    tokenizer = train_tokenizer(sentences, HfeBertConfig, arguments.vocab_size, arguments.max_length)
    segmenter = jieba_segmenter() if arguments.language == "zh" else None
    corpus = tokenize_documents(
        documents, tokenizer, max_sentence_tokens=arguments.max_length, word_segmenter=segmenter
    )
    corpus, held_out = split_train_validation(corpus, validation_share=0.1, seed=training.seed)

    # 2. Similar words: neighbours in the text, of the same number of tokens.
    similar_words = build_similar_words(corpus, tokenizer)
    print(similar_words)

    # 3. Collator: words become similar ones, never [MASK], and half of the pairs are swapped. BERT's pair head takes
    # the label: 0 in order, 1 swapped.
    collator = DataCollatorForSentenceOrderPrediction(
        tokenizer,
        arguments.max_length,
        label_name="next_sentence_label",
        similar_words=similar_words,
        **presets.MACBERT_MASKING,
    )

    # 4. Model: BERT, small and randomly initialised.
    config = HfeBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.hidden_size // 64,
        intermediate_size=4 * arguments.hidden_size,
        pad_token_id=tokenizer.pad_token_id,
    )

    # 5. Train; save weights, configuration, code and tokenizer.
    trainer = Trainer(
        model=HfeBertForPreTraining(config),
        args=training,
        train_dataset=DocumentChunks(corpus, arguments.max_length, seed=training.seed),
        eval_dataset=DocumentChunks(held_out, arguments.max_length, seed=training.seed, redraw=False),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[EpochCallback()],  # sets the epoch of the dataset, also after a restart
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
