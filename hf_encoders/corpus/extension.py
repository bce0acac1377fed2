"""Add entries for the words of a domain to a trained vocabulary, and their rows to its model (`tokenizer --extend`).

Each new entry stands for a run of old ones, and is added so that other text is cut as before (`add_tokens` of
transformers would cut every text at the new words first):

- BPE: a merge at the end of the list, which is applied after all others, to two pieces that stand side by side;
- Unigram: with the sum of the scores of its pieces and a little more for each token that it saves, so that it wins
  exactly against them, and against a shorter new entry next to the rest of them;
- WordPiece: whole words only. The longest match is taken from left to right, so a word that begins with a new entry
  may be cut differently after it too; entries of parts of words would change every second line.

Ids that a published tokenizer holds back (`[unused7]` of BERT and ModernBERT) are used up first: the model keeps its
shapes while they last.

The entry that saves most tokens of the text is chosen next, as BPE is trained (Sennrich et al. 2016, arXiv
1508.07909); Unigram, which needs no pieces in between, takes longer runs at once, but pairs in text without spaces.
"""

import heapq
import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.report import reading_rows
from hf_encoders.corpus.special_tokens import check_offsets
from hf_encoders.corpus.tokenizer_training import MULTIPLE, padded_vocab_size
from hf_encoders.corpus.word_counts import LINES_PER_BATCH
from hf_encoders.inputs import replace_lone_surrogates
from hf_encoders.loading import optional_file, read_config
from hf_encoders.publishing.files import copy_modules, load_source, save_tokenizer, saved_head
from hf_encoders.publishing.record import TrainingRecord, name_of_checkpoint
from hf_encoders.tokenizer_loading import check_rows, load_tokenizer
from hf_encoders.writing import text_table


LEAST_COUNT = 5  # occurrences in the text of what an entry stands for: rarer ones teach an embedding nothing
LONGEST_WORD = 16  # in pieces; a longer one is text without spaces, a sentence, with far more runs
SCORE_MARGIN = 1e-3  # in nats, of a Unigram entry per token that it saves; scores are trained to about 1e-4
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))  # pieces of a model with `byte_fallback`
FILLER_SCORE = -1000.0  # of tokens that a Unigram model has to list and must not find by itself
UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")  # BERT's and ModernBERT's, and Gemma's, which mmBERT has
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
        least_count (`int`, *optional*, defaults to 5): Fewest occurrences of what an entry stands for.

    Returns:
        `ExtendedVocabulary`: The tokenizer, of the same class; new ids are those of unused entries, which they
            replace, and then follow the largest old one.

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
    cut = _cut_words(tokenizer, words, least_count, state)
    prefix = state.get("continuing_subword_prefix") or ""
    chosen = _choose(cut, number, set(vocabulary), prefix, RUNS[state["type"]], least_count)
    if not chosen:
        raise ValueError(
            f"the text has no word of two pieces, nor pieces in a long one, that occur {least_count} times: give more "
            "text, or keep the tokenizer as it is."
        )
    unused = {token_id for token, token_id in vocabulary.items() if UNUSED.fullmatch(token)}
    unused = sorted(unused - {*tokenizer.all_special_ids})  # some are in use, as ColBERT's markers
    new_ids = dict(zip(chosen, chain(unused, count(max(vocabulary.values()) + 1)), strict=False))
    replaced = set(unused) & set(new_ids.values())
    ids = {token: token_id for token, token_id in vocabulary.items() if token_id not in replaced} | new_ids
    pieces: dict[int, list[int]] = {}
    for entry, run in chosen.items():
        # A run may hold entries that were added before it.
        pieces[ids[entry]] = [old for piece in run for old in pieces.get(ids[piece], [ids[piece]])]
    _add_entries(state, chosen, ids)
    return ExtendedVocabulary(_with_model(tokenizer, state, replaced), pieces)


