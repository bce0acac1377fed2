# /// script
# dependencies = ["hf_encoders"]
# ///
"""Pre-train XLM on two languages: masked language modelling of each, and of translations (TLM; Lample, Conneau 2019).

    python examples/pretrain_multilingual.py --output_dir runs/two_languages
    python examples/pretrain_multilingual.py --pairs_file en-zh.tsv --languages en zh --output_dir runs/en_zh

Without --pairs_file it makes sentences of 32 English words and their Esperanto, so it runs anywhere, offline. It ends
with the loss on held-out sentences alone (1.6 nats) and beside their translation (0.2): words were drawn at random, so
what is masked is found there only. The first command takes about a minute on two CPU cores.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from hf_encoders import (
    DataCollatorForMaskedLM,
    EpochCallback,
    HfeXLMConfig,
    HfeXLMWithLMHeadModel,
    MixedExamples,
    ParallelPairs,
    SentenceBlocks,
    split_train_validation,
    tokenize_documents,
    train_tokenizer,
)

from datasets import Dataset
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed


NOUNS = {
    "dog": "hundo", "cat": "kato", "house": "domo", "river": "rivero", "teacher": "instruisto", "letter": "letero",
    "bird": "birdo", "tree": "arbo", "child": "infano", "friend": "amiko", "horse": "ĉevalo", "book": "libro",
}  # fmt: skip
ADJECTIVES = {
    "red": "ruĝa", "old": "maljuna", "small": "malgranda", "white": "blanka", "young": "juna", "good": "bona",
    "beautiful": "bela", "new": "nova", "black": "nigra", "strong": "forta", "quiet": "trankvila", "rich": "riĉa",
}  # fmt: skip
VERBS = {
    "sees": "vidas", "finds": "trovas", "loves": "amas", "hears": "aŭdas", "knows": "konas", "seeks": "serĉas",
    "draws": "desegnas", "follows": "sekvas",
}  # fmt: skip


@dataclass
class Arguments:
    """Options of this example, beside those of `TrainingArguments`."""

    pairs_file: Path | None = field(default=None, metadata={"help": "TSV: a sentence, its translation"})
    languages: list[str] = field(default_factory=lambda: ["en", "eo"], metadata={"help": "names of both"})
    vocab_size: int = field(default=500, metadata={"help": "size of the vocabulary of both languages"})
    max_length: int = field(default=32, metadata={"help": "maximum length of an example in tokens"})


def read_pairs(path: Path | None) -> list[list[str]]:
    """Sentences with their translations."""
    if path is not None:
        return [line.split("\t")[:2] for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line]
    draw, found = random.Random(0), []
    for _ in range(6000):
        words = [draw.choice(list(kind.items())) for kind in (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)]
        english, esperanto = zip(*words, strict=True)
        found.append(["the {} {} {} the {} {}".format(*english), "la {} {} {} la {}n {}n".format(*esperanto)])
    return found


def main() -> None:
    """Pre-train, and evaluate with and without the translation."""
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(
        learning_rate=5e-3, warmup_steps=50, per_device_train_batch_size=64, logging_steps=50, save_strategy="no",
        report_to="none", optim="adamw_torch_fused", max_steps=300,
    )  # fmt: skip
    arguments, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    # 1. Text: pairs, and each side as text of its language; one vocabulary for both.
    pairs = read_pairs(arguments.pairs_file)
    sentences = (side for pair in pairs for side in pair)
    tokenizer = train_tokenizer(sentences, HfeXLMConfig, arguments.vocab_size, arguments.max_length)
    documents, held_out = split_train_validation(tokenize_documents(pairs, tokenizer), 0.1, training.seed)

    def of_sides(pairs: Dataset, **options) -> dict[str, SentenceBlocks]:
        """Blocks of the text of each language."""
        texts = (pairs.map(lambda pair, i=i: {"input_ids": pair["input_ids"][i : i + 1]}) for i in (0, 1))
        blocks = (SentenceBlocks(text, arguments.max_length, **options) for text in texts)
        return dict(zip(arguments.languages, blocks, strict=True))

    # 2. Examples: blocks of each language, and pairs in which positions begin again at the translation.
    languages, length, fixed = arguments.languages, arguments.max_length, {"seed": training.seed, "redraw": False}
    pairs = ParallelPairs(documents, length, languages)
    train_set = MixedExamples({**of_sides(documents), "-".join(languages): pairs}, alpha=0.7, seed=training.seed)
    eval_sets = {
        "alone": MixedExamples(of_sides(held_out, cross_documents=False), **fixed),
        "translated": ParallelPairs(held_out, length, languages, **fixed),
    }
    lang2id = {name: number for number, name in enumerate(languages)}
    collator = DataCollatorForMaskedLM(tokenizer, first_position=0, lang2id=lang2id)

    # 3. Model: small, with language embeddings. XLM-R has none, and counts positions from pad_token_id + 1.
    config = HfeXLMConfig(
        vocab_size=len(tokenizer), emb_dim=64, n_layers=2, n_heads=4, dropout=0.0, attention_dropout=0.0, init_std=0.1,
        max_position_embeddings=length, n_langs=len(languages), lang2id=lang2id, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip

    # 4. Train, evaluate and save.
    trainer = Trainer(
        HfeXLMWithLMHeadModel(config), training, collator, train_set, eval_sets, tokenizer,
        callbacks=[EpochCallback()],  # sets the epoch of the dataset, also after a restart
    )  # fmt: skip
    trainer.train()
    metrics = trainer.evaluate()
    print({name: round(metrics[name], 3) for name in ("eval_alone_loss", "eval_translated_loss")})
    trainer.save_model()


if __name__ == "__main__":
    main()
