"""Units longer than words (ERNIE): entities of a lexicon, and phrases, as bits of the column `word_starts`.

Entities are marked where text is tokenized; phrases afterwards, since they may be learned from the corpus. A phrase is
made of words outside of entities, so that it never cuts one; each entity is one phrase too.
"""

import copy
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus, offsets_of
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.corpus.word_starts import UnitStart, WordStarts
from hf_encoders.writing import write_whole


WORD, PHRASE, ENTITY, LISTED = map(np.uint8, UnitStart)
JIEBA = "jieba"  # in place of a file: the names in jieba's dictionary
# Its tags of proper nouns: persons (nr, nrfg; nrt transcribed), places, organisations, others.
JIEBA_TAGS = frozenset({"nr", "nrfg", "nrt", "ns", "nt", "nz"})
PHRASES_FILE = "phrases.tsv"  # next to the corpus
LONGEST = 6  # tokens; the report counts longer units together
MOST_FREQUENT = 10
LEAST_SHARE = 0.001  # of the tokens in entities; below, the list hardly fits the text (this package's choice)
# An entry follows nothing, a space, or a mark: byte-level and SentencePiece tokenizers spell it differently there.
_CONTEXTS = ("", " ", "(")
_EXAMPLES, _PROBES = 3, 100
_HEADER = "# phrase, tab, occurrences in the sample, tab, normalised PMI; can be edited and given as --phrases\n"
_BETWEEN_IDEOGRAPHS = re.compile("(?<=[\u3040-\u9fff]) (?=[\u3040-\u9fff])")


def read_entries(path: str | Path, option: str = "lexicon: ") -> list[str]:
    """Read the entries of a UTF-8 file, one a line; messages begin with `option`.

    What follows a tab is left out, and so are blank lines and lines that begin with `# `, a comment.

    Raises:
        ValueError: If it is no text file, or has no entry.
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
    """Return the persons, places, organisations and other names in jieba's dictionary, of 2 characters or more.

    Single characters are left out: most are surnames that are words too.

    Raises:
        ValueError: If the package jieba is not installed.
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
    """Return the distinct entries, with one space for white space.

    Raises:
        ValueError: If it is no list of `str`, or there is no entry.
    """
    if isinstance(entries, str | Path | bool) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{name}={entries!r:.80} is not a list of str: give the entries, or read_entries(file).")
    distinct = list(dict.fromkeys(" ".join(entry.split()) for entry in entries if entry.strip()))
    if not distinct:
        raise ValueError(f"{name} has no entry: give at least one name or term, or leave it out.")
    return distinct


