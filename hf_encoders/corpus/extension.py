"""Add entries for the words of a domain to a trained vocabulary, and their rows to its model (`tokenizer --extend`).

Each new entry stands for a run of old ones, and is added so that other text is cut as before (`add_tokens` of
transformers would cut every text at the new words first):

- BPE: a merge at the end of the list, which is applied after all others, to two pieces that stand side by side;
- Unigram: with the sum of the scores of its pieces and a little more for each token that it saves, so that it wins
  exactly against them, and against a shorter new entry next to the rest of them;
- WordPiece: whole words only. The longest match is taken from left to right, so a word that begins with a new entry
  may be cut differently after it too; entries of parts of words would change every second line.

Entries are chosen one after the other, always the one that saves most tokens of the text, as BPE is trained
(Sennrich et al. 2016, https://arxiv.org/abs/1508.07909); Unigram, which needs no pieces in between, takes longer runs
in one step, but of pairs in text without spaces.
"""

import heapq
import json
import operator
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.report import library_versions, reading_rows
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.tokenizer_report import save_report
from hf_encoders.corpus.tokenizer_training import MULTIPLE, padded_vocab_size
from hf_encoders.corpus.word_counts import LINES_PER_BATCH, CountedText
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.loading import optional_file, read_config
from hf_encoders.publishing.files import (
    copy_modules,
    load_source,
    save_tokenizer,
    saved_head,
    submodels,
)
from hf_encoders.publishing.record import TrainingRecord, name_of_checkpoint
from hf_encoders.tokenizer_loading import check_rows, load_tokenizer
from hf_encoders.writing import replaced_files, text_table


LEAST_COUNT = 5  # occurrences in the text of what an entry stands for: rarer ones teach an embedding nothing
LONGEST_WORD = 16  # in pieces; a longer one is text without spaces, a sentence, with far more runs
SCORE_MARGIN = 1e-3  # in nats, of a Unigram entry per token that it saves; scores are trained to about 1e-4
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # pieces of a model with `byte_fallback`
FILLER_SCORE = -1000.0  # of tokens that a Unigram model has to list and must not find by itself
ENTRIES_FILE = "new_entries.json"  # id of each new entry -> ids of its pieces
FEW_SAVED = 0.05  # share of the tokens: with less, new entries are hardly worth new rows; this package's choice


Run = tuple[str, ...]  # pieces that stand side by side in a word


def _pairs(pieces: Sequence[str]) -> list[Run]:
    return list(pairwise(pieces))


def _runs(pieces: Sequence[str]) -> list[Run]:
    ends = range(2, len(pieces) + 1)
    return [tuple(pieces[begin:end]) for end in ends for begin in range(end - 1)]


def _words(pieces: Sequence[str]) -> list[Run]:
    return [tuple(pieces)] if len(pieces) > 1 else []


