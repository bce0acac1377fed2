"""Lists of names, terms or phrases, and where they occur in token ids: the longest match over whole words.

Entries are compared as the tokenizer spells them, so that case, accents and full-width letters count where they count
for the tokenizer, and no character offsets are needed (which take a third of the tokenizer's time). Words are those of
the corpus, so an entry never ends within one: a word segmenter has to know the entries (`jieba_segmenter` takes them).

Units longer than words, as bits of the column `word_starts`: entities of a lexicon, and phrases.

Entities are marked where text is tokenized, in every process; phrases when shards are merged, since they may be
learned from them. A phrase is made of words outside of entities, so that it never cuts one; each entity is one phrase.

Collocations of a corpus, as phrases: words that occur together more often than by chance.

Normalised pointwise mutual information, of Bouma 2009 ("Normalized (pointwise) mutual information in collocation
extraction"), joins neighbours in two rounds, as word2phrase of word2vec does. PMI-Masking (Levine et al. 2021, arXiv
2010.01825) is the published use for masking, with PMI of longer runs.

Which units a corpus marks in its column `word_starts`.

Counts of the entities and phrases of a corpus, for its report.
"""

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import SentenceBatch
from hf_encoders.corpus.ragged import hashes_of_rows, offsets_of, ranges
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.corpus.word_starts import UnitStart, WordStarts
from hf_encoders.writing import write_whole


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


WORD, PHRASE, ENTITY, LISTED = map(np.uint8, UnitStart)


@dataclass(frozen=True)
class EntityMarker:
    """Marks words and entities in sentences of token ids.

    Args:
        words (`WordStarts` or `None`): Finds the tokenizer's words; `None` where a segmenter has found others.
        lexicon (`Lexicon` or `None`): Names and terms.
    """

    words: WordStarts | None
    lexicon: Lexicon | None

    def __call__(self, ids: np.ndarray, lengths: np.ndarray, word_starts: np.ndarray | None) -> np.ndarray:
        """Bits of `UnitStart`, `uint8` of shape `(N,)`.

        >>> marker = EntityMarker(WordStarts(doctest_tokenizer()), Lexicon(["w5 w6"], doctest_tokenizer()))
        >>> marker(np.array([9, 5, 6, 9, 5]), np.array([4, 1]), None).tolist()  # w9, w5 w6, w9; w5
        [5, 13, 1, 5, 5]
        """
        begins_sentence = begins_of(lengths, len(ids))
        if self.words is not None:
            word_starts = self.words(ids, begins_sentence)
        begins_word = (word_starts != 0) | begins_sentence
        bits = begins_word * WORD
        if self.lexicon is not None:
            bits[begins_word] |= ENTITY
            first, end = self.lexicon.find(ids, begins_word, begins_sentence)
            bits[ranges(first + 1, end)] &= ~ENTITY
            bits[first] |= LISTED
        return bits


def mark_phrases(block: SentenceBatch, phrases: Lexicon) -> SentenceBatch:
    """The documents with the bit `PHRASE`, which phrases, entities and other words begin with.

    >>> block = SentenceBatch(np.array([5, 6, 7, 8]), np.array([4]), np.array([1]), np.array([1, 1, 1, 1], np.uint8))
    >>> mark_phrases(block, Lexicon(["w6 w7"], doctest_tokenizer())).word_starts.tolist()
    [3, 3, 1, 3]
    """
    bits = block.word_starts & ~PHRASE
    begins_sentence = begins_of(block.sentence_lengths, len(bits))
    begins_word = (bits & WORD) != 0
    is_in_entity = in_entities(bits)
    begins_unit = begins_word & ~is_in_entity | ((bits & LISTED) != 0)
    first, end = phrases.find(block.tokens, begins_word, begins_sentence, ~is_in_entity)
    bits[begins_unit] |= PHRASE
    bits[ranges(first + 1, end)] &= ~PHRASE
    return block._replace(word_starts=bits)


def in_entities(bits: np.ndarray) -> np.ndarray:
    """Whether a token is in an entity of the lexicon, `bool` of shape `(N,)`, from bits that begin with a unit.

    >>> in_entities(np.array([5, 13, 1, 5], np.uint8)).tolist()
    [False, True, True, False]
    """
    begins = np.flatnonzero(bits & ENTITY)
    if not len(begins):
        return np.zeros(len(bits), dtype=bool)
    return np.repeat((bits[begins] & LISTED) != 0, np.diff(np.append(begins, len(bits))))


