"""Units longer than words (ERNIE): entities of a lexicon, and phrases, as bits of the column `word_starts`.

Entities are marked where text is tokenized; phrases afterwards, since they may be learned from the corpus. A phrase is
made of words outside of entities, so that it never cuts one; each entity is one phrase too.
"""

import copy
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.flat_corpus import FlatCorpus, offsets_of
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.text_files import check_is_text
from hf_encoders.corpus.word_starts import UnitStart, WordStarts, import_jieba
from hf_encoders.writing import with_bar, write_whole


WORD, PHRASE, ENTITY, LISTED = map(np.uint8, UnitStart)
JIEBA = "jieba"  # in place of a file: the names in jieba's dictionary
# Its tags of proper nouns: persons (nr, nrfg; nrt transcribed), places, organisations, others.
JIEBA_TAGS = frozenset({"nr", "nrfg", "nrt", "ns", "nt", "nz"})
PHRASES_FILE = "phrases.tsv"  # next to the corpus
# Phrases: PMI-Masking's number of occurrences (there of the whole corpus, here of a sample). The score is this
# package's choice: below, function words join ("of the"). Two rounds give phrases of up to 4 words.
LEARNED = {"least_count": 10, "least_score": 0.5, "rounds": 2, "most_tokens": 2**24}
LONGEST = 6  # tokens; the report counts longer units together
MOST_FREQUENT = 10
LEAST_SHARE = 0.001  # of the tokens in entities; below, the list hardly fits the text (this package's choice)
# An entry follows nothing, a space, or a mark: byte-level and SentencePiece tokenizers spell it differently there.
_CONTEXTS = ("", " ", "(")
_EXAMPLES, _PROBES = 3, 100
_HEADER = "# phrase, tab, occurrences in the sample, tab, normalised PMI; can be edited and given as --phrases\n"
_BETWEEN_IDEOGRAPHS = re.compile("(?<=[\u3040-\u9fff]) (?=[\u3040-\u9fff])")

Word = tuple[int, ...]  # token ids


def numbered_lines(path: str | Path, option: str) -> list[tuple[int, str]]:
    """Return the lines of a UTF-8 list with their numbers from 1, without blank ones and comments (`# `).

    Raises:
        ValueError: If it is no text file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{option}'{path}' is not a file: name a text file.")
    check_is_text(path, option)
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("# ")]


def read_entries(path: str | Path, option: str = "lexicon: ") -> list[str]:
    """Read the entries of a UTF-8 file, one a line; messages begin with `option`.

    What follows a tab is left out, and so are blank lines and lines that begin with `# `, a comment.

    Raises:
        ValueError: If it is no text file, or has no entry.
    """
    entries = [line.split("\t")[0].strip() for _, line in numbered_lines(path, option)]
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
    with import_jieba("lexicon").get_dict_file() as file:
        rows = [line.split() for line in file.read().decode("utf-8").splitlines()]
    return [word for word, _, tag in rows if tag in JIEBA_TAGS and len(word) > 1]


class Lexicon:
    """Names, terms or phrases as a fast tokenizer spells them, to be found in token ids.

    So case, accents and full-width letters count where they count for the tokenizer, and no character offsets are
    needed. Entries are made of words of the corpus: a word segmenter has to know them (`jieba_segmenter` takes them).
    `unspelled` are entries with a character that is unknown to the tokenizer; they are never found.

    Raises:
        ValueError: With the list's `name`, if there is no entry, the tokenizer is a slow one, or can spell none.

    >>> lexicon = Lexicon(["w5 w6", "w5 w6 w7", "w9"], doctest_tokenizer())
    >>> ids = np.array([5, 6, 8, 5, 6, 7, 9, 5, 6])
    >>> begins_sentence = np.array([True] + 7 * [False] + [True])  # the last sentence is w6
    >>> lexicon.find(ids, np.ones(9, dtype=bool), begins_sentence)
    [(0, 2), (3, 6), (6, 7)]
    """

    def __init__(self, entries: Sequence[str], tokenizer: PreTrainedTokenizerBase, name: str = "lexicon"):
        if isinstance(entries, str | Path | bool) or not all(isinstance(entry, str) for entry in entries):
            raise ValueError(f"{name}={entries!r:.80} is not a list of str: give the entries, or read_entries(file).")
        self.entries = list(dict.fromkeys(" ".join(entry.split()) for entry in entries if entry.strip()))
        if not self.entries:
            raise ValueError(f"{name} has no entry: give at least one name or term, or leave it out.")
        check_offsets(tokenizer, f"a {name}", "leave it out")
        spelled = [{ids for ids in in_contexts if ids} for in_contexts in spellings(self.entries, tokenizer)]
        self.unspelled = [entry for entry, ids in zip(self.entries, spelled, strict=True) if not ids]
        if len(self.unspelled) == len(self.entries):
            raise ValueError(
                f"{name}: the tokenizer has characters of none of the {len(self.entries):,} entries "
                f"({', '.join(map(repr, self.entries[:_EXAMPLES]))}): give a list in the language of the tokenizer."
            )
        self._is_entry: dict[Word, bool] = {}  # of each entry and each beginning of one
        for ids in set().union(*spelled):
            for end in range(1, len(ids)):
                self._is_entry.setdefault(ids[:end], False)
            self._is_entry[ids] = True

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the list, in any order, for JSON."""
        text = "\n".join(sorted(self.entries)).encode("utf-8", "replace")
        return {"entries": len(self.entries), "fingerprint": hashlib.blake2b(text, digest_size=8).hexdigest()}

    def find(self, ids: np.ndarray, begins_word: np.ndarray, stops: np.ndarray) -> list[tuple[int, int]]:
        """Find entries from left to right, the longest, without overlaps: first token of each, and the one after it.

        An entry begins with a token that `begins_word`, and ends before one or before one that `stops`, with which no
        entry continues: of a new sentence. All are of shape `(N,)`.
        """
        tokens, may_end, stops = ids.tolist(), [*(begins_word | stops).tolist(), True], [*stops.tolist(), True]
        spans, after = [], 0
        for begin in np.flatnonzero(begins_word).tolist():
            if begin < after:
                continue
            end = begin + 1
            while (is_entry := self._is_entry.get(tuple(tokens[begin:end]))) is not None:
                if is_entry and may_end[end]:
                    after = end
                if stops[end]:
                    break
                end += 1
            if begin < after:
                spans.append((begin, after))
        return spans


