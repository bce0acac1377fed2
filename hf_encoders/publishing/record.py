"""Record the facts of a training run when they are known, and keep them next to the weights.

docs/publishing.md says how to add one to the model cards.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hf_encoders.loading import optional_file
from hf_encoders.publishing.files import RECORD_FILE, RUN_FILE
from hf_encoders.publishing.hardware import describe_hardware, describe_software
from hf_encoders.publishing.secrets import base_name, published, published_command
from hf_encoders.writing import duration


NOT_RECORDED = "not recorded"


def shown(value: Any) -> str:
    r"""Return a value as in a cell of the card's tables.

    >>> shown(1234), shown(0.000123456), shown("a|b"), shown(None)
    ('1,234', '0.0001235', 'a\\|b', 'not recorded')
    """
    if value is None:
        return NOT_RECORDED
    if isinstance(value, float):
        return f"{value:.4g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _fact(label: str, show: Callable[[Any], str] = shown, entry: str = "{}", default: Any = None) -> Any:
    """Make a field with a row in the card's table of the training, or a row for each `entry` of a dictionary."""
    about = {"label": label, "show": show, "entry": entry}
    if isinstance(default, type):
        return field(default_factory=default, metadata=about)
    return field(default=default, metadata=about)


@dataclass
class TrainingRecord:
    """Hold the facts that a model card is made of; an empty field reads "not recorded" there.

    Records are published: known forms of tokens are removed from all fields, and paths below a home folder become base
    names. Other paths out of the working directory become base names in `command`, `base_model`, `dataset_ids` and
    fields named like a path (`publishing/secrets.py`), but not in texts and names. Relative paths stay.

    Args:
        objectives (`dict`): Each objective, or the task of a fine-tuning, and its settings.
        corpus (`dict`): Facts of the corpus or dataset: name, documents, sentences, tokens, licence.
        schedule (`dict`): Steps, batch, learning rate, seed and so on.
        losses (`dict`): Last losses by name, in nats per item: `{"masked tokens, held-out": 2.31}`.
        hardware, software, command: Of the run; `software` are versions by name.
        seconds (`float`): Training time including restarts; evaluating and saving may be left out.
        tokens_per_second (`float`): Real tokens, without padding.
        license (`str`, *optional*): The Hub's identifier of the licence of the weights, as stated by the user.
        evaluation (`list` of `dict`): Entries with `task` (a task of the Hub, such as `text-classification`),
            `dataset` (its name in words), `metric` (`accuracy`, `f1` ...) and `value`; optionally `dataset_id` (on the
            Hub), `config`, `split`, `baseline` (in words) and `seeds` (values of models of several seeds by seed, of
            which `value` is this one's).
        warnings (`list` of `str`): What readers of the evaluation must know: metrics no better than their baseline,
            evaluation rows that were trained on.
        new_heads (`list` of `str`): Parameters that were not trained.
        base_model (`str`, *optional*): Name on the Hub of the checkpoint that training began from, or see
            `name_of_checkpoint`.
        dataset_ids (`list` of `str`): Datasets on the Hub that were trained on.
        language (`list` of `str`): Codes of the corpus's languages.
        fills_masks (`bool`): Whether tokens became the mask token in training; False for MacBERT.

    Raises:
        ValueError: If an entry of `evaluation` lacks one of the four.
    """

    objectives: dict[str, str] = field(default_factory=dict)
    corpus: dict[str, Any] = _fact("corpus", entry="corpus: {}", default=dict)
    schedule: dict[str, Any] = _fact("schedule", default=dict)
    losses: dict[str, float] = _fact("last losses", entry="last loss: {}", default=dict)
    hardware: str = _fact("hardware", default=NOT_RECORDED)
    seconds: float | None = _fact("duration", duration)
    tokens_per_second: float | None = _fact("real tokens per second", "{:,.0f}".format)
    software: dict[str, str] = _fact("software", default=dict)
    command: str = _fact("command", "`{}`".format, default=NOT_RECORDED)
    license: str | None = _fact("licence of the weights")
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    new_heads: list[str] = field(default_factory=list)
    base_model: str | None = None
    dataset_ids: list[str] = field(default_factory=list)
    language: list[str] = field(default_factory=list)
    fills_masks: bool = True

    def __post_init__(self) -> None:
        """Redact all fields, and check the entries of `evaluation`."""
        for name, value in vars(self).items():
            setattr(self, name, published_command(value) if name == "command" else published(value, name))
        for entry in self.evaluation:
            facts = entry if isinstance(entry, dict) else {}
            if missing := [name for name in ("task", "dataset", "metric", "value") if facts.get(name) is None]:
                raise ValueError(f"evaluation has an entry without {', '.join(missing)}: {entry}. Record them too.")

    def training_facts(self) -> list[tuple[str, str]]:
        """Return the rows of the card's table of the training."""
        rows = []
        for fact in fields(self):
            value, about = getattr(self, fact.name), fact.metadata
            if about and isinstance(value, dict) and value:
                rows += [(about["entry"].format(name), about["show"](inner)) for name, inner in value.items()]
            elif about:
                rows.append((about["label"], NOT_RECORDED if value in (None, {}) else about["show"](value)))
        return rows

    def missing_facts(self) -> list[str]:
        """Return the names of the fields that the card reports as "not recorded"."""
        more = ("objectives", "evaluation", "language")
        names = [fact.name for fact in fields(self) if fact.metadata or fact.name in more]
        return [name for name in names if getattr(self, name) in (None, {}, [], NOT_RECORDED)]

    def save(self, directory: Path) -> Path:
        """Write the record as JSON next to the weights."""
        path = Path(directory) / RECORD_FILE
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def of_checkpoint(cls, source: str) -> "TrainingRecord":
        """Read the record of a checkpoint in a folder or on the Hub, or return an empty one, as `load`."""
        file = optional_file(source, RECORD_FILE)
        return cls() if file is None else cls.load(file.parent)

    @classmethod
    def load(cls, directory: Path) -> "TrainingRecord":
        """Read the record next to the weights, or return an empty one.

        Raises:
            ValueError: If the file is not a record.
        """
        path = Path(directory) / RECORD_FILE
        if not path.exists():
            return cls()
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: value for name, value in dict(written).items() if value is not None})
        except (ValueError, TypeError) as error:
            remedy = f"restore the file, or remove it to have a card that says {NOT_RECORDED!r}"
            raise ValueError(f"{path} is not a training record ({error}): {remedy}.") from error