def begins_of(lengths: np.ndarray, total: int) -> np.ndarray:
    """True at the first token of each sentence, `bool` of shape `(total,)`; sentences may be empty.

    >>> begins_of(np.array([2, 0, 1]), 3).tolist()
    [True, False, True]
    """
    begins = np.zeros(total + 1, dtype=bool)
    begins[offsets_of(lengths)[:-1]] = True
    return begins[:-1]


def begin_units_at(bits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The bits, with those of all levels at the first token of every sentence that has one.

    >>> begin_units_at(np.array([5, 13, 0, 1, 5], np.uint8), np.array([2, 3, 0])).tolist()
    [5, 13, 5, 1, 5]
    """
    bits = bits.copy()
    bits[offsets_of(lengths)[:-1][lengths > 0]] |= bits[0] & ~LISTED
    return bits


PHRASES_FILE = "phrases.tsv"  # beside the corpus
_HEADER = "# phrase, tab, occurrences in the sample, tab, normalised PMI; can be edited and given as --phrases\n"


class Phrase(NamedTuple):
    """A learned phrase."""

    text: str
    count: int  # occurrences in the sample
    score: float  # normalised PMI of its two parts, in [-1, 1]


class _Atoms(NamedTuple):
    """Words, or words joined to phrases, in the order of a text of N tokens."""

    types: np.ndarray  # int64, (W,): which word; equal words have equal numbers
    first: np.ndarray  # int64, (W,): first token
    end: np.ndarray  # int64, (W,): token behind the last one
    is_joinable: np.ndarray  # bool, (W,): with the next one


@dataclass(frozen=True)
class Collocations:
    """How phrases are learned.

    Args:
        least_count (`int`, *optional*, defaults to 10): Occurrences in the sample (PMI-Masking's number, of
            its whole corpus).
        least_score (`float`, *optional*, defaults to 0.5): Normalised PMI, in [-1, 1]: 0 is chance, 1
            words that only occur together. This package's choice: below, function words join ("of the").
        rounds (`int`, *optional*, defaults to 2): Two give phrases of up to 4 words.
        most_tokens (`int`, *optional*, defaults to `2**24`): Size of the sample, whole shards evenly over the corpus;
            learning takes about 100 bytes of memory a token.
    """

    least_count: int = 10
    least_score: float = 0.5
    rounds: int = 2
    most_tokens: int = 2**24

    def settings(self) -> dict[str, Any]:
        """What decides about the phrases, for JSON."""
        return asdict(self)

    def sample(self, blocks_of: Callable[[int], Iterable[SentenceBatch]], numbers: range) -> SentenceBatch:
        """Documents of some shards, evenly over `numbers`; at least of one."""
        taken: list[SentenceBatch] = []
        size = 0
        for number in _spread(numbers):
            for block in blocks_of(number):
                taken.append(block)
                size += len(block.tokens)
                if size >= self.most_tokens:
                    break
            if size >= self.most_tokens:
                break
        return SentenceBatch(*map(np.concatenate, zip(*taken, strict=True)))

    def learn(self, text: SentenceBatch, tokenizer: PreTrainedTokenizerBase) -> list[Phrase]:
        """The phrases of a text with word starts, most frequent first; none may be in an entity.

        A phrase is of words with a letter, and its text is one that the tokenizer spells alike: given as entries, the
        phrases are found where these words are.

        >>> sentences = np.array([5, 6, 7, 5, 6, 8, 5, 6, 9, 8])  # w5 w6 are always together
        >>> text = SentenceBatch(sentences, np.array([10]), np.array([1]), np.ones(10, np.uint8))
        >>> [phrase.text for phrase in Collocations(least_count=3).learn(text, doctest_tokenizer())]
        ['w5 w6']
        """
        atoms = self._words(text, tokenizer)
        found = []
        for _ in range(self.rounds):
            atoms, pairs = self._join(atoms)
            found += pairs
        return _with_texts(found, text.tokens, tokenizer)

    def _words(self, text: SentenceBatch, tokenizer: PreTrainedTokenizerBase) -> _Atoms:
        """The words of a text; joinable where both are frequent, with a letter and outside of entities."""
        bits = text.word_starts
        begins_sentence = begins_of(text.sentence_lengths, len(bits))
        first = np.flatnonzero(((bits & WORD) != 0) | begins_sentence)
        end = np.append(first[1:], len(bits))
        _, example, types, counts = np.unique(
            hashes_of_rows(text.tokens, end - first), return_index=True, return_inverse=True, return_counts=True
        )
        frequent = np.flatnonzero(counts >= self.least_count)
        ids = [text.tokens[first[word] : end[word]].tolist() for word in example[frequent]]
        texts = tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=True)
        has_letter = np.zeros(len(counts), dtype=bool)
        has_letter[frequent] = [any(map(str.isalpha, text)) for text in texts]
        may_join = np.append(has_letter[types] & ~in_entities(bits)[first], False)
        is_joinable = may_join[:-1] & may_join[1:] & ~np.append(begins_sentence[first[1:]], True)
        return _Atoms(types, first, end, is_joinable)

    def _join(self, atoms: _Atoms) -> tuple[_Atoms, list[tuple[int, int, int, float]]]:
        """Join pairs that score high; and the pairs: first token and end of one occurrence, count, score."""
        total, counts = len(atoms.types), np.bincount(atoms.types)
        left = np.flatnonzero(atoms.is_joinable)
        keys, example, inverse, together = np.unique(
            atoms.types[left] * len(counts) + atoms.types[left + 1],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        parts = counts[keys // len(counts)].astype(np.float64) * counts[keys % len(counts)]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.log(together * (total / parts)) / -np.log(together / total)
        is_phrase = (together >= self.least_count) & (scores >= self.least_score)
        pairs = [
            (int(atoms.first[left[one]]), int(atoms.end[left[one] + 1]), int(count), float(score))
            for one, count, score in zip(example[is_phrase], together[is_phrase], scores[is_phrase], strict=True)
        ]
        is_joined = is_phrase[inverse]
        left, inverse = left[is_joined], inverse[is_joined]
        # Of neighbouring pairs, from left to right, every other one.
        run = np.cumsum(np.diff(left, prepend=-2) != 1) - 1
        starts_of_run = np.flatnonzero(np.diff(left, prepend=-2) != 1)
        chosen = (np.arange(len(left)) - starts_of_run[run]) % 2 == 0 if len(left) else np.zeros(0, dtype=bool)
        left, inverse = left[chosen], inverse[chosen]
        types, end, is_joinable = atoms.types.copy(), atoms.end.copy(), atoms.is_joinable.copy()
        types[left], end[left] = len(counts) + inverse, end[left + 1]
        is_joinable[left] = is_joinable[left + 1]
        rest = np.delete(np.arange(total), left + 1)
        types = np.unique(types[rest], return_inverse=True)[1]
        return _Atoms(types, atoms.first[rest], end[rest], is_joinable[rest]), pairs


def write_phrases(phrases: list[Phrase], path: Path) -> None:
    """Write a file that `read_entries` reads."""
    lines = [f"{phrase.text}\t{phrase.count}\t{phrase.score:.3f}\n" for phrase in phrases]
    write_whole(path, _HEADER + "".join(lines))


def _spread(numbers: range) -> Iterator[int]:
    """All numbers, so that the first few of them are spread evenly: halves, then quarters, and so on.

    >>> list(_spread(range(5)))
    [0, 4, 2, 1, 3]
    """
    seen, parts = set(), 1
    while len(seen) < len(numbers):
        for part in range(parts + 1):
            number = numbers[min(round(part * len(numbers) / parts), len(numbers) - 1)]
            if number not in seen:
                seen.add(number)
                yield number
        parts *= 2


def _with_texts(
    found: list[tuple[int, int, int, float]], tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase
) -> list[Phrase]:
    """Phrases as text that is spelled alike, without white space if it can be; others are left out."""
    ids = [tuple(tokens[first:end].tolist()) for first, end, _, _ in found]
    spaced = [text.strip() for text in tokenizer.backend_tokenizer.decode_batch([*map(list, ids)])]
    closed = ["".join(text.split()) for text in spaced]
    phrases: dict[str, Phrase] = {}
    for own, texts, spelled, (_, _, count, score) in zip(
        ids,
        zip(closed, spaced, strict=True),
        zip(spellings(closed, tokenizer), spellings(spaced, tokenizer), strict=True),
        found,
        strict=True,
    ):
        text = next((text for text, as_ids in zip(texts, spelled, strict=True) if own in as_ids), None)
        if text and (text not in phrases or phrases[text].count < count):
            phrases[text] = Phrase(text, count, score)
    return sorted(phrases.values(), key=lambda phrase: (-phrase.count, phrase.text))


class Units:
    """The units of a corpus besides tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the corpus; a fast one where there is more than words.
        words (`bool`): Whether a word segmenter gives the words. Otherwise they are the tokenizer's own, where there
            are a lexicon or phrases.
        lexicon (`Sequence[str]`, *optional*): Entities: names and terms.
        phrases (`Sequence[str]` or `bool`, *optional*, defaults to `False`): Phrases; `True` learns them.

    Raises:
        ValueError: If a list has no entry, or none that the tokenizer can spell; or if the tokenizer shows no words.

    Attributes:
        marker (`EntityMarker` or `None`): What marks words and entities; `None` where there are no other units than a
            segmenter's words.
        phrases (`Lexicon`, `Collocations` or `None`): Given phrases, or how they are learned.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        words: bool,
        lexicon: Sequence[str] | None = None,
        phrases: Sequence[str] | bool = False,
    ):
        self.words = words
        self.lexicon = None if lexicon is None else Lexicon(lexicon, tokenizer)
        self.phrases: Lexicon | Collocations | None = None
        if phrases is True:
            self.phrases = Collocations()
        elif phrases is not False:
            self.phrases = Lexicon(phrases, tokenizer, "phrases")
        self.marker = None
        if self.lexicon or self.phrases:
            self.marker = EntityMarker(None if words else WordStarts(tokenizer), self.lexicon)

    @property
    def are_marked(self) -> bool:
        """Whether the corpus has the column `word_starts`."""
        return self.words or self.marker is not None

    @property
    def lists(self) -> dict[str, Lexicon]:
        """The given lists, by name."""
        found = {"lexicon": self.lexicon, "phrases": self.phrases}
        return {name: entries for name, entries in found.items() if isinstance(entries, Lexicon)}

    def settings(self) -> dict[str, Any]:
        """What decides about the units, for JSON; without lexicon and phrases, nothing."""
        settings: dict[str, Any] = {name: entries.settings() for name, entries in self.lists.items()}
        if isinstance(self.phrases, Collocations):
            settings["phrases"] = self.phrases.settings()
        return settings

    def reading(self) -> dict[str, Any]:
        """What `CorpusReport.reading` says of the lists: `unspelled`, entries that the tokenizer cannot spell."""
        found = {
            name: {"entries": len(entries.unspelled), "first": entries.unspelled[:3]}
            for name, entries in self.lists.items()
            if entries.unspelled
        }
        return {"unspelled": found} if found else {}