def spellings(entries: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[Word]]:
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


def _in_context(entries: list[str], context: str, backend: Tokenizer) -> list[Word]:
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


def mark_phrases(block: FlatCorpus, phrases: Lexicon) -> FlatCorpus:
    """Add the bit `PHRASE`, which phrases, entities and other words begin with.

    >>> ids, bits = np.array([5, 6, 7, 8]), np.array([1, 1, 1, 1], np.uint8)
    >>> block = FlatCorpus.from_lengths(ids, np.array([4]), np.array([1]), bits)
    >>> mark_phrases(block, Lexicon(["w6 w7"], doctest_tokenizer())).word_starts.tolist()
    [3, 3, 1, 3]
    """
    bits = block.word_starts & ~PHRASE
    is_free, begins_sentence = ~in_entities(bits), begins_of(block.sentence_lengths, len(bits))
    may_begin = ((bits & WORD) != 0) & is_free
    bits[may_begin | ((bits & LISTED) != 0)] |= PHRASE
    for begin, end in phrases.find(block.tokens, may_begin, begins_sentence | ~is_free):
        bits[begin + 1 : end] &= ~PHRASE
    return replace(block, word_starts=bits)


def in_entities(bits: np.ndarray) -> np.ndarray:
    """Return whether a token is in an entity of the lexicon, `bool` of shape `(N,)`; `bits` begin with a unit.

    >>> in_entities(np.array([5, 13, 1, 5], np.uint8)).tolist()
    [False, True, True, False]
    """
    first_tokens = np.maximum.accumulate(np.where(bits & ENTITY, np.arange(len(bits)), 0))
    return (bits[first_tokens] & LISTED) != 0


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


