"""The text of a run: from the words of `--corpus` to prepared sources, their tokenizer, and what masking needs."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.documents import read_documents, splitter_for
from hf_encoders.corpus.flat_corpus import WORD_STARTS, FlatCorpus
from hf_encoders.corpus.parallel import parallel_languages
from hf_encoders.corpus.preparation import prepare_corpus
from hf_encoders.corpus.report import REPORT_FILE, CorpusReport, OtherSettingsError, token_counts
from hf_encoders.corpus.similar_words import (
    SIMILAR_WORDS_FILE,
    SimilarWords,
    build_similar_words,
    describe_similar_words,
    join_similar_words,
)
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint
from hf_encoders.corpus.text_files import UNNAMED, Sampling, has_text, in_words, languages_of, named_paths, text_files
from hf_encoders.corpus.tokenized import split_train_validation
from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.corpus.word_starts import UnitStart
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.dataset import EpochDataset
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.objectives.objective import Objective, get_objective
from hf_encoders.objectives.units import PREPARED_BY
from hf_encoders.publishing.files import RUN_FILE, save_tokenizer
from hf_encoders.publishing.secrets import base_name
from hf_encoders.runs.recipe import Recipe, config_of_fields
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.writing import UNFINISHED, read_json, replaced_folder


DECODED_SENTENCES = 20_000  # most of a source whose bytes are counted
# `--push-to-hub` uploads the output folder except names with a leading underscore, and the text must stay private.
CORPUS = "_corpus"
BYTES_PER_TOKEN = 4  # of UTF-8, about, in English and Chinese text
TOKENIZER_RECIPE = "recipe.json"  # in the folder of a tokenizer trained here: its options and text
FILES = "files"  # in it: size and modification time of the files of the text
UNSPACED_LANGUAGES = ("zh", "ja", "th", "lo", "km", "my")  # whose scripts `WordStarts` takes token by token


@dataclass(frozen=True)
class Source:
    """Text of one source of a run: its paths, and once it is opened, its tokenised documents.

    Args:
        documents (`datasets.Dataset`, *optional*): Tokenised documents; None before `Sources.open`.
        languages (`tuple[str, ...]`): Language of the text; of parallel text both, that of the first sentence first.
        folders (`tuple[Path, ...]`): Of the prepared corpora that the documents are from; none for text.
        paths (`tuple[str, ...]`): As they were given.
        option (`str`, *optional*, defaults to `"--corpus"`): What messages call the source.
        is_guessed (`bool`): Whether nothing says the language, which is taken for English.
    """

    documents: datasets.Dataset | None
    languages: tuple[str, ...] = ("en",)
    folders: tuple[Path, ...] = ()
    paths: tuple[str, ...] = ()
    option: str = "--corpus"
    is_guessed: bool = False

    @property
    def is_parallel(self) -> bool:
        """Return whether documents are pairs of a sentence and its translation."""
        return len(self.languages) > 1

    @property
    def files(self) -> list[Path]:
        """The files of text."""
        return text_files(self.paths)

    @property
    def tokens(self) -> float:
        """Number of tokens: of prepared corpora, or estimated from the bytes of text."""
        if self.folders:
            return sum(CorpusReport.load(folder).statistics.tokens for folder in self.folders)
        return sum(file.stat().st_size for file in self.files) / BYTES_PER_TOKEN

    def examples(
        self, objective: Objective, max_length: int, options: Mapping[str, Any], **draws: Any
    ) -> EpochDataset:
        """Return the examples of an objective; `options` of a recipe are those of running text."""
        try:
            if self.is_parallel:
                return objective.make_parallel_examples(self.documents, max_length, self.languages, **draws)
            return objective.dataset_class(self.documents, max_length, **options, **draws)
        except ValueError as error:
            if self.option == "--corpus":
                raise
            raise ValueError(f"{self.option}: {error}") from error


class Sources(dict[str, Source]):
    """The text of a run: its sources by name, or one without a name under `UNNAMED`."""

    @classmethod
    def from_words(
        cls, corpus: Sequence[str], language: Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> "Sources":
        """Return what `--corpus` and `--language` say; `options` are of sources that other options name.

        Raises:
            ValueError: for a wrong name or language, a path that does not exist or is no text, and text next to a
                prepared corpus of the same source.
        """
        paths = named_paths(corpus, "--corpus")
        sources = cls()
        for name, code in languages_of(language, paths, None).items():
            splitter_for(code or "en")  # refuses an invalid language code
            option = (options or {}).get(name, f"--corpus {name}=..." if name else "--corpus")
            folders = prepared_corpora(option, paths[name])
            pairs = {parallel_languages(folder) for folder in folders}
            if len(pairs) > 1:
                kinds = ", ".join("-".join(pair) if pair else "running text" for pair in sorted(pairs, key=str))
                raise ValueError(
                    f"{option}: the parts of {folders[0].parent} are of different kinds ({kinds}): name each."
                )
            pair = pairs.pop() if pairs else None
            is_guessed = code is None and pair is None
            sources[name] = Source(
                None, pair or (code or "en",), tuple(folders), tuple(paths[name]), option, is_guessed
            )
        return sources

    @classmethod
    def of(cls, documents: "datasets.Dataset | Mapping[str, Source]") -> "Sources":
        """Return documents, of one source without a name or of several, as sources."""
        return cls(documents if isinstance(documents, Mapping) else {UNNAMED: Source(documents)})

    @property
    def are_named(self) -> bool:
        """Return whether the sources have names."""
        return UNNAMED not in self

    @property
    def have_pairs(self) -> bool:
        """Return whether a source is parallel text."""
        return any(source.is_parallel for source in self.values())

    @property
    def are_prepared(self) -> bool:
        """Return whether all of the text is prepared."""
        return all(source.folders for source in self.values())

    @property
    def shown(self) -> str:
        """The names of files and folders, without those of the folders that they are in."""
        return in_words({name: ", ".join(map(base_name, source.paths)) for name, source in self.items()})

    def check_recipe(self, recipe: Recipe, initial: Mapping[str, Any] | None = None) -> None:
        """Refuse text that does not fit a recipe: its names, languages, and units that it does not mark.

        `initial` are fields of the model that a checkpoint decides.

        Raises:
            ValueError: naming the option of the source, or the key of the recipe.
        """
        for term in get_objective(recipe.objective).terms:
            taken = {term.name: term.items, **{f"{name}_{term.name}": f"{term.items} of {name}" for name in self}}
            for name in taken.keys() & self.keys():
                raise ValueError(f"{self[name].option}: eval_{name}_loss is that of {taken[name]}: rename it.")
        if initial:
            reads_languages = config_of_fields(recipe.config_class, initial).languages is not None
        else:
            reads_languages = bool(recipe.config_class.language_fields(["en"]))
        guessed = [name for name, source in self.items() if source.is_guessed]
        if len(self) > 1 and guessed and reads_languages:
            raise ValueError(
                f"--language is missing for {self[guessed[0]].option}, and {recipe.family} has embeddings of "
                f"languages: give --language {guessed[0]}=CODE."
            )
        if recipe.needs_named_sources and not self.are_named:
            key = "sources" if any(recipe.samplings) else "tokenizer: sampling_alpha"
            raise ValueError(
                f"--corpus names no source, and {key}: of the recipe says how often each is drawn: give NAME=PATH, "
                "also for one alone."
            )
        for sampling in filter(None, recipe.samplings):
            sampling.check_names(self)
        if (levels := sorted(needed_levels(recipe))) and not self.are_prepared:
            options = " ".join(PREPARED_BY[level] for level in levels)
            raise ValueError(
                f"--corpus is text, and {recipe.name} masks units of {' and '.join(levels)}, which text does not "
                f"mark: make a tokenizer, and a corpus with `hf-encoders corpus {options}` (for Chinese also "
                "--language zh --word-segmenter jieba), and give both."
            )

    def check_languages(self, config: EncoderConfig) -> None:
        """Raise ValueError if a model with language embeddings lacks the language of a source."""
        if config.languages is None:
            return
        known = ", ".join(config.languages) or "unnamed languages"
        if not self.are_named:
            raise ValueError(
                f"model: it has embeddings of {known}, and --corpus names no source, whose language the model needs: "
                "give NAME=PATH."
            )
        for source in self.values():
            if unknown := set(source.languages) - config.languages.keys():
                raise ValueError(
                    f"model: it has embeddings of {known}, and none of {min(unknown)!r}, the language of "
                    f"{source.option}: give one that it has, with --language; or, in a recipe, add it or leave out "
                    "the fields of languages."
                )

    def divided(self, objective: Objective, validation_share: float, seed: int) -> "tuple[Sources, Sources]":
        """Return documents of each source to train on, and to evaluate on; ValueError where there are too few."""
        training, held_out, least = Sources(), Sources(), objective.least_documents
        for name, source in self.items():
            if (number := len(source.documents)) < 2 * least:
                raise ValueError(
                    f"{source.option} holds {number} document(s), and {objective.name} needs {2 * least}: {least} to "
                    f"train on and {least} to evaluate on. Separate documents by blank lines."
                )
            share = max(validation_share, least / number)
            parts = split_train_validation(source.documents, validation_share=share, seed=seed)
            for sources, part in zip((training, held_out), parts, strict=True):
                sources[name] = replace(source, documents=part)
        return training, held_out

    def mixed(
        self, examples: Mapping[str, EpochDataset], sampling: Sampling | None, seed: int, redraw: bool = True
    ) -> EpochDataset:
        """Return datasets of sources with names as one, whose examples know their language; the only one without."""
        if UNNAMED in examples:
            return examples[UNNAMED]
        sampling = sampling or Sampling()
        languages = {name: self[name].languages[0] for name in examples}
        return MixedExamples(examples, sampling.weights, sampling.alpha, languages, seed=seed, redraw=redraw)

    def facts(self) -> dict[str, Any]:
        """Return what identifies the text of a run, for `run.json`."""
        if not self.are_named:
            return {"corpus": self[UNNAMED].documents._fingerprint}
        return {
            "corpus": {name: source.documents._fingerprint for name, source in self.items()},
            "languages": {name: list(source.languages) for name, source in self.items()},
        }

    def similar_words(self, tokenizer: PreTrainedTokenizerBase) -> SimilarWords:
        """Return the tables of similar words next to the corpora as one; the first that has a word counts."""
        tables = []
        for source in self.values():
            folders = source.folders or {Path(file["filename"]).parent for file in source.documents.cache_files}
            if not folders:
                raise ValueError("documents: a corpus in memory has no table of similar words: use load_from_disk.")
            tables += [SimilarWords.load(folder, tokenizer) for folder in sorted(folders)]
        return join_similar_words(tables)

    def bytes_per_token(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
        """Return the mean UTF-8 bytes of a token by source, of evenly spread sentences as the tokenizer decodes them.

        Sentences are the same with another tokenizer, so losses per byte can be compared where losses per token
        cannot.
        """
        sizes = {}
        for name, source in self.items():
            store = FlatCorpus.of(source.documents)
            number = min(store.num_sentences, DECODED_SENTENCES)
            spread = np.linspace(0, store.num_sentences - 1, number).astype(int)
            bounds = zip(store.sentence_offsets[spread], store.sentence_offsets[spread + 1], strict=True)
            sentences = [store.tokens[begin:end].tolist() for begin, end in bounds]
            num_bytes = sum(len(text.encode()) for text in tokenizer.batch_decode(sentences))
            sizes[name] = num_bytes / sum(map(len, sentences))
        return sizes

    def open(
        self, recipe: Recipe, tokenizer_name: str | None, output: Path
    ) -> "tuple[PreTrainedTokenizerBase, Sources]":
        """Return the tokenizer and the sources with their documents; of text, both are made in the output folder.

        Each source with a name is prepared in a folder of its name below that of the corpus.

        Raises:
            ValueError: if a prepared corpus has no or another tokenizer, or its columns are not those of the others.
        """
        prepared = [folder for source in self.values() for folder in source.folders]
        if tokenizer_name is None and prepared:
            raise ValueError(f"--tokenizer is missing: give the one that the corpus {prepared[0]} was made with.")
        is_used = (output / RUN_FILE).is_file()  # a run has read what lies in the folder
        if tokenizer_name is None:
            tokenizer = trained_tokenizer(recipe, self, output / "tokenizer", is_used)
        else:
            tokenizer = load_tokenizer(tokenizer_name, "--tokenizer")
        turns_column = get_objective(recipe.objective).turns_column
        for folder in prepared:
            settings = CorpusReport.load(folder).settings
            if turns_column and not settings.get("turns_column"):
                raise ValueError(
                    f"objective {recipe.objective}: the corpus {folder} is of text, not of dialogues: prepare them "
                    "with hf-encoders corpus --turns-column."
                )
            if settings["tokenizer"]["fingerprint"] != tokenizer_fingerprint(tokenizer):
                raise ValueError(
                    f"The corpus {folder} was made with another tokenizer than {tokenizer_name!r}: prepare it again "
                    "with this one, or give its own with --tokenizer."
                )
        opened, parts = Sources(self), {}
        for name, source in self.items():
            if not source.folders:
                if warning := warning_of_words(recipe, source.languages[0]):
                    print(f"warning: {f'{name}: ' * bool(name)}{warning}", flush=True)
                folder = prepared_text(name, source, tokenizer, output, turns_column, is_used)
                if needs_similar_words(recipe):
                    make_similar_words(folder, tokenizer)
                opened[name] = replace(source, folders=(folder,))
            parts |= {folder: datasets.load_from_disk(str(folder)) for folder in opened[name].folders}
        first, *others = parts
        for other in others:
            if (names := parts[other].column_names) != (columns := parts[first].column_names):
                raise ValueError(
                    f"--corpus: {first} and {other} differ in their columns ({', '.join(columns)}; "
                    f"{', '.join(names)}): prepare them alike."
                )
        for name, source in opened.items():
            documents = [parts[folder] for folder in source.folders]
            joined = documents[0] if len(documents) == 1 else datasets.concatenate_datasets(documents)
            opened[name] = replace(source, documents=joined)
        return tokenizer, opened

    def remove_others(self, output: Path) -> None:
        """Remove sources of other names that a plan or a killed command left, and that no run has used.

        In one process only, before the others: the first of several then divides the corpus in this folder.
        """
        if (output / RUN_FILE).is_file():
            return
        for path in (output / CORPUS).glob("*"):
            if path.is_dir() and path.name != UNFINISHED and path.name not in self:
                shutil.rmtree(path)


def prepared_corpora(option: str, paths: Sequence[str]) -> list[Path]:
    """Return the prepared corpora among the paths of a source, or in folders of them; none if all are text."""
    corpora_in = {}
    for path in map(Path, paths):
        is_corpus = (path / REPORT_FILE).is_file()
        corpora_in[path] = [path] if is_corpus else sorted(file.parent for file in path.glob(f"*/{REPORT_FILE}"))
    corpora = [corpus for inside in corpora_in.values() for corpus in inside]
    for path, inside in corpora_in.items():
        if inside == [path] or (inside and not has_text(path)):
            continue
        if corpora:
            raise ValueError(
                f"{option}: {path} holds text, and {corpora[0]} is a prepared corpus: give one or the other, or "
                "prepare all of the text with `hf-encoders corpus --input ...`."
            )
        text_files([path], option)  # refuses what is no text
    return corpora


def prepared_text(
    name: str,
    source: Source,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    turns_column: str | None,
    is_used: bool,
) -> Path:
    """Prepare the text of a source in the output folder, and return its folder; it is rebuilt unless a run used it."""
    folder = output / CORPUS / name if name else output / CORPUS
    if not name and (earlier := sorted(file.parent.name for file in folder.glob(f"*/{REPORT_FILE}"))):
        raise ValueError(
            f"--output {str(output)!r} holds a run on several texts ({', '.join(earlier)}): give the same ones, "
            "another --output, or --overwrite."
        )
    paths = list(map(Path, source.paths))
    options = {"sentence_splitter": splitter_for(source.languages[0]), "turns_column": turns_column}
    try:
        try:
            report = prepare_corpus(paths, folder, tokenizer, **options)
        except OtherSettingsError:
            if is_used:
                raise
            print(f"{folder} was prepared from other text or settings, and no run used it: it is rebuilt.", flush=True)
            report = prepare_corpus(paths, folder, tokenizer, overwrite=True, **options)
    except ValueError as error:
        raise ValueError(f"{source.option}: {error}") from error
    for warning in report.warnings:
        print(f"warning: {f'{name}: ' * bool(name)}{warning}", flush=True)
    return folder


def trained_tokenizer(recipe: Recipe, sources: Sources, directory: Path, is_used: bool) -> PreTrainedTokenizerBase:
    """Return the recipe's tokenizer, trained on the text and kept in the run's folder.

    It is trained again where text or settings differ, unless a run has used it; then they are refused.
    """
    text = {name: [str(Path(path).resolve()) for path in source.paths] for name, source in sources.items()}
    made_of = {"family": recipe.family, **dataclasses.asdict(recipe.tokenizer), "text": text}
    stats = [file.stat() for source in sources.values() for file in source.files]
    state = {FILES: [[stat.st_size, stat.st_mtime_ns] for stat in stats]}
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
    for name, source in sources.items():
        splitter = splitter_for(source.languages[0])
        documents = read_documents(list(source.paths), sentence_splitter=splitter, turns_field=turns_field)
        sentences[name] = (sentence for document in documents for sentence in document)
    options = dataclasses.asdict(recipe.tokenizer)
    text = sentences if sources.are_named else sentences[UNNAMED]
    tokenizer = train_tokenizer(text, recipe.config_class, max_length=recipe.longest, **options)
    with replaced_folder(directory) as unfinished:
        save_tokenizer(tokenizer, unfinished)
        (unfinished / TOKENIZER_RECIPE).write_text(json.dumps(made_of | state, indent=1) + "\n", encoding="utf-8")
    return tokenizer


def needs_similar_words(recipe: Recipe) -> bool:
    """Return whether words are replaced by similar ones."""
    return any(masking.similar_replace_probability for masking in recipe.maskings)


def needed_levels(recipe: Recipe) -> set[str]:
    """Return the units longer than words that are masked, `"phrase"` and `"entity"`."""
    return {level for masking in recipe.maskings for level in masking.levels} & set(PREPARED_BY)


def warning_of_words(recipe: Recipe, language: str) -> str | None:
    """Return a warning for text of a language without spaces that the run prepares, where words are masked."""
    if language not in UNSPACED_LANGUAGES or all("word" not in masking.levels for masking in recipe.maskings):
        return None
    return (
        f"{recipe.name} masks words, and {language} is written without spaces, so that each token counts as a word: "
        "prepare a corpus with `hf-encoders corpus --word-segmenter jieba` (in Python, with any), and give it."
    )


def masking_options(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, sources: Sources) -> dict[str, Any]:
    """Return the options of the run's data collator that are about masking, with the data that they need.

    With a schedule of mask rates, evaluation is at the last one.

    Raises:
        ValueError: if a corpus has no table of similar words, or not the units that are masked.
    """
    options = dict(recipe.masking)
    if recipe.mask_rate is not None:
        options["mask_probability"] = recipe.mask_rate(1.0)
    if any(recipe.phase_masking):
        options["phase_masking"] = recipe.phase_masking
    for level in sorted(needed_levels(recipe)):
        for source in sources.values():
            if not has_level(source.documents, UnitStart[level.upper()]):
                raise ValueError(
                    f"masking: the corpus, or a part of it, has no units of level {level!r}, which {recipe.name} "
                    f"masks: prepare it with `hf-encoders corpus {PREPARED_BY[level]} ...`, or choose words."
                )
    if any(masking.frequency_power for masking in recipe.maskings):
        size = max(tokenizer.get_vocab().values()) + 1
        options["token_counts"] = sum(token_counts(source.documents, size) for source in sources.values())
    if needs_similar_words(recipe):
        options["similar_words"] = sources.similar_words(tokenizer)
    return options


def has_level(documents: datasets.Dataset, level: UnitStart) -> bool:
    """Return whether all of a corpus, perhaps joined from several, is divided into units of a level."""
    if WORD_STARTS not in documents.column_names:
        return False
    for block in FlatCorpus.steps(documents):
        # A sentence begins with the bits of all levels that its corpus has.
        begins = block.sentence_offsets[:-1][block.sentence_lengths > 0]
        if not (block.word_starts[begins] & level).all():
            return False
    return True


def make_similar_words(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Learn similar words from a corpus that the run made, if its folder has none yet, and print how far they go."""
    if not (folder / SIMILAR_WORDS_FILE).is_file():
        documents = datasets.load_from_disk(str(folder))
        table = build_similar_words(documents, tokenizer)
        print(f"{table.save(folder)}: {describe_similar_words(table, documents, tokenizer)}", flush=True)
