"""Entries added to a trained vocabulary for the words of a domain.

Each new entry stands for a run of old ones, and is added so that other text is cut as before:

- BPE: a merge at the end of the list, which is applied after all others, to two pieces that stand side by side;
- Unigram: with the sum of the scores of its pieces and a little more for each token that it saves, so that it wins
  exactly against them, and against a shorter new entry beside the rest of them;
- WordPiece: whole words only. The longest match is taken from left to right, so a word that begins with a new entry
  may be cut differently behind it too; entries of parts of words would change every second line.

Entries are chosen one after the other, always the one that saves most tokens of the text, as BPE is trained
(Sennrich et al. 2016, https://arxiv.org/abs/1508.07909); Unigram, which needs no pieces in between, takes longer runs
in one step, but of pairs in text without spaces.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase


LEAST_COUNT = 5  # occurrences in the text of what an entry stands for: rarer ones teach an embedding nothing
LONGEST_WORD = 16  # in pieces; a longer one is text without spaces, a sentence, with far more runs
SCORE_MARGIN = 1e-3  # in nats, of a Unigram entry per token that it saves; scores are trained to about 1e-4
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # pieces of a model with `byte_fallback`
FILLER_SCORE = -1000.0  # of tokens that a Unigram model has to list and must not find by itself


Run = tuple[str, ...]  # pieces that stand side by side in a word


def _pairs(pieces: Sequence[str]) -> list[Run]:
    return list(pairwise(pieces))


def _runs(pieces: Sequence[str]) -> list[Run]:
    ends = range(2, len(pieces) + 1)
    return [tuple(pieces[begin:end]) for end in ends for begin in range(end - 1)]


def _words(pieces: Sequence[str]) -> list[Run]:
    return [tuple(pieces)] if len(pieces) > 1 else []


RUNS = {"WordPiece": _words, "BPE": _pairs, "Unigram": _runs}  # those that an entry can stand for


class ExtendedVocabulary(NamedTuple):
    """A tokenizer with new entries."""

    tokenizer: PreTrainedTokenizerBase
    pieces: dict[int, list[int]]  # id of each new entry -> the old ids that it replaces, two or more


def extend_vocabulary(
    tokenizer: PreTrainedTokenizerBase, words: Mapping[str, int], number: int, least_count: int = LEAST_COUNT
) -> ExtendedVocabulary:
    """Add the entries that save most tokens of a text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A fast tokenizer with a WordPiece, BPE or Unigram model; not changed.
        words (`Mapping[str, int]`): The words of the text, from `count_words` with this tokenizer.
        number (`int`): Most entries to add, at least 1; the text may give fewer.
        least_count (`int`, *optional*, defaults to 5): Fewest occurrences of what an entry stands for. Rarer words are
            not looked at, unless they have more than `LONGEST_WORD` pieces.

    Returns:
        `ExtendedVocabulary`: The tokenizer, of the same class; new ids follow the largest old one.

    Raises:
        ValueError: For another kind of tokenizer, a `number` below 1, text that no entry makes shorter, and WordPiece
            with added tokens that are found as whole words only.
    """
    if number < 1:
        raise ValueError(f"number={number} must be at least 1.")
    if least_count < 1:
        raise ValueError(f"least_count={least_count} must be at least 1.")
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer is a {type(tokenizer).__name__}, written in Python: only those with a tokenizer.json."
        )
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if state["type"] not in RUNS:
        raise ValueError(f"tokenizer has a model of type {state['type']}: entries can be added to {', '.join(RUNS)}.")
    vocabulary = tokenizer.get_vocab()
    whole = [token.content for token in tokenizer.added_tokens_decoder.values() if token.single_word]
    if state["type"] == "WordPiece" and (inside := set(whole) - state["vocab"].keys()):
        raise ValueError(
            f"tokenizer has the added token {min(inside)!r} of whole words (single_word), which WordPiece would find "
            "inside of words too, once entries with larger ids follow it: add it without single_word, or leave it out."
        )
    # Pieces that are bytes of unknown characters stand for themselves only, also when they are decoded.
    of_bytes = BYTES if state.get("byte_fallback") else frozenset()
    cut = _cut_words(tokenizer, words, least_count, of_bytes)
    prefix = state.get("continuing_subword_prefix") or ""
    chosen = _choose(cut, number, set(vocabulary), prefix, RUNS[state["type"]], least_count)
    if not chosen:
        raise ValueError(
            f"the text has no word of two pieces, nor pieces in a long one, that occur {least_count} times: give more "
            "text, or keep the tokenizer as it is."
        )
    first_id = max(vocabulary.values()) + 1
    ids = {**vocabulary, **{entry: first_id + place for place, entry in enumerate(chosen)}}
    pieces: dict[int, list[int]] = {}
    for entry, run in chosen.items():
        # A run may hold entries that were added before it.
        pieces[ids[entry]] = [old for piece in run for old in pieces.get(ids[piece], [ids[piece]])]
    _add_entries(state, chosen, ids, vocabulary)
    return ExtendedVocabulary(_with_model(tokenizer, state), pieces)


def _cut_words(
    tokenizer: PreTrainedTokenizerBase, words: Mapping[str, int], least_count: int, left_out: frozenset[str]
) -> list[tuple[list[str], int]]:
    """Each stretch of two or more pieces of a word that are known, not special and not `left_out`, with its count.

    Stretches of rare words are left out: entries for them are fragments, with which a model predicts text worse. Those
    of more than `LONGEST_WORD` pieces are kept: there, the "word" is text without spaces.
    """
    known, found = tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens} - left_out, []
    for word, count in words.items():
        pieces = [piece.value for piece in tokenizer.backend_tokenizer.model.tokenize(word)]
        stretches = (list(stretch) for is_known, stretch in groupby(pieces, known.__contains__) if is_known)
        shortest = 2 if count >= least_count else LONGEST_WORD + 1
        found += [(stretch, count) for stretch in stretches if len(stretch) >= shortest]
    return found


def _choose(
    cut: list[tuple[list[str], int]],
    number: int,
    taken: set[str],
    prefix: str,
    runs: Callable[[list[str]], list[Run]],
    least_count: int = 1,
) -> dict[str, Run]:
    """The entries in the order in which they are chosen, each with the run of pieces that it replaces.

    Args:
        cut: Pieces and count of each word; changed.
        number: Most entries.
        taken: Entries that there are.
        prefix: That of a piece inside a word.
        runs: Those of a word's pieces that an entry can stand for.
        least_count: Fewest occurrences of a run; those in one word do not overlap.

    >>> cut = [(["hyper", "##tens", "##ion"], 6), (["tens", "##ion"], 9), (["hyper", "##tens", "##ive"], 4)]
    >>> _choose(cut, 2, set(), "##", _words)
    {'hypertension': ('hyper', '##tens', '##ion'), 'tension': ('tens', '##ion')}
    """
    # A long word gives pairs only, also when entries have made it shorter.
    of_word = [_pairs if runs is _runs and len(pieces) > LONGEST_WORD else runs for pieces, _ in cut]
    gains: dict[Run, int] = defaultdict(int)
    places: dict[Run, set[int]] = defaultdict(set)

    def count(word: int, sign: int) -> None:
        pieces, occurrences = cut[word]
        for run, times in Counter(of_word[word](pieces)).items():
            saved = len(run) - 1 if times == 1 else len(pieces) - len(_replaced(pieces, run, ""))
            gains[run] += sign * occurrences * saved
            places[run].add(word)

    for word in range(len(cut)):
        count(word, 1)
    # Gains only fall, but for runs with a new entry: those that fell are put back when they come up.
    waiting = [(-gain, run) for run, gain in gains.items()]
    heapq.heapify(waiting)
    chosen: dict[str, Run] = {}
    while waiting and len(chosen) < number:
        stored, run = heapq.heappop(waiting)
        gain, entry = gains[run], _joined(run, prefix)
        if entry in taken or entry in chosen or gain < least_count * (len(run) - 1):
            continue
        if gain < -stored:
            heapq.heappush(waiting, (-gain, run))
            continue
        chosen[entry] = run
        for word in sorted(places[run]):
            count(word, -1)
            cut[word] = _replaced(cut[word][0], run, entry), cut[word][1]
            count(word, 1)
            for one in of_word[word](cut[word][0]):
                if entry in one:
                    heapq.heappush(waiting, (-gains[one], one))
    return chosen


def _joined(run: Sequence[str], prefix: str) -> str:
    """The entry of a run of pieces.

    >>> _joined(["##tens", "##ion"], "##"), _joined(["▁hyper", "tension"], "")
    ('##tension', '▁hypertension')
    """
    return run[0] + "".join(piece.removeprefix(prefix) for piece in run[1:])


def _replaced(pieces: list[str], run: Run, entry: str) -> list[str]:
    """Pieces with every occurrence of a run as one, from left to right.

    >>> _replaced(["a", "b", "a", "b", "b"], ("a", "b"), "ab")
    ['ab', 'ab', 'b']
    """
    found, place = [], 0
    while place < len(pieces):
        is_run = tuple(pieces[place : place + len(run)]) == run
        found.append(entry if is_run else pieces[place])
        place += len(run) if is_run else 1
    return found


def _add_entries(
    state: dict[str, Any], chosen: Mapping[str, Run], ids: Mapping[str, int], vocabulary: Mapping[str, int]
) -> None:
    """Add the entries to a model as `tokenizers` writes it to JSON."""
    if state["type"] != "Unigram":
        # Tokens that were added behind the vocabulary too: `tokenizers` renumbers those that the model lacks.
        state["vocab"] = {**vocabulary, **state["vocab"], **{entry: ids[entry] for entry in chosen}}
        if state["type"] == "BPE":
            state["merges"] += [list(run) for run in chosen.values()]
        return
    # Places in the list are ids, and the tokenizer may have added tokens behind it.
    tokens = {number: token for token, number in vocabulary.items()}
    listed = len(state["vocab"])
    if missing := [number for number in range(listed, max(tokens) + 1) if number not in tokens]:
        raise ValueError(
            f"tokenizer has no token of id {missing[0]}, and larger ids: a Unigram model with such a gap cannot be "
            "extended."
        )
    state["vocab"] += [[tokens[number], FILLER_SCORE] for number in range(listed, max(tokens) + 1)]
    scores = dict(map(tuple, state["vocab"]))
    for entry, run in chosen.items():
        scores[entry] = sum(scores[piece] for piece in run) + SCORE_MARGIN * (len(run) - 1)
        state["vocab"].append([entry, scores[entry]])


def _with_model(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer with another model, through its files."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        file = Path(folder, "tokenizer.json")
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "model": state}, ensure_ascii=False), encoding="utf-8")
        return type(tokenizer).from_pretrained(folder)