RUNS = {"WordPiece": _words, "BPE": _pairs, "Unigram": _runs}  # that an entry can stand for


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
        ValueError: For another kind of tokenizer, a number below 1, text that no entry makes shorter, and WordPiece
            with added tokens that are found as whole words only.
    """
    for name, value in (("number", number), ("least_count", least_count)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if state["type"] not in RUNS:
        raise ValueError(f"tokenizer has a model of type {state['type']}: entries can be added to {', '.join(RUNS)}.")
    vocabulary = tokenizer.get_vocab()
    whole = {token.content for token in tokenizer.added_tokens_decoder.values() if token.single_word}
    if state["type"] == "WordPiece" and (inside := whole - state["vocab"].keys()):
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
    ids = vocabulary | {entry: new_id for new_id, entry in enumerate(chosen, max(vocabulary.values()) + 1)}
    pieces: dict[int, list[int]] = {}
    for entry, run in chosen.items():
        # A run may hold entries that were added before it.
        pieces[ids[entry]] = [old for piece in run for old in pieces.get(ids[piece], [ids[piece]])]
    _add_entries(state, chosen, ids, vocabulary)
    return ExtendedVocabulary(_with_model(tokenizer, state), pieces)


def _cut_words(
    tokenizer: PreTrainedTokenizerBase, words: Mapping[str, int], least_count: int, left_out: frozenset[str]
) -> list[tuple[list[str], int]]:
    """Return each stretch of two or more pieces of a word that are known, not special and not `left_out`; its count.

    Stretches of rare words are left out: entries for them are fragments, with which a model predicts text worse. Those
    of more than `LONGEST_WORD` pieces are kept: there, the "word" is text without spaces.
    """
    known, cut = tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens} - left_out, []
    for word, count in words.items():
        pieces = [piece.value for piece in tokenizer.backend_tokenizer.model.tokenize(word)]
        stretches = (list(stretch) for is_known, stretch in groupby(pieces, known.__contains__) if is_known)
        shortest = 2 if count >= least_count else LONGEST_WORD + 1
        cut += [(stretch, count) for stretch in stretches if len(stretch) >= shortest]
    return cut


def _choose(
    cut: list[tuple[list[str], int]],
    number: int,
    taken: set[str],
    prefix: str,
    runs: Callable[[list[str]], list[Run]],
    least_count: int = 1,
) -> dict[str, Run]:
    """Return the entries in the order in which they are chosen, each with the run of pieces that it replaces.

    Args:
        cut: Pieces and count of each word; changed.
        number: Most entries.
        taken: Entries that there are.
        prefix: The prefix of pieces inside a word.
        runs: Returns the runs of a word's pieces that an entry can stand for.
        least_count: Fewest occurrences of a run; those in one word do not overlap.

    >>> cut = [(["hyper", "##tens", "##ion"], 6), (["tens", "##ion"], 9), (["hyper", "##tens", "##ive"], 4)]
    >>> _choose(cut, 2, set(), "##", _words)
    {'hypertension': ('hyper', '##tens', '##ion'), 'tension': ('tens', '##ion')}
    """
    # A long word gives pairs only, also when entries have made it shorter.
    runs_of_word = [_pairs if runs is _runs and len(pieces) > LONGEST_WORD else runs for pieces, _ in cut]
    gains: dict[Run, int] = defaultdict(int)
    words_with: dict[Run, set[int]] = defaultdict(set)

    def count(word: int, sign: int) -> None:
        pieces, occurrences = cut[word]
        for run, times in Counter(runs_of_word[word](pieces)).items():
            saved = len(run) - 1 if times == 1 else len(pieces) - len(_replaced(pieces, run, ""))
            gains[run] += sign * occurrences * saved
            words_with[run].add(word)

    for word in range(len(cut)):
        count(word, 1)
    # Gains only fall, but for runs with a new entry: those that fell are put back when they come up.
    waiting = [(-gain, run) for run, gain in gains.items()]
    heapq.heapify(waiting)
    chosen: dict[str, Run] = {}
    while waiting and len(chosen) < number:
        stored, run = heapq.heappop(waiting)
        gain, entry = gains[run], run[0] + "".join(piece.removeprefix(prefix) for piece in run[1:])
        if entry in taken or entry in chosen or gain < least_count * (len(run) - 1):
            continue
        if gain < -stored:
            heapq.heappush(waiting, (-gain, run))
            continue
        chosen[entry] = run
        for word in sorted(words_with[run]):
            count(word, -1)
            cut[word] = _replaced(cut[word][0], run, entry), cut[word][1]
            count(word, 1)
            for new_run in runs_of_word[word](cut[word][0]):
                if entry in new_run:
                    heapq.heappush(waiting, (-gains[new_run], new_run))
    return chosen


def _replaced(pieces: list[str], run: Run, entry: str) -> list[str]:
    """Replace every occurrence of a run by one entry, from left to right.

    >>> _replaced(["a", "b", "a", "b", "b"], ("a", "b"), "ab")
    ['ab', 'ab', 'b']
    """
    result, position = [], 0
    while position < len(pieces):
        is_run = tuple(pieces[position : position + len(run)]) == run
        result.append(entry if is_run else pieces[position])
        position += len(run) if is_run else 1
    return result


def _add_entries(
    state: dict[str, Any], chosen: Mapping[str, Run], ids: Mapping[str, int], vocabulary: Mapping[str, int]
) -> None:
    """Add the entries to a model as `tokenizers` writes it to JSON."""
    if state["type"] != "Unigram":
        # Tokens that were added after the vocabulary too: `tokenizers` renumbers those that the model lacks.
        state["vocab"] = {**vocabulary, **state["vocab"], **{entry: ids[entry] for entry in chosen}}
        if state["type"] == "BPE":
            state["merges"] += [list(run) for run in chosen.values()]
        return
    # Positions in the list are ids, and the tokenizer may have added tokens after it.
    tokens = {number: token for token, number in vocabulary.items()}
    added = range(len(state["vocab"]), max(tokens) + 1)
    if missing := [number for number in added if number not in tokens]:
        raise ValueError(
            f"tokenizer has no token of id {missing[0]}, and larger ids: a Unigram model with such a gap cannot be "
            "extended."
        )
    state["vocab"] += [[tokens[number], FILLER_SCORE] for number in added]
    scores = dict(map(tuple, state["vocab"]))
    for entry, run in chosen.items():
        scores[entry] = sum(scores[piece] for piece in run) + SCORE_MARGIN * (len(run) - 1)
        state["vocab"].append([entry, scores[entry]])


def _with_model(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> PreTrainedTokenizerBase:
    """Return the tokenizer with another model, through its files."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        file = Path(folder, "tokenizer.json")
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "model": state}, ensure_ascii=False), encoding="utf-8")
        return type(tokenizer).from_pretrained(folder)


