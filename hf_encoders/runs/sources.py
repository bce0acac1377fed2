"""The documents of a run by source: examples, held-out documents, unigram baselines."""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.arrow_file import COLUMN
from hf_encoders.corpus.documents import read_documents
from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.named_sources import UNNAMED, in_words, languages_of, named_paths
from hf_encoders.corpus.parallel import parallel_languages
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport, cross_entropy, token_counts
from hf_encoders.corpus.sampling import Sampling
from hf_encoders.corpus.segmentation import splitter_for
from hf_encoders.corpus.settings import SHARDS, OtherSettingsError, tokenizer_fingerprint
from hf_encoders.corpus.similar_words import (
    SIMILAR_WORDS_FILE,
    SimilarWords,
    build_similar_words,
    describe_similar_words,
    join_similar_words,
)
from hf_encoders.corpus.text_files import has_text, text_files
from hf_encoders.corpus.tokenized import split_train_validation
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.examples import EpochDataset
from hf_encoders.objectives.masker import PREPARED_BY
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.objectives.objective import Objective, get_objective
from hf_encoders.publishing.files import RUN_FILE, save_tokenizer
from hf_encoders.publishing.secrets import base_name
from hf_encoders.runs.phases import RunExamples
from hf_encoders.runs.recipe import Recipe, reads_languages
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.writing import read_json, replaced_folder


# A corpus of a run, and the folders that it is from; without folders, that of the documents' file.
Corpus = tuple[datasets.Dataset, Sequence[Path]]
DECODED_SENTENCES = 20_000  # most of a source whose bytes are counted


@dataclass(frozen=True)
class Source:
    """Prepared documents of one source of a run.

    Args:
        documents (`datasets.Dataset`): Tokenised documents.
        languages (`tuple[str, ...]`): Language of the text; of parallel text both, that of the first sentence first.
        folders (`tuple[Path, ...]`): The folders of the prepared corpora that the documents are from.
        option (`str`, *optional*, defaults to `"--corpus"`): What messages call the source.
    """

    documents: datasets.Dataset
    languages: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    option: str = "--corpus"

    @property
    def is_parallel(self) -> bool:
        """Whether documents are pairs of a sentence and its translation."""
        return len(self.languages) > 1

    def examples(
        self, objective: Objective, max_length: int, options: Mapping[str, Any], **draws: Any
    ) -> EpochDataset:
        """The examples of an objective; `options` of a recipe are those of running text."""
        if self.is_parallel:
            return objective.make_parallel_examples(self.documents, max_length, self.languages, **draws)
        return objective.make_examples(self.documents, max_length, **options, **draws)

    def divided(self, objective: Objective, validation_share: float, seed: int) -> "tuple[Source, Source]":
        """Documents to train on, and to evaluate on.

        Raises:
            ValueError: if there are too few.
        """
        least = objective.least_documents
        if len(self.documents) < 2 * least:
            raise ValueError(
                f"{self.option} holds {len(self.documents)} document(s), and {objective.name} "
                f"needs {2 * least}: {least} to train on and {least} to evaluate on. Separate documents by blank "
                "lines."
            )
        share = max(validation_share, least / len(self.documents))
        parts = split_train_validation(self.documents, validation_share=share, seed=seed)
        return tuple(replace(self, documents=part) for part in parts)


Sources = dict[str, Source]  # by name, or one under `UNNAMED`
Documents = datasets.Dataset | Sources  # a dataset is the documents of one source without a name


def named_sources(documents: Documents) -> Sources:
    """Documents as sources."""
    return documents if isinstance(documents, dict) else {UNNAMED: Source(documents, ("en",))}


def check_languages(config: EncoderConfig, sources: Sources) -> None:
    """Raise ValueError if a model with language embeddings lacks the language of a source."""
    if config.languages is None:
        return
    known = ", ".join(config.languages) or "unnamed languages"
    if UNNAMED in sources:
        raise ValueError(
            f"model: it has embeddings of {known}, and --corpus names no source, whose language the model needs: "
            "give NAME=PATH."
        )
    for source in sources.values():
        if unknown := set(source.languages) - config.languages.keys():
            raise ValueError(
                f"model: it has embeddings of {known}, and none of {min(unknown)!r}, the language of {source.option}: "
                "give one that it has, with --language; or, in a recipe, add it or leave out the fields of languages."
            )


def corpora_of(sources: Sources) -> list[Corpus]:
    """The documents of all sources, and where they are from."""
    return [(source.documents, source.folders) for source in sources.values()]


