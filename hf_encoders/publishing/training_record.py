"""The facts of a training run, recorded when they happen and kept beside the weights."""

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers


RECORD_FILE = "training_record.json"
NOT_RECORDED = "not recorded"


@dataclass
class TrainingRecord:
    """What a model card is made of. Whatever stays empty reads "not recorded" there.

    Args:
        objectives (`dict`): each objective and its settings.
        corpus (`dict`): facts of the corpus: name, documents, sentences, tokens, licence.
        schedule (`dict`): steps, batch, learning rate and so on.
        hardware (`str`): what the run ran on.
        software (`dict`): versions.
        seconds (`float`): duration of the training loop.
        tokens_per_second (`float`): real tokens, padding not counted.
        evaluation (`list` of `dict`): entries with `task`, `dataset`, `metric`, `value`, and perhaps `baseline`.
        new_heads (`list` of `str`): parameters that were not trained.
        command (`str`): what started the run.
    """

    objectives: dict[str, str] = field(default_factory=dict)
    corpus: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    hardware: str = NOT_RECORDED
    software: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None
    tokens_per_second: float | None = None
    evaluation: list[dict[str, Any]] = field(default_factory=list)
    new_heads: list[str] = field(default_factory=list)
    command: str = NOT_RECORDED

    def save(self, directory: Path) -> Path:
        """Write the record as JSON beside the weights."""
        path = Path(directory) / RECORD_FILE
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, directory: Path) -> "TrainingRecord":
        """Read the record beside the weights; an empty one where there is none."""
        path = Path(directory) / RECORD_FILE
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()


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
