"""Lists of names, terms or phrases, and where they occur in token ids: the longest match over whole words.

Entries are compared as the tokenizer spells them, so that case, accents and full-width letters count where they count
for the tokenizer, and no character offsets are needed (which take a third of the tokenizer's time). Words are those of
the corpus, so an entry never ends within one: a word segmenter has to know the entries (`jieba_segmenter` takes them).
"""

import copy
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.text_files import check_is_text


JIEBA = "jieba"  # in place of a file: the names in jieba's dictionary
# Its tags of proper nouns: persons (nr, nrfg; nrt transcribed), places, organisations, others.
JIEBA_TAGS = frozenset({"nr", "nrfg", "nrt", "ns", "nt", "nz"})
# What may stand before an entry: nothing, a space, or a mark without one. Byte-level and SentencePiece tokenizers
# spell it differently there.
_CONTEXTS = ("", " ", "(")
_EXAMPLES, _PROBES = 3, 100
_BETWEEN_IDEOGRAPHS = re.compile("(?<=[\u3040-\u9fff]) (?=[\u3040-\u9fff])")


def read_entries(path: str | Path, option: str = "lexicon: ") -> list[str]:
    """The entries of a file, one a line, UTF-8; a `ValueError` for another file, and for one without an entry.

    What follows a tab is left out, and so are blank lines and lines that begin with `# `, a comment.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{option}'{path}' is not a file: name a text file with one entry a line.")
    check_is_text(path, option)
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    entries = [line.split("\t")[0].strip() for line in lines if not line.startswith("# ")]
    entries = [entry for entry in entries if entry]
    if not entries:
        raise ValueError(f"{option}'{path}' has no entry: write one name or term a line.")
    return entries


def jieba_entries() -> list[str]:
    """Persons, places, organisations and other names in jieba's dictionary, of 2 characters or more.

    Single characters are left out: most are surnames, and words of their own besides.
    """
    try:
        import jieba
    except ImportError as error:
        raise ValueError(
            "lexicon='jieba': the package jieba is not installed: pip install 'hf_encoders[chinese]', or give a file "
            "with one entry a line."
        ) from error
    with jieba.get_dict_file() as file:
        rows = [line.split() for line in file.read().decode("utf-8").splitlines()]
    return [word for word, _, tag in rows if tag in JIEBA_TAGS and len(word) > 1]


def check_entries(entries: Sequence[str], name: str) -> list[str]:
    """The distinct entries, white space around them removed and within made one space; a `ValueError` if none."""
    if isinstance(entries, str | Path | bool) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{name}={entries!r:.80} is not a list of str: give the entries, or read_entries(file).")
    distinct = list(dict.fromkeys(" ".join(entry.split()) for entry in entries if entry.strip()))
    if not distinct:
        raise ValueError(f"{name} has no entry: give at least one name or term, or leave it out.")
    return distinct


class Lexicon:
    """Entries as a tokenizer spells them, in a trie of token ids.

    Takes about 50 bytes of memory per token of an entry; tokenizing 100,000 names takes some seconds.

    Args:
        entries (`Sequence[str]`): Names, terms or phrases, each as it stands in the text.
        tokenizer (`PreTrainedTokenizerBase`): A fast one.
        name (`str`, *optional*, defaults to `"lexicon"`): What messages call it.

    Raises:
        ValueError: If there is no entry, the tokenizer is a slow one, or it can spell none of the entries.

    Attributes:
        unspelled (`list[str]`): Entries with a character that is unknown to the tokenizer; they are never found.

    >>> lexicon = Lexicon(["w5 w6", "w5 w6 w7", "w9"], doctest_tokenizer())
    >>> ids = np.array([5, 6, 8, 5, 6, 7, 9, 5, 6])
    >>> begins_sentence = np.array([True] + 7 * [False] + [True])
    >>> first, end = lexicon.find(ids, np.ones(9, dtype=bool), begins_sentence)  # the last sentence begins with w6
    >>> first.tolist(), end.tolist()
    ([0, 3, 6], [2, 6, 7])
    """

    def __init__(self, entries: Sequence[str], tokenizer: PreTrainedTokenizerBase, name: str = "lexicon"):
        self.entries = check_entries(entries, name)
        check_offsets(tokenizer, f"a {name}", "leave it out")
        spelled = [{ids for ids in found if ids} for found in spellings(self.entries, tokenizer)]
        self.unspelled = [entry for entry, ids in zip(self.entries, spelled, strict=True) if not ids]
        if len(self.unspelled) == len(self.entries):
            raise ValueError(
                f"{name}: the tokenizer has characters of none of the {len(self.entries):,} entries "
                f"({', '.join(map(repr, self.entries[:_EXAMPLES]))}): give a list in the language of the tokenizer."
            )
        self._make_trie({ids for found in spelled for ids in found})

    def settings(self) -> dict[str, Any]:
        """What identifies the list, in any order, for JSON."""
        text = "\n".join(sorted(self.entries)).encode("utf-8", "replace")
        return {"entries": len(self.entries), "fingerprint": hashlib.blake2b(text, digest_size=8).hexdigest()}

    def _make_trie(self, keys: Iterable[tuple[int, ...]]) -> None:
        """Nodes are numbered by level, from the root, 0; edges, sorted by (parent, token), lead to their number + 1.

        So one search in the edges is one step of the walk, for any number of places at once.
        """
        keys = sorted(keys)
        lengths = np.array([len(key) for key in keys])
        flat = np.array([token for key in keys for token in key], dtype=np.int64)
        self.size = int(flat.max()) + 1  # tokens from here on are in no entry
        begins, nodes, edges, ends, total = offsets_of(lengths)[:-1], np.zeros(len(keys), np.int64), [], [], 0
        for level in range(lengths.max()):
            begins, nodes, lengths = (values[lengths > level] for values in (begins, nodes, lengths))
            found, inverse = np.unique(nodes * self.size + flat[begins + level], return_inverse=True)
            nodes = total + 1 + inverse
            total += len(found)
            edges.append(found)
            ends.append(nodes[lengths == level + 1])
        self.edges = np.concatenate(edges)
        self.is_entry = np.zeros(total + 1, dtype=bool)
        self.is_entry[np.concatenate(ends)] = True
        self.first_node = np.zeros(self.size + 1, dtype=np.int64)  # of entries that begin with a token; 0 for none
        self.first_node[edges[0]] = np.arange(1, len(edges[0]) + 1)

    def find(
        self, ids: np.ndarray, begins_word: np.ndarray, begins_sentence: np.ndarray, is_free: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Entries in a text, of whole words of one sentence each: from left to right the longest, without overlaps.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids.
            begins_word, begins_sentence (`np.ndarray` of `bool`, shape `(N,)`): The first tokens of words, sentences.
            is_free (`np.ndarray` of `bool`, shape `(N,)`, *optional*): False for tokens that no entry may have.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Bounds of the entries, `int64` of shape `(E,)`, ascending.
        """
        stop = np.append(begins_sentence, True)
        if is_free is not None:
            stop[:-1] |= ~is_free
        may_end = np.append(begins_word, True) | stop
        may_begin = begins_word if is_free is None else begins_word & is_free
        nodes = self.first_node[np.minimum(ids, self.size)]
        begins = np.flatnonzero(may_begin & (nodes > 0))
        nodes, places = nodes[begins], np.arange(len(begins))
        longest, length = np.zeros(len(begins), dtype=np.int64), 1
        while len(places):
            next_token = begins[places] + length
            longest[places[self.is_entry[nodes] & may_end[next_token]]] = length
            goes_on = ~stop[next_token]
            places, nodes, next_token = places[goes_on], nodes[goes_on], next_token[goes_on]
            wanted = nodes * self.size + ids[next_token]
            edge = np.minimum(np.searchsorted(self.edges, wanted), len(self.edges) - 1)
            is_there = (self.edges[edge] == wanted) & (ids[next_token] < self.size)
            places, nodes = places[is_there], edge[is_there] + 1
            length += 1
        begins, longest = begins[longest > 0], longest[longest > 0]
        return _without_overlaps(begins, begins + longest)