def learn_phrases(
    text: FlatCorpus,
    tokenizer: PreTrainedTokenizerBase,
    least_count: int = LEARNED["least_count"],
    least_score: float = LEARNED["least_score"],
    rounds: int = LEARNED["rounds"],
) -> list[Phrase]:
    """Learn the phrases of a text with word starts, most frequent first: words that are together more than by chance.

    Normalised pointwise mutual information, of Bouma 2009 ("Normalized (pointwise) mutual information in collocation
    extraction"), joins neighbours in rounds, as word2phrase of word2vec does: 0 is chance, 1 words that only occur
    together. PMI-Masking (Levine et al. 2021, arXiv 2010.01825) masks such words, with PMI of longer runs.

    A phrase is of words with a letter and outside of entities, and its text is one that the tokenizer spells alike:
    given as entries, the phrases are found where these words are.

    >>> sentences = np.array([5, 6, 7, 5, 6, 8, 5, 6, 9, 8])  # w5 w6 are always together
    >>> text = FlatCorpus.from_lengths(sentences, np.array([10]), np.array([1]), np.ones(10, np.uint8))
    >>> [phrase.text for phrase in learn_phrases(text, doctest_tokenizer(), least_count=3)]
    ['w5 w6']
    """
    numbers: dict[Word, int] = {}
    counts: Counter[int] = Counter()
    sentences: list[list[int]] = []  # numbers of words; -1 for what is not joined
    bounds = text.sentence_offsets.tolist()
    for begin, end in with_bar(pairwise(bounds), "Counting words", len(bounds) - 1):
        bits = text.word_starts[begin:end]
        sentence = [numbers.setdefault(word, len(numbers)) for word in words_of(text.tokens[begin:end], bits & WORD)]
        counts.update(sentence)
        is_entity = in_entities(bits)[(bits & WORD) != 0].tolist()
        sentences.append([-1 if entity else number for number, entity in zip(sentence, is_entity, strict=True)])
    words = list(numbers)
    frequent = [number for number, count in counts.items() if count >= least_count]
    texts = tokenizer.backend_tokenizer.decode_batch([list(words[number]) for number in frequent])
    joinable = {number for number, text in zip(frequent, texts, strict=True) if any(map(str.isalpha, text))}
    sentences = [[number if number in joinable else -1 for number in sentence] for sentence in sentences]
    learned: list[tuple[Word, int, float]] = []
    for _ in range(rounds):
        total = counts.total()
        joined: dict[tuple[int, int], int] = {}  # pair -> number of the phrase
        pairs = Counter(pair for sentence in with_bar(sentences, "Counting pairs") for pair in pairwise(sentence))
        for (left, right), together in pairs.items():
            if together < least_count or -1 in (left, right):
                continue
            score = math.log(together * total / (counts[left] * counts[right])) / -math.log(together / total)
            if score >= least_score:
                joined[left, right] = len(words)
                words.append(words[left] + words[right])
                learned.append((words[-1], together, score))
        sentences = [_with_pairs_joined(sentence, joined, counts) for sentence in sentences]
    return _with_texts(learned, tokenizer)


def words_of(ids: np.ndarray, starts: np.ndarray) -> list[Word]:
    """Return the words of a sentence, which begin where `starts` are not 0.

    >>> words_of(np.array([5, 6, 7]), np.array([1, 0, 1]))
    [(5, 6), (7,)]
    """
    tokens = ids.tolist()
    return [tuple(tokens[begin:end]) for begin, end in pairwise([*np.flatnonzero(starts).tolist(), len(tokens)])]


def _with_pairs_joined(sentence: list[int], joined: Mapping[tuple[int, int], int], counts: Counter[int]) -> list[int]:
    """Replace pairs by their phrases, from left to right, and bring the counts up to date.

    >>> counts = Counter({5: 3, 6: 1})
    >>> _with_pairs_joined([5, 5, 5, 6], {(5, 5): 7, (5, 6): 8}, counts), counts[5], counts[7]
    ([7, 8], 0, 1)
    """
    result, position = [], 0
    while position < len(sentence):
        pair = tuple(sentence[position : position + 2])
        if pair in joined:
            counts.subtract(pair)
            counts[joined[pair]] += 1
        result.append(joined.get(pair, sentence[position]))
        position += 2 if pair in joined else 1
    return result


def _with_texts(learned: list[tuple[Word, int, float]], tokenizer: PreTrainedTokenizerBase) -> list[Phrase]:
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
    """Write phrases as `read_entries` reads them."""
    lines = [f"{phrase.text}\t{phrase.count}\t{phrase.score:.3f}\n" for phrase in phrases]
    write_whole(path, _HEADER + "".join(lines))


