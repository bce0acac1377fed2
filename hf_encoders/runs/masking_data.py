"""What the masking of a run needs of its text: counts of tokens, similar words, units longer than words."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.report import token_counts
from hf_encoders.corpus.sentence_store import SentenceStore
from hf_encoders.corpus.similar_words import build_similar_words, describe_similar_words
from hf_encoders.objectives.masker import PREPARED_BY
from hf_encoders.corpus.similar_words import SIMILAR_WORDS_FILE, SimilarWords, join_similar_words
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.runs.recipe import Recipe


# A corpus of a run, and the folders that it is from; without folders, that of the documents' file.
Corpus = tuple[datasets.Dataset, Sequence[Path]]

UNSPACED_LANGUAGES = ("zh", "ja", "th", "lo", "km", "my")  # whose scripts `WordStarts` takes token by token


def needs_similar_words(recipe: Recipe) -> bool:
    """Whether words are replaced by similar ones."""
    return any(masking.similar_replace_probability for masking in recipe.maskings)


def needed_levels(recipe: Recipe) -> set[str]:
    """Units longer than words that are masked, `"phrase"` and `"entity"`."""
    used = {level for masking in recipe.maskings for level in masking.levels}
    return used & set(PREPARED_BY)


def check_text(recipe: Recipe) -> None:
    """Refuse text that is prepared by the run for a recipe that needs more than words.

    Raises:
        ValueError: naming the units, and the commands to prepare a corpus with them.
    """
    if levels := sorted(needed_levels(recipe)):
        tokenizer = f"hf-encoders tokenizer --family {recipe.family} --input TEXT --output TOKENIZER"
        options = " ".join(PREPARED_BY[level] for level in levels)
        corpus = f"hf-encoders corpus --input TEXT --tokenizer TOKENIZER --output CORPUS {options}"
        raise ValueError(
            f"--corpus is text, and {recipe.name} masks units of {' and '.join(levels)}, which text does not mark. "
            f"First make a tokenizer, `{tokenizer}`, and with it a corpus, `{corpus}` (for Chinese: --language zh "
            "--word-segmenter jieba, and --lexicon jieba). Then give both: --corpus CORPUS --tokenizer TOKENIZER."
        )


def warning_of_words(recipe: Recipe, language: str) -> str | None:
    """What to say of text of a language without spaces that the run prepares, where words are masked.

    >>> from hf_encoders.runs.recipe import load_recipe
    >>> warning_of_words(load_recipe("bert-base"), "zh"), warning_of_words(load_recipe("macbert-base"), "de")
    (None, None)
    """
    if language not in UNSPACED_LANGUAGES or all("word" not in masking.levels for masking in recipe.maskings):
        return None
    return (
        f"{recipe.name} masks words, and {language} is written without spaces, so that each token counts as a word: "
        "prepare a corpus with `hf-encoders corpus --word-segmenter jieba` (Chinese; in Python, with any "
        "word_segmenter), and give it as --corpus."
    )


def masking_options(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, corpora: Sequence[Corpus]) -> dict[str, Any]:
    """Options of a run's data collator that are about masking, with the data that they need.

    Args:
        recipe (`Recipe`): Its masking, and that of its phases. With a schedule of mask rates, evaluation is at the
            last one.
        tokenizer (`PreTrainedTokenizerBase`): Of the run.
        corpora (`Sequence[Corpus]`): The text to train on.

    Raises:
        ValueError: if a corpus has no table of similar words, or not the units that are masked.
    """
    options = dict(recipe.masking)
    if recipe.mask_rate is not None:
        options["mask_probability"] = recipe.mask_rate(1.0)
    if any(recipe.phase_masking):
        options["phase_masking"] = recipe.phase_masking
    for level in sorted(needed_levels(recipe)):
        for documents, _ in corpora:
            if not has_level(SentenceStore(documents), UnitStart[level.upper()]):
                raise ValueError(
                    f"masking: the corpus, or a part of it, has no units of level {level!r}, which {recipe.name} "
                    f"masks: prepare it with `hf-encoders corpus {PREPARED_BY[level]} ...`, or choose words."
                )
    if any(masking.frequency_power for masking in recipe.maskings):
        size = max(tokenizer.get_vocab().values()) + 1
        options["token_counts"] = sum(token_counts(documents, size) for documents, _ in corpora)
    if needs_similar_words(recipe):
        options["similar_words"] = similar_words_of(corpora, tokenizer)
    return options


def has_level(store: SentenceStore, level: UnitStart) -> bool:
    """Whether all of a corpus, perhaps joined from several, is divided into units of a level."""
    if store.word_starts is None or not len(store.word_starts):
        return False
    # A sentence begins with the bits of all levels that its corpus has.
    begins = store.sentence_offsets[:-1][store.sentence_lengths > 0]
    return bool((store.word_starts[begins] & level).all())


def masking_facts(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, corpora: Sequence[Corpus]) -> dict[str, Any]:
    """What identifies the data of a run's masking beside its corpus, for `run.json`."""
    if not needs_similar_words(recipe):
        return {}
    return {"similar words": similar_words_of(corpora, tokenizer).fingerprint}


def similar_words_of(corpora: Iterable[Corpus], tokenizer: PreTrainedTokenizerBase) -> SimilarWords:
    """The tables of similar words that lie beside corpora, as one; a word's similar ones are those of the first."""
    tables = [
        SimilarWords.load(folder, tokenizer)
        for documents, folders in corpora
        for folder in folders or _folders(documents)
    ]
    return join_similar_words(tables)


def make_similar_words(documents: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Learn similar words from a corpus that the run made, if its folder has none yet, and print how far they go."""
    if not (folder / SIMILAR_WORDS_FILE).is_file():
        table = build_similar_words(documents, tokenizer)
        path = table.save(folder)
        print(f"{path}: {describe_similar_words(table, documents, tokenizer)}", flush=True)


def _folders(documents: datasets.Dataset) -> list[Path]:
    """The folder of the file of a corpus on disk."""
    if not documents.cache_files:
        raise ValueError("documents: a corpus in memory has no table of similar words: open it with load_from_disk.")
    return sorted({Path(file["filename"]).parent for file in documents.cache_files})