def _without_overlaps(first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From left to right, the spans that begin where none chosen before reaches; `first` ascends.

    >>> [bounds.tolist() for bounds in _without_overlaps(np.array([0, 2, 3, 6]), np.array([3, 6, 5, 7]))]
    [[0, 3, 6], [3, 5, 7]]
    """
    following = np.searchsorted(first, end)  # the next span that begins at or behind the end of this one
    # Spans that overlap, one after the other, are a cluster, of which the first span is chosen; clusters go in step.
    begins_cluster = first >= np.append(0, np.maximum.accumulate(end)[:-1])
    clusters = np.append(np.cumsum(begins_cluster), 0)
    spans, is_chosen = np.flatnonzero(begins_cluster), np.zeros(len(first), dtype=bool)
    while len(spans):
        is_chosen[spans] = True
        is_followed = clusters[following[spans]] == clusters[spans]
        spans = following[spans[is_followed]]
    return first[is_chosen], end[is_chosen]


def spellings(entries: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[tuple[int, ...]]]:
    """Token ids of each entry in each context, empty where one is unknown or is of the context too.

    A tokenizer that spells the first entries alike in all contexts spells all alike.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    probes = [_in_context(entries[:_PROBES], context, backend) for context in _CONTEXTS]
    contexts = _CONTEXTS if any(probe != probes[0] for probe in probes) else _CONTEXTS[:1]
    unknown = tokenizer.unk_token_id
    found = zip(*(_in_context(entries, context, backend) for context in contexts), strict=True)
    return [[() if unknown in ids else ids for ids in of_entry] for of_entry in found]


def text_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Text of token ids for reports, without the spaces that decoding puts between Chinese and Japanese characters."""
    return _BETWEEN_IDEOGRAPHS.sub("", tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip())


def _in_context(entries: list[str], context: str, backend: Tokenizer) -> list[tuple[int, ...]]:
    if not (before := len(context.strip())):
        encodings = backend.encode_batch_fast([context + entry for entry in entries], add_special_tokens=False)
        return [tuple(encoding.ids) for encoding in encodings]
    found = []
    for encoding in backend.encode_batch([context + entry for entry in entries], add_special_tokens=False):
        offsets = encoding.offsets
        own = [token for token, (begin, _) in zip(encoding.ids, offsets, strict=True) if begin >= before]
        found.append(tuple(own) if any(end == before for _, end in offsets) else ())
    return found