def divided(sources: Sources, objective: Objective, validation_share: float, seed: int) -> tuple[Sources, Sources]:
    """Documents of each source to train on, and to evaluate on.

    Raises:
        ValueError: for a source of too few documents.
    """
    training, held_out = {}, {}
    for name, source in sources.items():
        training[name], held_out[name] = source.divided(objective, validation_share, seed)
    return training, held_out


def examples_of(
    name: str, source: Source, objective: Objective, max_length: int, options: Mapping[str, Any], **draws: Any
) -> EpochDataset:
    """`Source.examples`, with the source's name in errors."""
    try:
        return source.examples(objective, max_length, options, **draws)
    except ValueError as error:
        if name == UNNAMED:
            raise
        raise ValueError(f"{source.option}: {error}") from error


def mixed(
    examples: Mapping[str, EpochDataset],
    sources: Mapping[str, Source],
    sampling: Sampling,
    seed: int,
    redraw: bool = True,
) -> EpochDataset:
    """The datasets of sources with names as one, whose examples know their language; the only one without a name."""
    if UNNAMED in examples:
        return examples[UNNAMED]
    languages = {name: sources[name].languages[0] for name in examples}
    return MixedExamples(examples, sampling.weights, sampling.alpha, languages, seed=seed, redraw=redraw)


def unigrams(
    examples: RunExamples, evaluated: Any, documents: Documents, held_out: Documents, vocab_size: int
) -> tuple[float, dict[str, float]]:
    """Unigram cross-entropy in nats per held-out token: over all sources, and of each one with a name.

    A source's is under its own token frequencies. That over all is under those of the mixture of the last phase, of
    the held-out tokens that are evaluated.
    """
    sources, others = named_sources(documents), named_sources(held_out)
    counts = {name: token_counts(source.documents, vocab_size) for name, source in sources.items()}
    of_source = {name: cross_entropy(counts[name], others[name].documents) for name in sources}
    if UNNAMED in sources:
        return of_source[UNNAMED], {}
    passes = examples.phases[-1].dataset.passes
    mixture = sum(passes[name] * counts[name] for name in sources)
    nats, weights = [], []
    for name, source in others.items():
        nats.append(cross_entropy(mixture, source.documents))
        share = len(evaluated[name]) / len(evaluated[name].dataset)
        weights.append(share * len(FlatCorpus.of(source.documents).tokens))
    return float(np.average(nats, weights=weights)), of_source