class Units:
    """The units that a corpus marks besides tokens, from lists; `phrases=True` says that they are learned later.

    `words` is whether a segmenter gives the words. Otherwise they are the tokenizer's own, where there is a list.

    Raises:
        ValueError: As `Lexicon` of each list; or if the tokenizer shows no words.

    >>> units = Units(doctest_tokenizer(), words=False, lexicon=["w5 w6"])
    >>> units.mark(np.array([9, 5, 6, 9, 5]), np.array([4, 1]), None).tolist()  # w9, w5 w6, w9; w5
    [5, 13, 1, 5, 5]
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        words: bool,
        lexicon: Sequence[str] | None = None,
        phrases: Sequence[str] | bool = False,
    ):
        lists = (("lexicon", lexicon), ("phrases", None if isinstance(phrases, bool) else phrases))
        self.lists = {name: Lexicon(entries, tokenizer, name) for name, entries in lists if entries is not None}
        self.lexicon, self.phrases = self.lists.get("lexicon"), self.lists.get("phrases")
        self.are_learned = phrases is True
        self.are_marked = bool(self.lists) or self.are_learned  # more than a segmenter's words
        self._words = WordStarts(tokenizer) if self.are_marked and not words else None

    def mark(self, ids: np.ndarray, lengths: np.ndarray, word_starts: np.ndarray | None) -> np.ndarray:
        """Mark words and entities in N tokens of sentences of `lengths` tokens: bits of `UnitStart`, `uint8`, `(N,)`.

        `word_starts`, of shape `(N,)`, are not 0 where words of a segmenter begin.
        """
        begins_sentence = begins_of(lengths, len(ids))
        if self._words is not None:
            word_starts = self._words(ids, begins_sentence)
        begins_word = (word_starts != 0) | begins_sentence
        bits = begins_word * WORD
        if self.lexicon is not None:
            bits[begins_word] |= ENTITY
            for begin, end in self.lexicon.find(ids, begins_word, begins_sentence):
                bits[begin] |= LISTED
                bits[begin + 1 : end] &= ~ENTITY
        return bits

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the units, for JSON; without lexicon and phrases, none."""
        lists = {name: entries.settings() for name, entries in self.lists.items()}
        return lists | ({"phrases": dict(LEARNED)} if self.are_learned else {})

    def reading(self) -> dict[str, Any]:
        """Return `unspelled` of `CorpusReport.reading`: entries that the tokenizer cannot spell, if there are any."""
        unspelled = {
            name: {"entries": len(entries.unspelled), "first": entries.unspelled[:_EXAMPLES]}
            for name, entries in self.lists.items()
            if entries.unspelled
        }
        return {"unspelled": unspelled} if unspelled else {}


class UnitCounter:
    """Counts entities and phrases block by block, for the report of a corpus; memory for each distinct one."""

    def __init__(self) -> None:
        self.tokens = 0
        self.counts: dict[str, Counter[Word]] = {}  # level -> token ids -> occurrences

    def add(self, block: FlatCorpus) -> None:
        """Count the units of one block, of any size."""
        self.tokens += len(block.tokens)
        bits = block.word_starts
        for level, bit in (("entities", ENTITY), ("phrases", PHRASE)) if bits is not None else ():
            begins = np.flatnonzero(bits & bit)
            if not len(begins):
                continue
            is_counted = (bits[begins] & LISTED) != 0
            if level == "phrases":  # of several words, and no entity
                is_counted = ~is_counted & (np.add.reduceat((bits & WORD).astype(np.int64), begins) > 1)
            spans = np.stack([begins, np.append(begins[1:], len(bits))], axis=1)[is_counted].tolist()
            counts = self.counts.setdefault(level, Counter())
            counts.update(tuple(block.tokens[begin:end].tolist()) for begin, end in spans)

    def statistics(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """Return `CorpusStatistics.units`: a level, `entities` or `phrases`, to its counts."""
        units = {}
        for level, counts in self.counts.items():
            by_length: Counter[int] = Counter()
            for ids, count in counts.items():
                by_length[min(len(ids), LONGEST)] += count
            frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_FREQUENT]
            units[level] = {
                "number": counts.total(),
                "distinct": len(counts),
                "token_share": sum(len(ids) * count for ids, count in counts.items()) / max(self.tokens, 1),
                "by_tokens": {str(length): by_length[length] for length in sorted(by_length)},
                "most_frequent": [
                    [str(list(ids)) if tokenizer is None else text_of(ids, tokenizer), count]
                    for ids, count in frequent
                ],
            }
        return units


def unit_rows(units: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return table rows for the entities and phrases of a corpus."""
    rows = []
    for level, counts in units.items():
        share, number = f"{counts['token_share']:.1%} of the tokens", counts["number"]
        rows.append((level, f"{number:,}, {counts['distinct']:,} different, {share}"))
        if number:
            lengths = counts["by_tokens"].items()
            shares = (f"{length}{'+' * (length == str(LONGEST))}: {times / number:.0%}" for length, times in lengths)
            frequent = (f"{text} {count:,}" for text, count in counts["most_frequent"][:3])
            rows.append((f"{level}, tokens each", ", ".join(shares)))
            rows.append((f"{level}, most frequent", ", ".join(frequent)))
    return rows


def unit_warnings(units: Mapping[str, Any], unspelled: Mapping[str, Any]) -> list[str]:
    """Return warnings of a list that does not fit the text; `unspelled` is of `Units.reading`."""
    warnings = []
    for level, name in (("entities", "lexicon"), ("phrases", "phrases")):
        if level in units and units[level]["number"] == 0:
            warnings.append(
                f"No entry of the {name} is in the text: masking {level} is masking words. Check that it is written "
                "as the text is; without spaces, a word segmenter has to know the entries."
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
            f"never found: {', '.join(map(repr, entries['first']))}{more}. Remove them, or train it on such text."
        )
    return warnings