class Lexicon:
    """Names, terms or phrases as a tokenizer spells them, to be found in token ids.

    Entries are compared by token ids, so that case, accents and full-width letters count where they count for the
    tokenizer, and no character offsets are needed. They are made of words of the corpus: a word segmenter has to know
    them (`jieba_segmenter` takes them). Tokenizing 100,000 names takes some seconds.

    Args:
        entries (`Sequence[str]`): Names, terms or phrases, each as it stands in the text.
        tokenizer (`PreTrainedTokenizerBase`): A fast one.
        name (`str`, *optional*, defaults to `"lexicon"`): The list's name in messages.

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
        spelled = [{ids for ids in in_contexts if ids} for in_contexts in spellings(self.entries, tokenizer)]
        self.unspelled = [entry for entry, ids in zip(self.entries, spelled, strict=True) if not ids]
        if len(self.unspelled) == len(self.entries):
            raise ValueError(
                f"{name}: the tokenizer has characters of none of the {len(self.entries):,} entries "
                f"({', '.join(map(repr, self.entries[:_EXAMPLES]))}): give a list in the language of the tokenizer."
            )
        # A trie: the root is 0, and (node, token) leads to the next node.
        self._edges: dict[tuple[int, int], int] = {}
        self._ends: set[int] = set()
        for ids in sorted(set().union(*spelled)):
            node = 0
            for token in ids:
                node = self._edges.setdefault((node, token), len(self._edges) + 1)
            self._ends.add(node)
        self._first_tokens = sorted(token for node, token in self._edges if node == 0)

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the list, in any order, for JSON."""
        text = "\n".join(sorted(self.entries)).encode("utf-8", "replace")
        return {"entries": len(self.entries), "fingerprint": hashlib.blake2b(text, digest_size=8).hexdigest()}

    def find(
        self, ids: np.ndarray, begins_word: np.ndarray, begins_sentence: np.ndarray, is_free: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find entries of whole words of one sentence: from left to right the longest, without overlaps.

        Args:
            ids (`np.ndarray` of integers, shape `(N,)`): Token ids.
            begins_word, begins_sentence (`np.ndarray` of `bool`, shape `(N,)`): The first tokens of words, sentences.
            is_free (`np.ndarray` of `bool`, shape `(N,)`, *optional*): False for tokens that no entry may have.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Bounds of the entries, `int64` of shape `(E,)`, ascending.
        """
        is_free = np.ones(len(ids), dtype=bool) if is_free is None else is_free
        candidates = np.flatnonzero(begins_word & is_free & np.isin(ids, self._first_tokens))
        tokens = ids.tolist()
        stops = [*(begins_sentence | ~is_free).tolist(), True]
        may_end = [*(begins_word | begins_sentence | ~is_free).tolist(), True]
        first, ends = [], [0]
        for begin in candidates.tolist():
            if begin < ends[-1]:
                continue
            node, position, end = 0, begin, 0
            while node is not None and (position == begin or not stops[position]):
                node = self._edges.get((node, tokens[position]))
                position += 1
                if node in self._ends and may_end[position]:
                    end = position
            if end:
                first.append(begin)
                ends.append(end)
        return np.array(first, dtype=np.int64), np.array(ends[1:], dtype=np.int64)


def spellings(entries: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[tuple[int, ...]]]:
    """Return the token ids of each entry in each context; empty where one is unknown, or belongs to the context too.

    A tokenizer that spells the first entries alike in all contexts spells all alike.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    probes = [_in_context(entries[:_PROBES], context, backend) for context in _CONTEXTS]
    contexts = _CONTEXTS if any(probe != probes[0] for probe in probes) else _CONTEXTS[:1]
    unknown = tokenizer.unk_token_id
    by_entry = zip(*(_in_context(entries, context, backend) for context in contexts), strict=True)
    return [[() if unknown in ids else ids for ids in in_contexts] for in_contexts in by_entry]


def _in_context(entries: list[str], context: str, backend: Tokenizer) -> list[tuple[int, ...]]:
    before = len(context.strip())
    spelled = []
    for encoding in backend.encode_batch([context + entry for entry in entries], add_special_tokens=False):
        ids = [token for token, (begin, _) in zip(encoding.ids, encoding.offsets, strict=True) if begin >= before]
        is_apart = before == 0 or any(end == before for _, end in encoding.offsets)
        spelled.append(tuple(ids) if is_apart else ())
    return spelled


def text_of(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Decode ids for reports, without the spaces that decoding puts between Chinese and Japanese characters."""
    return _BETWEEN_IDEOGRAPHS.sub("", tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip())


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
        """Return bits of `UnitStart`, `uint8` of shape `(N,)`, for sentences of `lengths` tokens.

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


def mark_phrases(block: FlatCorpus, phrases: Lexicon) -> FlatCorpus:
    """Add the bit `PHRASE`, which phrases, entities and other words begin with.

    >>> ids, bits = np.array([5, 6, 7, 8]), np.array([1, 1, 1, 1], np.uint8)
    >>> block = FlatCorpus.from_lengths(ids, np.array([4]), np.array([1]), bits)
    >>> mark_phrases(block, Lexicon(["w6 w7"], doctest_tokenizer())).word_starts.tolist()
    [3, 3, 1, 3]
    """
    bits = block.word_starts & ~PHRASE
    begins_word = (bits & WORD) != 0
    is_in_entity = in_entities(bits)
    first, end = phrases.find(
        block.tokens, begins_word, begins_of(block.sentence_lengths, len(bits)), is_free=~is_in_entity
    )
    bits[begins_word & ~is_in_entity | ((bits & LISTED) != 0)] |= PHRASE
    bits[ranges(first + 1, end)] &= ~PHRASE
    return replace(block, word_starts=bits)


def in_entities(bits: np.ndarray) -> np.ndarray:
    """Return whether a token is in an entity of the lexicon, `bool` of shape `(N,)`; `bits` begin with a unit.

    >>> in_entities(np.array([5, 13, 1, 5], np.uint8)).tolist()
    [False, True, True, False]
    """
    begins = np.flatnonzero(bits & ENTITY)
    if not len(begins):
        return np.zeros(len(bits), dtype=bool)
    return np.repeat((bits[begins] & LISTED) != 0, np.diff(np.append(begins, len(bits))))


def begins_of(lengths: np.ndarray, total: int) -> np.ndarray:
    """Return True at the first token of each sentence, `bool` of shape `(total,)`; sentences may be empty.

    >>> begins_of(np.array([2, 0, 1]), 3).tolist()
    [True, False, True]
    """
    begins = np.zeros(total + 1, dtype=bool)
    begins[offsets_of(lengths)[:-1]] = True
    return begins[:-1]


def begin_units_at(bits: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the bits, with those of all levels at the first token of every sentence that has one.

    >>> begin_units_at(np.array([5, 13, 0, 1, 5], np.uint8), np.array([2, 3, 0])).tolist()
    [5, 13, 5, 1, 5]
    """
    bits = bits.copy()
    bits[begins_of(lengths, len(bits))] |= bits[0] & ~LISTED
    return bits


class Phrase(NamedTuple):
    """A learned phrase."""

    text: str
    count: int  # occurrences in the sample
    score: float  # normalised PMI of its two parts, in [-1, 1]


@dataclass(frozen=True)
class Collocations:
    """Learn phrases from a corpus: words that occur together more often than by chance.

    Normalised pointwise mutual information, of Bouma 2009 ("Normalized (pointwise) mutual information in collocation
    extraction"), joins neighbours in two rounds, as word2phrase of word2vec does. PMI-Masking (Levine et al. 2021,
    arXiv 2010.01825) is the published use for masking, with PMI of longer runs.

    Args:
        least_count (`int`, *optional*, defaults to 10): Occurrences in the sample (PMI-Masking's number, of
            its whole corpus).
        least_score (`float`, *optional*, defaults to 0.5): Normalised PMI, in [-1, 1]: 0 is chance, 1
            words that only occur together. This package's choice: below, function words join ("of the").
        rounds (`int`, *optional*, defaults to 2): Two give phrases of up to 4 words.
        most_tokens (`int`, *optional*, defaults to `2**24`): Size of the sample, whole shards evenly over the corpus.
    """

    least_count: int = 10
    least_score: float = 0.5
    rounds: int = 2
    most_tokens: int = 2**24

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the phrases, for JSON."""
        return asdict(self)

    def sample(self, blocks_of: Callable[[int], Iterable[FlatCorpus]], numbers: range) -> FlatCorpus:
        """Return documents of some shards, evenly over `numbers`; at least of one."""
        taken: list[FlatCorpus] = []
        size = 0
        for number in _spread(numbers):
            for block in blocks_of(number):
                taken.append(block)
                size += len(block.tokens)
                if size >= self.most_tokens:
                    return FlatCorpus.joined(taken)
        return FlatCorpus.joined(taken)

    def learn(self, text: FlatCorpus, tokenizer: PreTrainedTokenizerBase) -> list[Phrase]:
        """Learn the phrases of a text with word starts, most frequent first; none may be in an entity.

        A phrase is of words with a letter, and its text is one that the tokenizer spells alike: given as entries, the
        phrases are found where these words are.

        >>> sentences = np.array([5, 6, 7, 5, 6, 8, 5, 6, 9, 8])  # w5 w6 are always together
        >>> text = FlatCorpus.from_lengths(sentences, np.array([10]), np.array([1]), np.ones(10, np.uint8))
        >>> [phrase.text for phrase in Collocations(least_count=3).learn(text, doctest_tokenizer())]
        ['w5 w6']
        """
        words, counts, stretches = self._words_and_stretches(text, tokenizer)
        learned: list[tuple[tuple[int, ...], int, float]] = []
        for _ in range(self.rounds):
            total = counts.total()
            joined: dict[tuple[int, int], int] = {}  # pair -> number of the phrase
            pairs = Counter(pair for stretch in stretches for pair in pairwise(stretch))
            for (left, right), together in pairs.items():
                if together < self.least_count:
                    continue
                score = math.log(together * total / (counts[left] * counts[right])) / -math.log(together / total)
                if score >= self.least_score:
                    joined[left, right] = len(words)
                    words.append(words[left] + words[right])
                    learned.append((words[-1], together, score))
            stretches = [_with_pairs_joined(stretch, joined, counts) for stretch in stretches]
        return _with_texts(learned, tokenizer)

    def _words_and_stretches(
        self, text: FlatCorpus, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[list[tuple[int, ...]], Counter[int], list[list[int]]]:
        """Number the words of a text: ids of each, occurrences, and stretches of neighbours that may be joined.

        Frequent words with a letter and outside of entities may be joined to their neighbours in the sentence.
        """
        begins_sentence = begins_of(text.sentence_lengths, len(text.tokens))
        first = np.flatnonzero(((text.word_starts & WORD) != 0) | begins_sentence)
        tokens, bounds = text.tokens.tolist(), [*first.tolist(), len(text.tokens)]
        numbers: dict[tuple[int, ...], int] = {}
        in_order = [numbers.setdefault(tuple(tokens[begin:end]), len(numbers)) for begin, end in pairwise(bounds)]
        words, counts = list(numbers), Counter(in_order)
        frequent = [number for number, count in counts.items() if count >= self.least_count]
        texts = tokenizer.backend_tokenizer.decode_batch(
            [list(words[number]) for number in frequent], skip_special_tokens=True
        )
        joinable = {number for number, text in zip(frequent, texts, strict=True) if any(map(str.isalpha, text))}
        stretches: list[list[int]] = [[]]
        is_in_entity = in_entities(text.word_starts)[first].tolist()
        for number, begins, is_entity in zip(in_order, begins_sentence[first].tolist(), is_in_entity, strict=True):
            may_join = number in joinable and not is_entity
            if stretches[-1] and (begins or not may_join):
                stretches.append([])
            if may_join:
                stretches[-1].append(number)
        return words, counts, stretches


def _with_pairs_joined(stretch: list[int], joined: Mapping[tuple[int, int], int], counts: Counter[int]) -> list[int]:
    """Replace pairs by their phrases, from left to right, and bring the counts up to date.

    >>> counts = Counter({5: 3, 6: 1})
    >>> _with_pairs_joined([5, 5, 5, 6], {(5, 5): 7, (5, 6): 8}, counts), counts[5], counts[7]
    ([7, 8], 0, 1)
    """
    result, position = [], 0
    while position < len(stretch):
        pair = tuple(stretch[position : position + 2])
        if pair in joined:
            counts.subtract(pair)
            counts[joined[pair]] += 1
        result.append(joined.get(pair, stretch[position]))
        position += 2 if pair in joined else 1
    return result


def _with_texts(learned: list[tuple[tuple[int, ...], int, float]], tokenizer: PreTrainedTokenizerBase) -> list[Phrase]:
    """Return phrases as text that is spelled alike, without white space if it can be; others are left out."""
    spaced = [text.strip() for text in tokenizer.backend_tokenizer.decode_batch([list(ids) for ids, _, _ in learned])]
    closed = ["".join(text.split()) for text in spaced]
    phrases: dict[str, Phrase] = {}
    for texts in (closed, spaced):
        for (ids, count, score), text, spelled in zip(learned, texts, spellings(texts, tokenizer), strict=True):
            if ids in spelled and (text not in phrases or phrases[text].count < count):
                phrases[text] = Phrase(text, count, score)
    return sorted(phrases.values(), key=lambda phrase: (-phrase.count, phrase.text))


def write_phrases(phrases: list[Phrase], path: Path) -> None:
    """Write a file that `read_entries` reads."""
    lines = [f"{phrase.text}\t{phrase.count}\t{phrase.score:.3f}\n" for phrase in phrases]
    write_whole(path, _HEADER + "".join(lines))


def _spread(numbers: range) -> Iterator[int]:
    """Yield all numbers, so that the first few of them are spread evenly: halves, then quarters, and so on.

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


class Units:
    """The units that a corpus marks besides tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the corpus; a fast one where there is more than words.
        words (`bool`): Whether a word segmenter gives the words. Otherwise they are the tokenizer's own, where there
            are a lexicon or phrases.
        lexicon (`Sequence[str]`, *optional*): Entities: names and terms.
        phrases (`Sequence[str]` or `bool`, *optional*, defaults to `False`): Phrases; `True` learns them.

    Raises:
        ValueError: If a list has no entry, or none that the tokenizer can spell; or if the tokenizer shows no words.

    Attributes:
        marker (`EntityMarker` or `None`): Marks words and entities; `None` where there are no other units than a
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
        self.lexicon = None if lexicon is None else Lexicon(lexicon, tokenizer)
        self.phrases: Lexicon | Collocations | None = None
        if phrases is True:
            self.phrases = Collocations()
        elif phrases is not False:
            self.phrases = Lexicon(phrases, tokenizer, "phrases")
        self.marker = None
        if self.lexicon or self.phrases:
            self.marker = EntityMarker(None if words else WordStarts(tokenizer), self.lexicon)

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the units, for JSON; without lexicon and phrases, none."""
        sources = {"lexicon": self.lexicon, "phrases": self.phrases}
        return {name: source.settings() for name, source in sources.items() if source is not None}

    def reading(self) -> dict[str, Any]:
        """Return `unspelled` of `CorpusReport.reading`: entries that the tokenizer cannot spell, if there are any."""
        lists = {"lexicon": self.lexicon, "phrases": self.phrases}
        unspelled = {
            name: {"entries": len(entries.unspelled), "first": entries.unspelled[:_EXAMPLES]}
            for name, entries in lists.items()
            if isinstance(entries, Lexicon) and entries.unspelled
        }
        return {"unspelled": unspelled} if unspelled else {}


class UnitCounter:
    """Counts entities and phrases block by block, for the report of a corpus; memory for each distinct one."""

    def __init__(self) -> None:
        self.tokens = 0
        self.counts: dict[str, Counter[tuple[int, ...]]] = {}  # level -> token ids -> occurrences

    def add(self, block: FlatCorpus) -> None:
        """Count the units of one block, of any size."""
        self.tokens += len(block.tokens)
        bits = block.word_starts
        for level, bit in (("entities", ENTITY), ("phrases", PHRASE)) if bits is not None else ():
            begins = np.flatnonzero(bits & bit)
            if not len(begins):
                continue
            ends = np.append(begins[1:], len(bits))
            is_counted = (bits[begins] & LISTED) != 0
            if level == "phrases":  # of several words, and no entity
                is_counted = ~is_counted & (np.add.reduceat((bits & WORD).astype(np.int64), begins) > 1)
            counts = self.counts.setdefault(level, Counter())
            for begin, end in zip(begins[is_counted].tolist(), ends[is_counted].tolist(), strict=True):
                counts[tuple(block.tokens[begin:end].tolist())] += 1

    def statistics(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """Return `CorpusStatistics.units`: a level, `entities` or `phrases`, to its counts."""
        return {level: self._statistics(counts, tokenizer) for level, counts in self.counts.items()}

    def _statistics(
        self, counts: Counter[tuple[int, ...]], tokenizer: PreTrainedTokenizerBase | None
    ) -> dict[str, Any]:
        by_length: Counter[int] = Counter()
        for ids, count in counts.items():
            by_length[min(len(ids), LONGEST)] += count
        frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_FREQUENT]
        texts = [str(list(ids)) if tokenizer is None else text_of(ids, tokenizer) for ids, _ in frequent]
        return {
            "number": counts.total(),
            "distinct": len(counts),
            "token_share": sum(len(ids) * count for ids, count in counts.items()) / max(self.tokens, 1),
            "by_tokens": {str(length): by_length[length] for length in sorted(by_length)},
            "most_frequent": [[text, count] for text, (_, count) in zip(texts, frequent, strict=True)],
        }


def unit_rows(units: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return table rows for the entities and phrases of a corpus."""
    rows = []
    for level, counts in units.items():
        share = f"{counts['token_share']:.1%} of the tokens"
        rows.append((level, f"{counts['number']:,}, {counts['distinct']:,} different, {share}"))
        if counts["number"]:
            lengths = [
                f"{length}{'+' if length == str(LONGEST) else ''}: {number / counts['number']:.0%}"
                for length, number in counts["by_tokens"].items()
            ]
            frequent = ", ".join(f"{text} {count:,}" for text, count in counts["most_frequent"][:3])
            rows.append((f"{level}, tokens each", ", ".join(lengths)))
            rows.append((f"{level}, most frequent", frequent))
    return rows


def unit_warnings(units: Mapping[str, Any], unspelled: Mapping[str, Any]) -> list[str]:
    """Return warnings of a list that does not fit the text; `unspelled` is of `Units.reading`."""
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
    for name, entries in unspelled.items():
        more = ", ..." if entries["entries"] > len(entries["first"]) else ""
        warnings.append(
            f"{entries['entries']:,} entries of the {name} have a character that is unknown to the tokenizer, and are "
            f"never found: {', '.join(map(repr, entries['first']))}{more}. Remove them, or train the tokenizer on "
            "text that has these characters."
        )
    return warnings


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The integers of several ranges, concatenated; `int64`.

    >>> ranges(np.array([7, 3, 5]), np.array([9, 3, 8]))
    array([7, 8, 5, 6, 7])
    """
    before = offsets_of(ends - starts)
    numbers = np.arange(before[-1])
    numbers += np.repeat(starts - before[:-1], ends - starts)
    return numbers
