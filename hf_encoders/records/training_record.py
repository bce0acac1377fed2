"""The facts of a training run, recorded when they happen and kept beside the weights."""

import argparse
import json
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from hf_encoders.records.run_files import RECORD_FILE
from hf_encoders.redaction import base_name, published, published_command


NOT_RECORDED = "not recorded"


@dataclass
class TrainingRecord:
    """What a model card is made of. Whatever stays empty reads "not recorded" there.

    It is published: whoever wrote it, tokens of known forms are taken out of all fields, and paths below a home folder
    become base names. Other paths out of the working directory become base names in `command`, `base_model`,
    `dataset_ids` and fields that are called like a path (`redaction.py`), not in texts and names. Relative ones stay.

    Args:
        objectives (`dict`): each objective, or the task of a fine-tuning, and its settings.
        corpus (`dict`): facts of the corpus or data set: name, documents, sentences, tokens, licence.
        schedule (`dict`): steps, batch, learning rate, seed and so on.
        losses (`dict`): last losses by name, in nats an item: `{"masked tokens, held-out": 2.31}`.
        hardware (`str`): what the run ran on.
        software (`dict`): versions.
        seconds (`float`): of training, restarts included; evaluating and saving may be left out.
        tokens_per_second (`float`): real tokens, padding not counted.
        evaluation (`list` of `dict`): entries with `task` (a task of the Hub, such as `text-classification`),
            `dataset` (its name in words), `metric` (`accuracy`, `f1` ...) and `value`; perhaps `dataset_id` (on the
            Hub), `config`, `split`, `baseline` (what to compare with, in words), `seeds` (values of models of several
            seeds by seed, of which `value` is this one's).
        warnings (`list` of `str`): what readers of the evaluation must know: figures no better than their baseline,
            rows that were trained on.
        new_heads (`list` of `str`): parameters that were not trained.
        command (`str`): what started the run.
        base_model (`str`, *optional*): name on the Hub of the checkpoint that a fine-tuning began from, or what a
            folder is called (`name_of_checkpoint`).
        dataset_ids (`list` of `str`): data sets on the Hub that were trained on.
        language (`list` of `str`): codes of the corpus's languages.
        license (`str`, *optional*): the Hub's identifier of the licence of the weights, as the user states it.

    Raises:
        ValueError: for an entry of `evaluation` that has not all of the four.
    """

    objectives: dict[str, str] = field(default_factory=dict)
    corpus: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    hardware: str = NOT_RECORDED
    software: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    tokens_per_second: float | None = None
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    new_heads: list[str] = field(default_factory=list)
    command: str = NOT_RECORDED
    base_model: str | None = None
    dataset_ids: list[str] = field(default_factory=list)
    language: list[str] = field(default_factory=list)
    license: str | None = None

    def __post_init__(self) -> None:
        """Check the entries of `evaluation`, which a card cannot do without, and take out what is not public."""
        for name, value in vars(self).items():
            setattr(self, name, published_command(value) if name == "command" else published(value, name))
        for entry in self.evaluation:
            given = entry if isinstance(entry, dict) else {}
            missing = [name for name in ("task", "dataset", "metric", "value") if given.get(name) is None]
            if missing:
                raise ValueError(f"evaluation has an entry without {', '.join(missing)}: {entry}. Record them too.")

    def save(self, directory: Path) -> Path:
        """Write the record as JSON beside the weights."""
        path = Path(directory) / RECORD_FILE
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, directory: Path) -> "TrainingRecord":
        """Read the record beside the weights; an empty one where there is none.

        Raises:
            ValueError: if the file is not a record.
        """
        path = Path(directory) / RECORD_FILE
        if not path.exists():
            return cls()
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            # What somebody set to null is not recorded, as what is not there.
            return cls(**{name: value for name, value in dict(written).items() if value is not None})
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} is not a training record ({error}): restore the file, or remove it to have a card that says "
                f"{NOT_RECORDED!r}."
            ) from error


def command_of(arguments: argparse.Namespace) -> str:
    """The command line that a command's arguments were parsed from, as it may be published."""
    return published_command(["hf-encoders", *getattr(arguments, "typed", sys.argv[1:])])


def name_of_checkpoint(name: str) -> str:
    """What a record calls the checkpoint that a training began from: a name on the Hub, or what its folder is called.

    >>> name_of_checkpoint("google-bert/bert-base-uncased")
    'google-bert/bert-base-uncased'
    """
    # With a blank, which no name on the Hub has: the card must not link to a stranger's model of that name.
    return f"{base_name(Path(name).absolute())} (a local folder)" if Path(name).exists() else name


def describe_hardware() -> str:
    """Processor or accelerator of this machine, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"


def describe_software() -> dict[str, str]:
    """Versions of what computed the run."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