def bytes_per_token(sources: Sources, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Mean UTF-8 bytes of a token by source, of evenly spread sentences as the tokenizer decodes them.

    Sentences are the same with another tokenizer, so losses per byte can be compared where losses per token cannot.
    """
    found = {}
    for name, source in sources.items():
        store = FlatCorpus.of(source.documents)
        spread = np.linspace(0, store.num_sentences - 1, min(store.num_sentences, DECODED_SENTENCES)).astype(int)
        bounds = zip(store.sentence_offsets[spread], store.sentence_offsets[spread + 1], strict=True)
        sentences = [store.tokens[begin:end].tolist() for begin, end in bounds]
        num_bytes = sum(len(text.encode()) for text in tokenizer.batch_decode(sentences))
        found[name] = num_bytes / sum(map(len, sentences))
    return found


def corpora_facts(documents: Documents) -> dict[str, Any]:
    """What identifies the text of a run, for `run.json`."""
    sources = named_sources(documents)
    if UNNAMED in sources:
        return {"corpus": sources[UNNAMED].documents._fingerprint}
    return {
        "corpus": {name: source.documents._fingerprint for name, source in sources.items()},
        "languages": {name: list(source.languages) for name, source in sources.items()},
    }


# `--push-to-hub` uploads the output folder except names with a leading underscore, and the text must stay private.
CORPUS = "_corpus"
BYTES_PER_TOKEN = 4  # of UTF-8, about, in English and Chinese text
TOKENIZER_RECIPE = "recipe.json"  # in the folder of a tokenizer trained here: its options and text
FILES = "files"  # in it: size and modification time of the files of the text


@dataclass(frozen=True)
class CorpusPaths:
    """Paths and languages of the text of a run, by source; `of_words` makes one.

    Args:
        paths (`dict[str, list[str]]`): Text, prepared corpora, or folders of them.
        languages (`dict[str, str]`): Language codes of running text.
        parts (`dict[str, list[Path]]`): The prepared corpora among the paths; empty for text.
        guessed (`list[str]`): Sources of which nothing says the language, which `languages` takes for English.
        options (`dict[str, str]`): What messages call the text of a source.
    """

    paths: dict[str, list[str]]
    languages: dict[str, str]
    parts: dict[str, list[Path]]
    guessed: list[str]
    options: dict[str, str]

    @classmethod
    def of_words(
        cls, corpus: list[str], language: list[str], options: Mapping[str, str] | None = None
    ) -> "CorpusPaths":
        """The meaning of `--corpus` and `--language`; `options` of sources that other options name.

        Raises:
            ValueError: for names and languages as `named_paths` and `languages_of`; and for a path that does not
                exist, does not end like text, or is text beside a prepared corpus of the same source.
        """
        paths = named_paths(corpus, "--corpus")
        said = languages_of(language, paths, None)
        languages = {name: code or "en" for name, code in said.items()}
        for code in languages.values():
            splitter_for(code)  # refuses an invalid language code
        options = {name: f"--corpus {name}=..." if name else "--corpus" for name in paths} | dict(options or {})
        parts = {name: check_source(options[name], given) for name, given in paths.items()}
        guessed = [
            name for name, code in said.items() if code is None and not any(map(parallel_languages, parts[name]))
        ]
        return cls(paths, languages, parts, guessed, options)

    @property
    def are_named(self) -> bool:
        """Whether the sources have names."""
        return UNNAMED not in self.paths

    @property
    def is_prepared(self) -> bool:
        """Whether all of the text is prepared."""
        return all(self.parts.values())

    def tokens(self, name: str) -> float:
        """Number of tokens of a source: of prepared corpora, or estimated from the bytes of text."""
        if self.parts[name]:
            return sum(CorpusReport.load(part).statistics.tokens for part in self.parts[name])
        files = [file for path in self.paths[name] for file in text_files(Path(path))]
        return sum(file.stat().st_size for file in files) / BYTES_PER_TOKEN

    @property
    def shown(self) -> str:
        """The names of files and folders, without those of the folders that they are in."""
        return in_words({name: ", ".join(map(base_name, paths)) for name, paths in self.paths.items()})

    def check_recipe(self, recipe: Recipe, given: Mapping[str, Any] | None = None) -> None:
        """Refuse a recipe that says how often sources are drawn for sources without names or of other names.

        Also a name that metrics have already, and a source without a language for a model with language embeddings;
        `given` are fields of the model that are not the recipe's, such as those of a checkpoint.
        """
        for term in get_objective(recipe.objective).terms:
            taken = {
                term.name: term.items,
                **{f"{name}_{term.name}": f"{term.items} of {name}" for name in self.paths},
            }
            for name in taken.keys() & self.paths.keys():
                raise ValueError(f"{self.options[name]}: eval_{name}_loss is that of {taken[name]}: rename it.")
        if len(self.paths) > 1 and self.guessed and reads_languages(recipe.config_class, given):
            name = self.guessed[0]
            raise ValueError(
                f"--language is missing for {self.options[name]}, and {recipe.family} has embeddings of languages: "
                f"give --language {name}=CODE."
            )
        for sampling in recipe.samplings:
            if sampling is None:
                continue
            if not self.are_named:
                raise ValueError(
                    "--corpus names no source, and sources: of the recipe says how often each is drawn: give "
                    "NAME=PATH, also for one alone."
                )
            sampling.check_names(self.paths)
        if not self.is_prepared:
            check_text(recipe)
        if recipe.tokenizer.sampling_alpha != 1 and not self.are_named:
            raise ValueError(
                "--corpus names no source, and tokenizer: sampling_alpha of the recipe says how much of each is used: "
                "give NAME=PATH, also for one alone."
            )


def check_source(option: str, paths: list[str]) -> list[Path]:
    """The prepared corpora among the paths of a source, or in folders of them; empty if all are text."""
    prepared = {path: prepared_parts(path) for path in map(Path, paths)}
    parts = [part for found in prepared.values() for part in found]
    for path, found in prepared.items():
        is_text = not found or (found != [path] and has_text(path))
        if is_text and parts:
            raise ValueError(
                f"{option}: {path} holds text, and {parts[0]} is a prepared corpus: give one or the other, or prepare "
                "all of the text with `hf-encoders corpus --input ...`."
            )
        if is_text:
            text_files(path, option=f"{option}: ")
    return parts


def prepared_parts(path: Path) -> list[Path]:
    """The folder, if it is a prepared corpus, or the prepared corpora in it, sorted."""
    if (path / REPORT_FILE).is_file():
        return [path]
    return sorted(report.parent for report in path.glob(f"*/{REPORT_FILE}"))


def open_parts(parts: list[Path]) -> datasets.Dataset:
    """Several prepared corpora as one; ValueError if some have word starts and others do not."""
    opened = [datasets.load_from_disk(str(part)) for part in parts]
    other = next((i for i, one in enumerate(opened) if one.column_names != opened[0].column_names), None)
    if other is not None:
        raise ValueError(
            f"--corpus: {parts[0]} and {parts[other]} differ in their columns ({', '.join(opened[0].column_names)}; "
            f"{', '.join(opened[other].column_names)}): prepare them alike."
        )
    # A part of more than 2^31 tokens has another list type, of offsets that do not fit into that of the others.
    large = next((one.features for one in opened if isinstance(one.features[COLUMN], datasets.LargeList)), None)
    return datasets.concatenate_datasets(opened if large is None else [one.cast(large) for one in opened])


def open_sources(
    recipe: Recipe, corpus: CorpusPaths, tokenizer_name: str | None, output: Path
) -> tuple[PreTrainedTokenizerBase, Sources]:
    """The tokenizer of a run and its sources; for text, both are made in the output folder.

    Each source with a name is prepared in a folder of its name below that of the corpus.

    Args:
        recipe (`Recipe`): Options of the tokenizer that is trained on text if `tokenizer_name` is None.
        corpus (`CorpusPaths`): Paths and languages.
        tokenizer_name, output: As the options of `hf-encoders pretrain`.

    Raises:
        ValueError: if a prepared corpus has no or another tokenizer, or its columns are not those of the others.
    """
    prepared = [part for parts in corpus.parts.values() for part in parts]
    if tokenizer_name is None and prepared:
        raise ValueError(f"--tokenizer is missing: give the one that the corpus {prepared[0]} was made with.")
    is_used = (output / RUN_FILE).is_file()
    if tokenizer_name is None:
        tokenizer = trained_tokenizer(recipe, corpus, output / "tokenizer", is_used)
    else:
        tokenizer = load_tokenizer(tokenizer_name, "--tokenizer")
    fingerprint = tokenizer_fingerprint(tokenizer) if prepared else None
    turns_column = get_objective(recipe.objective).turns_column
    for part in prepared:
        settings = CorpusReport.load(part).settings
        if turns_column and not settings.get("turns_column"):
            raise ValueError(
                f"objective {recipe.objective}: the corpus {part} is of text, not of dialogues: prepare them with "
                "hf-encoders corpus --turns-column."
            )
        if settings["tokenizer"]["fingerprint"] != fingerprint:
            raise ValueError(
                f"The corpus {part} was made with another tokenizer than {tokenizer_name!r}: prepare it again with "
                "this one, or give its own with --tokenizer."
            )
    found = {name: _opened(corpus, name, tokenizer, output, turns_column, is_used) for name in corpus.paths}
    for name, language in corpus.languages.items():
        if not corpus.parts[name] and (warning := warning_of_words(recipe, language)):
            print(f"warning: {f'{name}: ' * bool(name)}{warning}", flush=True)
    first, *others = found.values()
    columns = first.documents.column_names
    for other in others:
        if (names := other.documents.column_names) != columns:
            raise ValueError(
                f"{first.option} and {other.option} differ in their columns ({', '.join(columns)}; "
                f"{', '.join(names)}): prepare them alike."
            )
    if needs_similar_words(recipe):
        for name, source in found.items():
            if not corpus.parts[name]:
                make_similar_words(source.documents, tokenizer, *source.folders)
    return tokenizer, found


def remove_other_sources(corpus: CorpusPaths, output: Path) -> None:
    """Remove sources of other names that a plan or a killed command left, and that no run has used.

    In one process only, before the others: in a run of several, the first goes on to divide the corpus in this folder.
    """
    if (output / RUN_FILE).is_file():
        return
    for path in (output / CORPUS).glob("*"):
        if path.is_dir() and not path.match(SHARDS) and path.name not in corpus.paths:
            shutil.rmtree(path)


def _opened(
    corpus: CorpusPaths,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    turns_column: str | None,
    is_used: bool,
) -> Source:
    """One source, which is prepared if it is text; `is_used` is whether a run has read what lies in the folder."""
    parts = corpus.parts[name]
    if parts:
        pairs = {parallel_languages(part) for part in parts}
        if len(pairs) > 1:
            kinds = ", ".join("-".join(pair) if pair else "running text" for pair in sorted(pairs, key=str))
            raise ValueError(f"--corpus: the parts of {parts[0].parent} are of different kinds ({kinds}): name each.")
        languages = pairs.pop() or (corpus.languages[name],)
        return Source(open_parts(parts), languages, tuple(parts), corpus.options[name])
    folder = output / CORPUS / name if name else output / CORPUS
    if not name and (earlier := sorted(file.parent.name for file in folder.glob(f"*/{REPORT_FILE}"))):
        raise ValueError(
            f"--output {str(output)!r} holds a run on several texts ({', '.join(earlier)}): give the same ones, "
            "another --output, or --overwrite."
        )
    paths = list(map(Path, corpus.paths[name]))
    options = {"sentence_splitter": splitter_for(corpus.languages[name]), "turns_column": turns_column}
    try:
        try:
            report = prepare_corpus(paths, folder, tokenizer, **options)
        except OtherSettingsError:
            if is_used:
                raise
            print(
                f"{folder} was prepared from other text or settings, and no run has used it: it is rebuilt.",
                flush=True,
            )
            report = prepare_corpus(paths, folder, tokenizer, overwrite=True, **options)
    except ValueError as error:
        raise ValueError(f"{corpus.options[name]}: {error}") from error
    for warning in report.warnings:
        print(f"warning: {f'{name}: ' * bool(name)}{warning}", flush=True)
    return Source(datasets.load_from_disk(str(folder)), (corpus.languages[name],), (folder,), corpus.options[name])


def trained_tokenizer(recipe: Recipe, corpus: CorpusPaths, directory: Path, is_used: bool) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, trained on the text once and kept in the run's folder.

    Train it again where text or settings differ, unless a run has used it.

    Raises:
        ValueError: if it was used, or the folder is not of this command.
    """
    text = {name: [str(Path(path).resolve()) for path in paths] for name, paths in corpus.paths.items()}
    text = text if corpus.are_named else text[UNNAMED]
    made_of = {"family": recipe.family, **dataclasses.asdict(recipe.tokenizer), "text": text}
    files = [file for paths in corpus.paths.values() for path in paths for file in text_files(Path(path))]
    state = {FILES: [[file.stat().st_size, file.stat().st_mtime_ns] for file in files]}
    note = directory / TOKENIZER_RECIPE
    if directory.exists():
        if not note.is_file():
            raise ValueError(
                f"{directory} was not made by this command: give it as --tokenizer, or give another --output."
            )
        noted = read_json(note, f"give {directory} as --tokenizer, or remove it.")
        if is_used and {name: value for name, value in noted.items() if name != FILES} != made_of:
            raise ValueError(f"{directory} was trained for another run: give another --output, or --overwrite.")
        if is_used or noted == made_of | state:
            return load_tokenizer(str(directory))
        print(f"{directory} was trained on other text or settings, and no run has used it: it is rebuilt.", flush=True)
    print(f"Training a tokenizer of {recipe.tokenizer.vocab_size:,} entries ({directory})", flush=True)
    turns_field, sentences = get_objective(recipe.objective).turns_column, {}
    for name, paths in corpus.paths.items():
        splitter = splitter_for(corpus.languages[name])
        documents = read_documents(paths, sentence_splitter=splitter, turns_field=turns_field)
        sentences[name] = (sentence for document in documents for sentence in document)
    tokenizer = recipe_tokenizer(recipe, sentences if corpus.are_named else sentences[UNNAMED])
    with replaced_folder(directory) as unfinished:
        save_tokenizer(tokenizer, unfinished)
        (unfinished / TOKENIZER_RECIPE).write_text(json.dumps(made_of | state, indent=1) + "\n", encoding="utf-8")
    return tokenizer


def recipe_tokenizer(
    recipe: Recipe, sentences: Iterable[str] | Mapping[str, Iterable[str]]
) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, trained on sentences, or on those of several sources."""
    return train_tokenizer(
        sentences, recipe.config_class, max_length=recipe.longest, **dataclasses.asdict(recipe.tokenizer)
    )


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
            if not has_level(FlatCorpus.of(documents), UnitStart[level.upper()]):
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


def has_level(store: FlatCorpus, level: UnitStart) -> bool:
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
