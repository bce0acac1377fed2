"""Documents of sentences to a tokenized corpus, in this process; and its division into training and validation.

A corpus is a `datasets.Dataset` with one row per document: `input_ids`, lists of sentences without special tokens.
Leaves out: filtering and shuffling, which `datasets` or a text-processing engine do before.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
from datasets.fingerprint import get_temporary_cache_files_directory
from datasets.utils import tqdm
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import write_corpus
from hf_encoders.corpus.randomness import example_keys
from hf_encoders.corpus.sentence_encoding import check_max_sentence_tokens, make_encoder, tokenized_blocks
from hf_encoders.corpus.units import Units


NO_TOKENS = (
    "documents holds no sentence that gives a token: check that the files hold text, and that the tokenizer does not "
    "remove it all."
)


def tokenize_documents(
    documents: Iterable[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_sentence_tokens: int | None = None,
    word_segmenter: Callable[[str], list[str]] | None = None,
    lexicon: Sequence[str] | None = None,
    cache_dir: str | Path | None = None,
) -> datasets.Dataset:
    """Tokenize documents of sentences into a corpus on disk, with memory for a few documents at a time.

    Sentences without a token and documents left without one are dropped. No special token is added, and the name of
    one in the text (a literal `[SEP]`) is tokenized as text; the tokenizer's truncation and padding do not apply.

    The file is named by a hash of its contents, so that it never mixes with another corpus in the same folder.

    Args:
        documents (`Iterable[list[str]]`): Sentences of one document each; read once.
        tokenizer (`PreTrainedTokenizerBase`): Any tokenizer; a fast one uses all cores.
        max_sentence_tokens (`int`, *optional*): Longer sentences are divided into parts of that many tokens and a
            shorter last one; a word may be divided. `None` divides none.
        word_segmenter (`Callable[[str], list[str]]`, *optional*): Takes a sentence and returns its words, which joined
            are the sentence up to white space, for masking whole words in text without spaces; `jieba.lcut` is one for
            Chinese.
        lexicon (`Sequence[str]`, *optional*): Names and terms, as in `prepare_corpus`.
        cache_dir (`str` or `Path`, *optional*): Folder for the corpus, about 4 bytes per token, twice that while it is
            written. `None` takes a temporary folder that is removed with the process (`save_to_disk` keeps a copy).

    Returns:
        `datasets.Dataset`: Memory mapped; `input_ids` of type `list<list<int32>>`, one row per document. With a
            segmenter or a lexicon also `word_starts` of type `list<list<uint8>>` and the same shape, bits of
            `UnitStart`: 1 where a token begins a word, 0 where it continues one; with a lexicon, 4 more where it
            begins an entity or a word outside of all, and 8 more for an entity.

    >>> tokenize_documents([["w5 w6", "w7 w8 w9"], ["w6"]], doctest_tokenizer(), max_sentence_tokens=2)["input_ids"][:]
    [[[5, 6], [7, 8], [9]], [[6]]]
    """
    check_max_sentence_tokens(max_sentence_tokens)
    units = Units(tokenizer, word_segmenter is not None, lexicon)
    directory = Path(cache_dir or get_temporary_cache_files_directory())
    progress = tqdm(documents, desc="Tokenizing", unit=" documents")
    blocks = tokenized_blocks(progress, make_encoder(tokenizer, word_segmenter, units.marker), max_sentence_tokens)
    first = next(blocks, None)
    if first is None:
        raise ValueError(NO_TOKENS)
    return write_corpus(chain([first], blocks), directory, has_word_starts=units.are_marked)


def split_train_validation(
    dataset: datasets.Dataset, validation_share: float, seed: int
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Divide a corpus at random into training and validation documents; both parts keep the order.

    `validation_share` is a share of the documents in (0, 1); both parts get at least one. The same seed, share and
    number of documents give the same rows.
    """
    if not 0 < validation_share < 1:
        raise ValueError(f"validation_share={validation_share} must lie between 0 and 1, for example 0.01.")
    if len(dataset) < 2:
        raise ValueError(
            f"dataset has {len(dataset)} document(s), and a split needs two: separate documents by blank lines in "
            "the text."
        )
    num_validation = min(max(round(len(dataset) * validation_share), 1), len(dataset) - 1)
    order = np.argsort(example_keys(seed, 0, np.arange(len(dataset))), kind="stable")
    validation, training = np.sort(order[:num_validation]), np.sort(order[num_validation:])
    return dataset.select(training), dataset.select(validation)