def _cut_words(
    tokenizer: PreTrainedTokenizerBase, words: Mapping[str, int], least_count: int, state: Mapping[str, Any]
) -> list[tuple[list[str], int]]:
    """Return each stretch of two or more known pieces of a word, and its count.

    Special tokens and the bytes of unknown characters stand for themselves only, also when they are decoded. Stretches
    of rare words are left out: entries for them are fragments, with which a model predicts text worse. Those of more
    than `LONGEST_WORD` pieces are kept: there, the "word" is text without spaces.
    """
    known, cut = tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens}, []
    if state.get("byte_fallback"):
        known -= BYTES
    for word, occurrences in words.items():
        pieces = [piece.value for piece in tokenizer.backend_tokenizer.model.tokenize(word)]
        stretches = (list(stretch) for is_known, stretch in groupby(pieces, known.__contains__) if is_known)
        shortest = 2 if occurrences >= least_count else LONGEST_WORD + 1
        cut += [(stretch, occurrences) for stretch in stretches if len(stretch) >= shortest]
    return cut


def _choose(
    cut: list[tuple[list[str], int]],
    number: int,
    taken: set[str],
    prefix: str,
    runs: Callable[[list[str]], list[Run]],
    least_count: int = 1,
) -> dict[str, Run]:
    """Return at most `number` entries as they are chosen, each with the run of pieces that it replaces.

    `cut`, pieces and count of each word, is changed. `runs` gives the runs of a word's pieces that an entry can stand
    for; `least_count` is of those that do not overlap. Entries that are `taken` already are left out.

    >>> cut = [(["hyper", "##tens", "##ion"], 6), (["tens", "##ion"], 9), (["hyper", "##tens", "##ive"], 4)]
    >>> _choose(cut, 2, set(), "##", _words)
    {'hypertension': ('hyper', '##tens', '##ion'), 'tension': ('tens', '##ion')}
    """
    # A long word gives pairs only, also when entries have made it shorter.
    runs_of_word = [_pairs if runs is _runs and len(pieces) > LONGEST_WORD else runs for pieces, _ in cut]
    gains: dict[Run, int] = defaultdict(int)
    words_with: dict[Run, set[int]] = defaultdict(set)

    def add_gains(word: int, sign: int) -> None:
        pieces, occurrences = cut[word]
        for run, times in Counter(runs_of_word[word](pieces)).items():
            saved = len(run) - 1 if times == 1 else len(pieces) - len(_replaced(pieces, run, ""))
            gains[run] += sign * occurrences * saved
            words_with[run].add(word)

    for word in range(len(cut)):
        add_gains(word, 1)
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
            add_gains(word, -1)
            cut[word] = _replaced(cut[word][0], run, entry), cut[word][1]
            add_gains(word, 1)
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


def _add_entries(state: dict[str, Any], chosen: Mapping[str, Run], ids: Mapping[str, int]) -> None:
    """Add the entries to a model as `tokenizers` writes it to JSON; `ids` are those of the tokenizer, new ones too."""
    if state["type"] != "Unigram":
        state["vocab"] = dict(ids)  # with added tokens: `tokenizers` renumbers those that the model lacks
        if state["type"] == "BPE":
            state["merges"] += [list(run) for run in chosen.values()]
        return
    listed, tokens = state["vocab"], {number: token for token, number in ids.items()}
    scores = dict(map(tuple, listed))
    # Positions in the list are ids, and the tokenizer may have added tokens after it.
    if missing := [number for number in range(len(listed), max(tokens)) if number not in tokens]:
        raise ValueError(
            f"tokenizer has no token of id {missing[0]}, but larger ids: such a Unigram model is not extended."
        )
    listed += [[tokens[number], FILLER_SCORE] for number in range(len(listed), max(tokens) + 1)]
    for entry, run in chosen.items():
        scores[entry] = sum(scores[piece] for piece in run) + SCORE_MARGIN * (len(run) - 1)
        listed[ids[entry]] = [entry, scores[entry]]


def _with_model(
    tokenizer: PreTrainedTokenizerBase, state: dict[str, Any], replaced: set[int]
) -> PreTrainedTokenizerBase:
    """Return the tokenizer with another model, through its files, and without the added tokens of `replaced` ids."""
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        file = Path(folder, "tokenizer.json")
        content = json.loads(file.read_text(encoding="utf-8"))
        added = [token for token in content["added_tokens"] if token["id"] not in replaced]
        changed = {**content, "model": state, "added_tokens": added}
        file.write_text(json.dumps(changed, ensure_ascii=False), encoding="utf-8")
        settings = Path(folder, "tokenizer_config.json")
        fields = json.loads(settings.read_text(encoding="utf-8"))
        for token_id in replaced:
            fields.get("added_tokens_decoder", {}).pop(str(token_id), None)
        settings.write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
        return type(tokenizer).from_pretrained(folder)


