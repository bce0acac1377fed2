"""A checkpoint with new entries for the words of a domain: tokenizer, model and report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.adaptation.new_entries import add_entries
from hf_encoders.data.corpus.settings import library_versions
from hf_encoders.data.vocabulary.extension import extend_vocabulary
from hf_encoders.data.vocabulary.extension_report import ExtensionReport, TextChange, save_pieces
from hf_encoders.data.vocabulary.padded_size import padded_vocab_size
from hf_encoders.data.vocabulary.source_words import CountedText
from hf_encoders.loading import load_tokenizer, read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.saved_model import load_source, saved_head


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of this package or of transformers, or a tokenizer alone."""

    source: str
    tokenizer: PreTrainedTokenizerBase
    config: EncoderConfig | None  # None: a tokenizer alone

    @classmethod
    def of(cls, source: str, option: str | None = None) -> "Checkpoint":
        """Open a folder or a name on the Hub, without its weights; errors name the option.

        Raises:
            ValueError: If there is no tokenizer, the model is of another family, or its head is not known.
        """
        has_model = not Path(source).is_dir() or Path(source, "config.json").is_file()
        config = read_config(source, option) if has_model else None
        if config is not None:
            saved_head(config)
        return cls(source, load_tokenizer(source, option, config), config)

    @property
    def auto_class(self) -> str:
        """What loads it, such as `AutoModelForMaskedLM`."""
        return "AutoTokenizer" if self.config is None else saved_head(self.config)


def extend_checkpoint(
    checkpoint: Checkpoint,
    text: CountedText,
    number: int,
    output: Path,
    kept: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ExtensionReport:
    """Add entries to a tokenizer and their rows to its model, and write both, with a report, to a folder.

    Args:
        checkpoint (`Checkpoint`): What to extend; it stays as it is.
        text (`CountedText`): The text of the domain, counted with the checkpoint's tokenizer.
        number (`int`): Most entries to add.
        output (`Path`): Folder; what is there by the same names is replaced once all is complete.
        kept (`Sequence[str]`, *optional*): Lines of other text, to report how it is cut.
        settings (`Mapping`, *optional*): For the report.

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
    )
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="_", dir=output) as unfinished:
        folder = Path(unfinished)
        if checkpoint.config is not None:
            model = load_source(checkpoint.source, checkpoint.auto_class)
            add_entries(model, extended.tokenizer, extended.pieces)
            model.save_pretrained(folder)
        extended.tokenizer.save_pretrained(folder)
        report.save(folder)
        save_pieces(extended.pieces, folder)
        for file in folder.iterdir():
            file.replace(output / file.name)
    return report