def facts_of_this_process() -> dict[str, Any]:
    """Return the fields of `TrainingRecord` that are the same for every training on this machine."""
    return {"hardware": describe_hardware(), "software": describe_software()}


def command_of(arguments: argparse.Namespace) -> str:
    """Return the command line of the parsed arguments, redacted."""
    return published_command(["hf-encoders", *getattr(arguments, "typed", sys.argv[1:])])


def name_of_checkpoint(name: str) -> str:
    """Return the name of an initial checkpoint in a record: on the Hub, or of its folder or run and of its origin.

    >>> name_of_checkpoint("google-bert/bert-base-uncased")
    'google-bert/bert-base-uncased'
    """
    if not Path(name).exists():
        return name
    folder = Path(name).absolute()
    try:
        base_model = TrainingRecord.load(folder).base_model
    except ValueError:  # of another program
        base_model = None
    run = folder.parent if folder.name == "model" and (folder.parent / RUN_FILE).is_file() else folder
    origin = f", from {origin_of(base_model) or base_model}" if base_model else ""
    # With a space, which no name on the Hub has: the card must not link to an unrelated model.
    return f"{base_name(run)} (a local {'file' if folder.is_file() else 'folder'}{origin})"


def origin_of(base_model: str | None) -> str | None:
    """Return the name on the Hub that a record's `base_model` is or goes back to; None if there is none.

    >>> origin_of("owner/name"), origin_of("mine (a local folder, from owner/name)"), origin_of("x (a local folder)")
    ('owner/name', 'owner/name', None)
    """
    name = re.fullmatch(r"(?:.* \(a local folder, from )?([^\s()]+)\)?", base_model or "")
    return name[1] if name else None