@torch.no_grad()
def add_entries(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Mapping[int, Sequence[int]]
) -> None:
    """Make the rows of new entries the mean of the rows of the pieces that they replace, in place.

    That is for word embeddings, and the decoder of an MLM head with its bias. Before training, a new entry is then
    about as likely as its pieces were (transformers' `mean_resizing` draws new rows from the distribution of all old
    ones). Rows that pad the vocabulary are 0, and their biases 20 below the lowest one: they take no probability.

    Args:
        model (`PreTrainedModel`): A model of this package, or of transformers.
        tokenizer (`PreTrainedTokenizerBase`): The extended one. The model gets as many rows, or keeps those that it
            has if they are more, rounded up to a multiple of 64.
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
    needed = max(padded_vocab_size(tokenizer), -(-rows // MULTIPLE) * MULTIPLE) if max(pieces) >= rows else rows
    if needed > rows:
        model.resize_token_embeddings(needed, mean_resizing=False)
    padding = torch.tensor([row for row in range(rows, needed) if row not in pieces], dtype=torch.long)
    words, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    tables = [words.weight] if decoder is None else [words.weight, decoder.weight, decoder.bias]
    old = [torch.tensor(ids, device=words.weight.device) for ids in pieces.values()]
    for table in {id(table): table for table in tables if table is not None}.values():
        # Padding must not take probability from tokens, of which a trained model has few that are likely.
        table.index_fill_(0, padding.to(table.device), 0.0 if table.dim() > 1 else float(table[:rows].min()) - 20.0)
        means = torch.stack([table.index_select(0, ids).mean(dim=0) for ids in old])
        table.index_copy_(0, torch.tensor(list(pieces), device=table.device), means)


def compare_tokens(
    before: PreTrainedTokenizerBase, extended: ExtendedVocabulary, lines: Sequence[str]
) -> dict[str, Any]:
    """Tokenize lines with the old and the extended tokenizer, without special tokens.

    Returns:
        `dict[str, Any]`: Words between white space, characters, `tokens_before` and `tokens_after`; `otherwise_cut`,
            the share of words with a token that is neither as before nor a new entry in place of its pieces.

    Raises:
        ValueError: If there is no word.
    """
    tokens_before = tokens_after = words = otherwise = 0
    for begin in range(0, len(lines), LINES_PER_BATCH):
        batch = [*map(replace_lone_surrogates, lines[begin : begin + LINES_PER_BATCH])]
        for old, new in zip(_tokens_of_words(before, batch), _tokens_of_words(extended.tokenizer, batch), strict=True):
            tokens_before += sum(map(len, old))
            tokens_after += sum(map(len, new))
            words += len(old)
            spelled = ([piece for token in word for piece in extended.pieces.get(token, [token])] for word in new)
            otherwise += sum(pieces != word for pieces, word in zip(spelled, old, strict=True))
    if not words:
        raise ValueError("the text is empty: give lines with words.")
    return {
        "words": sum(len(line.split()) for line in lines),
        "characters": sum(map(len, lines)),
        "tokens_before": tokens_before,
        "tokens_after": tokens_after,
        "otherwise_cut": otherwise / words,
    }


def _tokens_of_words(tokenizer: PreTrainedTokenizerBase, lines: Sequence[str]) -> list[list[list[int]]]:
    """Return the token ids of each line by word, as normalizer, added tokens and pre-tokenizer divide it."""
    encodings = tokenizer(list(lines), add_special_tokens=False, verbose=False).encodings
    in_words = (groupby(zip(line.word_ids, line.ids, strict=True), operator.itemgetter(0)) for line in encodings)
    return [[[token for _, token in word] for _, word in words] for words in in_words]


def extension_tables(report: Mapping[str, Any]) -> str:
    """Return the report of an extension as tables."""
    facts = [
        ("entries", f"{report['entries']:,}, {len(report['added']):,} of them new"),
        ("rows of the model", f"{report['rows']:,}"),
        ("first new ones", ", ".join(report["added"][:8])),
        *reading_rows(report["reading"]),
    ]
    rows = [("tokens per word", "before", "after", "tokens", "words tokenized differently")]
    for name, text in (
        ("text, held out" if report["is_held_out"] else "text", report["text"]),
        ("other text", report["kept"]),
    ):
        if text is not None:
            per_word = (f"{text[tokens] / max(text['words'], 1):.3f}" for tokens in ("tokens_before", "tokens_after"))
            rows.append((name, *per_word, f"{-_saved(text):+.1%}", f"{text['otherwise_cut']:.2%}"))
    return "\n".join([text_table(facts), text_table(rows, "<>")])


def _saved(text: Mapping[str, Any]) -> float:
    return 1 - text["tokens_after"] / text["tokens_before"]


def extension_warnings(report: Mapping[str, Any]) -> list[str]:
    """Return lines about likely problems, each with the remedy."""
    warnings, number, saved = [], report["settings"]["add"], _saved(report["text"])
    if len(report["added"]) < number:
        warnings.append(
            f"the text gave {len(report['added']):,} new entries of {number:,}: no other words, or pieces in long "
            "ones, occur often enough. Give more text, or use the tokenizer as it is."
        )
    if saved < FEW_SAVED:
        warnings.append(
            f"the text has {saved:.1%} fewer tokens: the old vocabulary fits it. Train with the old tokenizer, or add "
            "more entries."
        )
    return [f"warning: {warning}" for warning in warnings]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of this package or of transformers, or a tokenizer alone."""

    tokenizer: PreTrainedTokenizerBase
    # By folder: the model, `""`, and those that it was trained with. Empty: a tokenizer alone.
    models: Mapping[str, PreTrainedModel] = field(default_factory=dict)
    auto_class: str = "AutoTokenizer"  # what loads it, such as `AutoModelForMaskedLM`
    source: str = ""  # of the model, in a folder or on the Hub
    record: TrainingRecord = field(default_factory=TrainingRecord)  # of its training

    @classmethod
    def of(cls, source: str, option: str) -> "Checkpoint":
        """Open a folder or a name on the Hub; errors name the option.

        Raises:
            ValueError: If there is no tokenizer with a tokenizer.json, or it has tokens for which the model has no
                rows; if the model is of another family or not complete, or its head is not known.
        """
        is_alone = Path(source).is_dir() and not Path(source, "config.json").is_file()
        config = None if is_alone else read_config(source, option)
        tokenizer = load_tokenizer(source, option, config)
        check_offsets(tokenizer, option, "use hf-encoders adapt with its own entries")
        if config is None:
            return cls(tokenizer)
        check_rows(tokenizer, config, f"{option} {source!r}")
        try:
            head = saved_head(config)
            models = {"": load_source(source, head)}
            for folder in config.SUBMODELS:
                if Path(source, folder).is_dir():
                    models[folder] = load_source(Path(source, folder), saved_head(read_config(Path(source, folder))))
                elif optional_file(source, f"{folder}/config.json"):
                    raise ValueError(f"its {folder} is extended too: `hf download {source} --local-dir DIR`.")
            return cls(tokenizer, models, head, source, TrainingRecord.load(source))
        except ValueError as error:
            raise ValueError(f"{option} {source!r}: {error}") from error

    @property
    def unused_weights(self) -> list[str]:
        """Names of weights of the checkpoint that the class of the model does not have."""
        return sorted(self.models[""].unused_head_weights) if self.models else []

    def save(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Save the models with an extended tokenizer, and what is true of them with other entries too.

        That is no losses and no figures; `hf-encoders adapt` reads the objective from the training record.
        """
        for name, model in self.models.items():
            model.save_pretrained(folder / name)
        save_tokenizer(tokenizer, folder)
        if self.models:
            names = ("objectives", "language", "license", "fills_masks")
            kept = {name: getattr(self.record, name) for name in names}
            TrainingRecord(**kept, base_model=name_of_checkpoint(self.source)).save(folder)
            copy_modules(self.source, folder)
