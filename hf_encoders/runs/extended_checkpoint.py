"""A checkpoint with new entries for the words of a domain: tokenizer, model and report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.runs.new_entries import add_entries
from hf_encoders.corpus.settings import library_versions
from hf_encoders.corpus.extension import extend_vocabulary
from hf_encoders.corpus.extension_report import ExtensionReport, TextChange, save_pieces
from hf_encoders.corpus.padded_size import padded_vocab_size
from hf_encoders.corpus.source_words import CountedText
from hf_encoders.loading import check_rows, load_tokenizer, optional_file, read_config
from hf_encoders.publishing.saved_model import load_source, saved_head
from hf_encoders.publishing.training_record import TrainingRecord, name_of_checkpoint
from hf_encoders.publishing.saved_files import GENERATOR_FOLDER, copy_modules, has_generator, save_tokenizer
from hf_encoders.writing import replaced_files


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of this package or of transformers, or a tokenizer alone."""

    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel | None = None  # None: a tokenizer alone
    auto_class: str = "AutoTokenizer"  # what loads it, such as `AutoModelForMaskedLM`
    generator: PreTrainedModel | None = None  # that a discriminator was trained with, from a folder in its own
    record: TrainingRecord = field(default_factory=TrainingRecord)  # what remains true of that of its training
    source: str = ""  # of the model, in a folder or on the Hub

    @classmethod
    def of(cls, source: str, option: str) -> "Checkpoint":
        """Open a folder or a name on the Hub; errors name the option.

        Raises:
            ValueError: If there is no tokenizer, or it has tokens for which the model has no rows; if the model is of
                another family or not complete, or its head is not known.
        """
        if Path(source).is_dir() and not Path(source, "config.json").is_file():
            return cls(load_tokenizer(source, option))
        config = read_config(source, option)
        tokenizer = load_tokenizer(source, option, config)
        check_rows(tokenizer, config, f"{option} {source!r}")
        try:
            head, generator = saved_head(config), None
            if has_generator(Path(source)):
                generator = load_source(Path(source, GENERATOR_FOLDER), "AutoModelForMaskedLM")
            elif optional_file(source, f"{GENERATOR_FOLDER}/config.json"):
                raise ValueError(f"it has a generator, which is extended too: `hf download {source} --local-dir DIR`.")
            return cls(tokenizer, load_source(source, head), head, generator, remaining_record(source), source)
        except ValueError as error:
            raise ValueError(f"{option} {source!r}: {error}") from error


def remaining_record(source: str) -> TrainingRecord:
    """What a checkpoint's training record says that is true with other entries too: no losses, no figures.

    `hf-encoders adapt` reads the objective from it.

    Raises:
        ValueError: If it cannot be read.
    """
    found = TrainingRecord.of_checkpoint(source)
    names = ("objectives", "language", "license", "fills_masks")
    kept = {name: getattr(found, name) for name in names}
    return TrainingRecord(**kept, base_model=name_of_checkpoint(source))


def extend_checkpoint(
    checkpoint: Checkpoint,
    text: CountedText,
    number: int,
    output: Path,
    kept: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> ExtensionReport:
    """Add entries to a tokenizer and their rows to its model, and write both, with a report, to a folder.

    Args:
        checkpoint (`Checkpoint`): What to extend; its files stay as they are, and its model gets the new rows.
        text (`CountedText`): The text of the domain, counted with the checkpoint's tokenizer.
        number (`int`): Most entries to add.
        output (`Path`): Folder; an earlier result there is replaced once all is complete.
        kept (`Sequence[str]`, *optional*): Lines of other text, to report how it is cut.
        settings (`Mapping`, *optional*), reading (`Mapping`, *optional*): For the report.

    Raises:
        ValueError: As `extend_vocabulary` and `add_entries`.
    """
    began = time.perf_counter()
    extended = extend_vocabulary(checkpoint.tokenizer, text.words, number)
    sources = text.sources.values()
    measured = [line for one in sources for line in one.measured]
    report = ExtensionReport(
        settings={"add": number, **(settings or {}), "vocab_size": len(extended.tokenizer)},
        entries=len(extended.tokenizer),
        rows=padded_vocab_size(extended.tokenizer),
        added=extended.tokenizer.convert_ids_to_tokens(list(extended.pieces)),
        text=TextChange.of(checkpoint.tokenizer, extended, measured),
        is_held_out=all(one.text.held_out for one in sources),
        kept=TextChange.of(checkpoint.tokenizer, extended, kept) if kept else None,
        run={"distinct_words": len(text.words), "seconds": round(time.perf_counter() - began, 2)},
        versions=library_versions(),
        reading=dict(reading or {}),
    )
    with replaced_files(output, [GENERATOR_FOLDER]) as folder:
        if (model := checkpoint.model) is not None:
            add_entries(model, extended.tokenizer, extended.pieces)
            report = replace(report, rows=model.get_input_embeddings().num_embeddings)
            model.save_pretrained(folder)
            checkpoint.record.save(folder)
        if checkpoint.generator is not None:
            add_entries(checkpoint.generator, extended.tokenizer, extended.pieces)
            checkpoint.generator.save_pretrained(folder / GENERATOR_FOLDER)
        save_tokenizer(extended.tokenizer, folder)
        if checkpoint.model is not None:
            copy_modules(checkpoint.source, folder)
        report.save(folder)
        save_pieces(extended.pieces, folder)
    return report