@torch.no_grad()
def add_entries(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Mapping[int, Sequence[int]]
) -> None:
    """Make the rows of new entries the mean of the rows of the pieces that they replace, in place.

    That is for word embeddings, and for an MLM head its decoder, if it is not tied, and its bias. Before
    training, a new entry is then about as likely as its pieces were. Rows that pad the vocabulary are 0, and their
    biases 20 below the lowest one, so that they take no probability. (transformers' `mean_resizing` draws new rows
    from the distribution of all old ones.)

    Args:
        model (`PreTrainedModel`): A model of this package, or of transformers.
        tokenizer (`PreTrainedTokenizerBase`): The extended one. The vocabulary of the model becomes its size, rounded
            up to a multiple of 64, or stays what it is, rounded up alike, if it has more rows.
        pieces (`Mapping[int, Sequence[int]]`): Id of each new entry -> ids of its pieces; of `ExtendedVocabulary`.

    Raises:
        ValueError: If a piece has no row in the model, which is of another tokenizer then.
    """
    rows = model.get_input_embeddings().num_embeddings
    largest = max(number for old in pieces.values() for number in old)
    if largest >= rows:
        raise ValueError(
            f"model has vocab_size={rows}, and the tokenizer pieces up to id {largest}: extend the model's own "
            "tokenizer."
        )
    needed = max(padded_vocab_size(tokenizer), -(-rows // MULTIPLE) * MULTIPLE)
    if needed > rows:
        model.resize_token_embeddings(needed, mean_resizing=False)
    padding = torch.tensor([row for row in range(rows, needed) if row not in pieces], dtype=torch.long)
    decoder = model.get_output_embeddings()
    tables = [model.get_input_embeddings().weight]
    if decoder is not None:
        tables += [decoder.weight, *([] if decoder.bias is None else [decoder.bias])]
    old = [torch.tensor(ids, device=tables[0].device) for ids in pieces.values()]
    for table in {id(table): table for table in tables}.values():
        # Padding must not take probability from tokens, of which a trained model has few that are likely.
        table.index_fill_(0, padding.to(table.device), 0.0 if table.dim() > 1 else float(table[:rows].min()) - 20.0)
        means = torch.stack([table.index_select(0, ids).mean(dim=0) for ids in old])
        table.index_copy_(0, torch.tensor(list(pieces), device=table.device), means)


@dataclass(frozen=True)
class TextChange:
    """Numbers of tokens of a text with the old and the new vocabulary."""

    words: int  # between white space
    characters: int
    tokens_before: int
    tokens_after: int
    # Words with a token that is neither as before nor a new entry in place of its pieces, share in [0, 1].
    otherwise_cut: float

    @classmethod
    def of(cls, before: PreTrainedTokenizerBase, extended: ExtendedVocabulary, lines: Sequence[str]) -> "TextChange":
        """Tokenize lines with both tokenizers, without special tokens.

        Raises:
            ValueError: If there is no word.
        """
        tokens_before = tokens_after = words = otherwise = 0
        for begin in range(0, len(lines), LINES_PER_BATCH):
            batch = [*map(replace_lone_surrogates, lines[begin : begin + LINES_PER_BATCH])]
            for old, new in zip(
                _tokens_of_words(before, batch), _tokens_of_words(extended.tokenizer, batch), strict=True
            ):
                tokens_before += sum(map(len, old))
                tokens_after += sum(map(len, new))
                words += len(old)
                spelled = ([piece for token in word for piece in extended.pieces.get(token, [token])] for word in new)
                otherwise += sum(pieces != word for pieces, word in zip(spelled, old, strict=True))
        if not words:
            raise ValueError("the text is empty: give lines with words.")
        spaced = sum(len(line.split()) for line in lines)
        return cls(spaced, sum(map(len, lines)), tokens_before, tokens_after, otherwise / words)

    @property
    def saved_share(self) -> float:
        """Share of the tokens that the new entries save."""
        return 1 - self.tokens_after / self.tokens_before

    def row(self, name: str) -> tuple[str, ...]:
        """Return cells for a table."""
        per_word = (f"{tokens / max(self.words, 1):.3f}" for tokens in (self.tokens_before, self.tokens_after))
        return (name, *per_word, f"{-self.saved_share:+.1%}", f"{self.otherwise_cut:.2%}")


def _tokens_of_words(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> list[list[list[int]]]:
    """Return the token ids of each line by word, as normalizer, added tokens and pre-tokenizer divide it."""
    encodings = tokenizer(list(lines), add_special_tokens=False, verbose=False).encodings
    in_words = (groupby(zip(line.word_ids, line.ids, strict=True), operator.itemgetter(0)) for line in encodings)
    return [[[token for _, token in word] for _, word in words] for words in in_words]


@dataclass(frozen=True)
class ExtensionReport:
    """The extension of a tokenizer, `tokenizer_report.json` in its folder; printed, a table."""

    settings: dict[str, Any]
    entries: int  # ids with the new ones
    rows: int  # of the model
    added: list[str]  # in the order in which they were chosen
    text: TextChange
    is_held_out: bool  # whether `text` is held-out text
    kept: TextChange | None  # of other text, if there is any
    run: dict[str, Any]
    versions: dict[str, str]
    reading: dict[str, Any] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """Likely problems, each with the remedy."""
        warnings, asked = [], self.settings["add"]
        if len(self.added) < asked:
            warnings.append(
                f"the text gave {len(self.added):,} new entries of {asked:,}: no other words, or pieces in long ones, "
                "occur often enough. Give more text, or use the tokenizer as it is."
            )
        if self.text.saved_share < FEW_SAVED:
            warnings.append(
                f"the text has {self.text.saved_share:.1%} fewer tokens: the old vocabulary fits it. Train with the "
                "old tokenizer, or add more entries."
            )
        return warnings

    def __str__(self) -> str:
        facts = [
            ("entries", f"{self.entries:,}, {len(self.added):,} of them new; rows of the model: {self.rows:,}"),
            ("first new ones", ", ".join(self.added[:8])),
            *reading_rows(self.reading),
        ]
        rows = [("tokens per word", "before", "after", "tokens", "words tokenized differently")]
        rows.append(self.text.row("text, held out" if self.is_held_out else "text"))
        if self.kept is not None:
            rows.append(self.kept.row("other text"))
        warnings = (f"warning: {warning}" for warning in self.warnings)
        return "\n".join([text_table(facts), text_table(rows, "<>"), *warnings])


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of this package or of transformers, or a tokenizer alone."""

    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel | None = None  # None: a tokenizer alone
    auto_class: str = "AutoTokenizer"  # what loads it, such as `AutoModelForMaskedLM`
    submodels: Mapping[str, PreTrainedModel] = field(default_factory=dict)  # that it was trained with, by folder
    record: TrainingRecord = field(default_factory=TrainingRecord)  # what remains true of that of its training
    source: str = ""  # of the model, in a folder or on the Hub

    @classmethod
    def of(cls, source: str, option: str) -> "Checkpoint":
        """Open a folder or a name on the Hub; errors name the option.

        Raises:
            ValueError: If there is no tokenizer with a tokenizer.json, or it has tokens for which the model has no
                rows; if the model is of another family or not complete, or its head is not known.
        """
        if Path(source).is_dir() and not Path(source, "config.json").is_file():
            return cls(_fast_tokenizer(source, option))
        config = read_config(source, option)
        tokenizer = _fast_tokenizer(source, option, config)
        check_rows(tokenizer, config, f"{option} {source!r}")
        try:
            head, further = saved_head(config), {}
            for folder in config.SUBMODELS:
                if Path(source, folder).is_dir():
                    further[folder] = load_source(Path(source, folder), saved_head(read_config(Path(source, folder))))
                elif optional_file(source, f"{folder}/config.json"):
                    raise ValueError(f"its {folder} is extended too: `hf download {source} --local-dir DIR`.")
            return cls(tokenizer, load_source(source, head), head, further, _remaining_record(source), source)
        except ValueError as error:
            raise ValueError(f"{option} {source!r}: {error}") from error


def _fast_tokenizer(source: str, option: str, *config: Any) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(source, option, *config)
    check_offsets(tokenizer, option, "use hf-encoders adapt with its own entries")
    return tokenizer


def _remaining_record(source: str) -> TrainingRecord:
    """Return what a training record says that is true with other entries too: no losses, no figures.

    `hf-encoders adapt` reads the objective from it.
    """
    record = TrainingRecord.of_checkpoint(source)
    names = ("objectives", "language", "license", "fills_masks")
    return TrainingRecord(**{name: getattr(record, name) for name in names}, base_model=name_of_checkpoint(source))


def extend_checkpoint(
    checkpoint: Checkpoint,
    text: CountedText,
    number: int,
    output: Path,
    kept: Sequence[str] | None,
    settings: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> ExtensionReport:
    """Add entries to a tokenizer and their rows to its model, and write both, with a report, to a folder.

    Args:
        checkpoint (`Checkpoint`): What to extend; its files stay as they are, and its model gets the new rows.
        text (`CountedText`): The text of the domain, counted with the checkpoint's tokenizer.
        number (`int`): Most entries to add.
        output (`Path`): Folder; an earlier result there is replaced once all is complete.
        kept (`Sequence[str]` or `None`): Lines of other text, to report how it is cut.
        settings, reading (`Mapping`): For the report.

    Raises:
        ValueError: As `extend_vocabulary` and `add_entries`.
    """
    began = time.perf_counter()
    extended = extend_vocabulary(checkpoint.tokenizer, text.words, number)
    for model in (checkpoint.model, *checkpoint.submodels.values()):
        if model is not None:
            add_entries(model, extended.tokenizer, extended.pieces)
    model = checkpoint.model
    report = ExtensionReport(
        settings={**settings, "vocab_size": len(extended.tokenizer)},
        entries=len(extended.tokenizer),
        rows=padded_vocab_size(extended.tokenizer) if model is None else model.get_input_embeddings().num_embeddings,
        added=extended.tokenizer.convert_ids_to_tokens(list(extended.pieces)),
        text=TextChange.of(checkpoint.tokenizer, extended, text.measured),
        is_held_out=text.is_held_out,
        kept=TextChange.of(checkpoint.tokenizer, extended, kept) if kept else None,
        run={"distinct_words": len(text.words), "seconds": round(time.perf_counter() - began, 2)},
        versions=library_versions(),
        reading=dict(reading),
    )
    with replaced_files(output, submodels(output)) as folder:
        if model is not None:
            model.save_pretrained(folder)
            checkpoint.record.save(folder)
        for name, submodel in checkpoint.submodels.items():
            submodel.save_pretrained(folder / name)
        save_tokenizer(extended.tokenizer, folder)
        if model is not None:
            copy_modules(checkpoint.source, folder)
        save_report(report, folder)
        (folder / ENTRIES_FILE).write_text(json.dumps(extended.pieces) + "\n", encoding="utf-8")
    return report