TOKENS_PER_STEP = 2**18  # counted at once
LONGEST = 6  # tokens; longer units are counted together
MOST_FREQUENT = 10
LEAST_SHARE = 0.001  # of the tokens in entities; below, the list hardly fits the text (this package's choice)


class UnitCounter:
    """Counts entities and phrases block by block; memory for each distinct one, about 150 bytes."""

    def __init__(self) -> None:
        self.tokens = 0
        self.in_units: Counter[str] = Counter()
        self.by_length: dict[str, Counter[int]] = {}
        self.by_hash: dict[str, Counter[int]] = {}
        self.ids: dict[int, list[int]] = {}  # of a hash

    def add(self, block: SentenceBatch) -> None:
        """Count one block, of any size."""
        self.tokens += len(block.tokens)
        if block.word_starts is None or not len(block.tokens):
            return
        # In steps of whole sentences, which no unit goes beyond.
        offsets = offsets_of(block.sentence_lengths)
        cuts = offsets[np.searchsorted(offsets, np.arange(0, len(block.tokens), TOKENS_PER_STEP))]
        for begin, end in pairwise([*np.unique(cuts).tolist(), len(block.tokens)]):
            self._add(block.tokens[begin:end], block.word_starts[begin:end])

    def _add(self, tokens: np.ndarray, bits: np.ndarray) -> None:
        for level, (first, end) in _units(bits):
            lengths = end - first
            self.in_units[level] += int(lengths.sum())
            self.by_length.setdefault(level, Counter()).update(np.minimum(lengths, LONGEST).tolist())
            hashes, example, counts = np.unique(
                hashes_of_rows(tokens[ranges(first, end)], lengths), return_index=True, return_counts=True
            )
            found = dict(zip(hashes.tolist(), counts.tolist(), strict=True))
            self.by_hash.setdefault(level, Counter()).update(found)
            for number, place in zip(found, example.tolist(), strict=True):
                if number not in self.ids:
                    self.ids[number] = tokens[first[place] : end[place]].tolist()

    def statistics(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """`CorpusStatistics.units`: a level, `entities` or `phrases`, to its counts."""
        found = {}
        for level, by_length in self.by_length.items():
            frequent = sorted(self.by_hash[level].items(), key=lambda one: (-one[1], self.ids[one[0]]))[:MOST_FREQUENT]
            found[level] = {
                "number": by_length.total(),
                "distinct": len(self.by_hash[level]),
                "token_share": self.in_units[level] / max(self.tokens, 1),
                "by_tokens": {str(length): by_length[length] for length in sorted(by_length)},
                "most_frequent": [[_text(self.ids[number], tokenizer), count] for number, count in frequent],
            }
        return found


def _units(bits: np.ndarray) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Bounds of the entities, and of the phrases, which have several words and are no entities."""
    for level, bit in (("entities", ENTITY), ("phrases", PHRASE)):
        begins = np.flatnonzero(bits & bit)
        if not len(begins):
            continue
        ends = np.append(begins[1:], len(bits))
        is_listed = (bits[begins] & LISTED) != 0
        if level == "phrases":
            is_listed = ~is_listed & (np.add.reduceat((bits & WORD).astype(np.int64), begins) > 1)
        yield level, (begins[is_listed], ends[is_listed])


def _text(ids: list[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    return str(ids) if tokenizer is None else text_of(ids, tokenizer)


def unit_rows(units: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Table rows for the entities and phrases of a corpus."""
    rows = []
    for level, counts in units.items():
        frequent = ", ".join(f"{text} {count:,}" for text, count in counts["most_frequent"][:3])
        lengths = [
            f"{length}{'+' if length == str(LONGEST) else ''}: {number / counts['number']:.0%}"
            for length, number in counts["by_tokens"].items()
        ]
        share = f"{counts['token_share']:.1%} of the tokens"
        rows.append((level, f"{counts['number']:,}, {counts['distinct']:,} different, {share}"))
        if counts["number"]:
            rows.append((f"{level}, tokens each", ", ".join(lengths)))
            rows.append((f"{level}, most frequent", frequent))
    return rows


def unit_warnings(units: Mapping[str, Any], unspelled: Mapping[str, Any]) -> list[str]:
    """Warnings of a list that does not fit the text; `unspelled` is of `Units`."""
    warnings = []
    for level, name in (("entities", "lexicon"), ("phrases", "phrases")):
        if level in units and units[level]["number"] == 0:
            warnings.append(
                f"No entry of the {name} is in the text: masking {level} is masking words. Check that the list is in "
                "the language of the text, and written as the text is; without spaces, a word segmenter has to know "
                "the entries."
            )
        elif level in units and units[level]["token_share"] < LEAST_SHARE:
            warnings.append(
                f"Only {units[level]['token_share']:.2%} of the tokens are in {level}: masking them differs little "
                "from masking words. Give a list that fits the text."
            )
    for name, found in unspelled.items():
        more = ", ..." if found["entries"] > len(found["first"]) else ""
        warnings.append(
            f"{found['entries']:,} entries of the {name} have a character that is unknown to the tokenizer, and are "
            f"never found: {', '.join(map(repr, found['first']))}{more}. Remove them, or train the tokenizer on text "
            "that has these characters."
        )
    return warnings
