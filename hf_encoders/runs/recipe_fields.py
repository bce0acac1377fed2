"""Fields of a recipe that have fields of their own: phases, the tokenizer, sampling of sources, presets."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hf_encoders.objectives import presets
from hf_encoders.corpus.sampling import Sampling


SHORTEST = 5  # tokens: a pair of one token each, with its three special tokens


@dataclass(frozen=True)
class Phase:
    """A part of a run with examples of one length; ValueError for a number that is too small."""

    steps: int  # of the optimizer
    length: int  # longest example in tokens, special tokens included
    examples: int  # per optimizer step, over all processes and micro-batches
    masking: dict[str, Any] = field(default_factory=dict)  # options that differ from the recipe's, or a `preset`
    sources: dict[str, Any] | None = None  # instead of the recipe's, as there

    def __post_init__(self):
        if not isinstance(self.masking, dict):
            raise ValueError(f"phases: masking={self.masking!r} must be options, such as {{unit: word}}.")
        for name, least in (("steps", 1), ("length", SHORTEST), ("examples", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"phases: {name}={value!r} must be a whole number, at least {least}.")
        sampling_of(self.sources, "phases: sources")

    def __str__(self) -> str:
        sampling = sampling_of(self.sources, "sources")
        notes = [] if sampling is None else [str(sampling)]
        if self.masking:
            notes.append("masking " + " ".join(f"{name}={value}" for name, value in self.masking.items()))
        shown = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.steps:,} steps of {self.examples:,} x {self.length} tokens{shown}"


def sampling_of(fields: dict[str, Any] | None, key: str) -> Sampling | None:
    """How often sources are drawn, from the fields of a recipe; None where it does not say.

    Raises:
        ValueError: naming the key, for unknown fields and as `Sampling`.
    """
    if fields is None:
        return None
    if not isinstance(fields, dict) or not fields or fields.keys() - {"alpha", "weights"}:
        raise ValueError(f"{key}: {fields!r} must be {{alpha: 0.3}} or {{weights: {{law: 2, web: 1}}}}.")
    try:
        return Sampling(**fields)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


@dataclass(frozen=True)
class TokenizerRecipe:
    """Options of the tokenizer that is trained if none is given, as in `train_tokenizer`.

    Raises:
        ValueError: for a value of another type or out of range.
    """

    vocab_size: int
    lowercase: bool = True
    strip_accents: bool = False
    character_coverage: float = 1.0
    sampling_alpha: float = 1.0

    def __post_init__(self):
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if type(value) is not one.type:
                raise ValueError(f"tokenizer: {one.name}={value!r} must be of type {one.type.__name__}.")
        if self.vocab_size < 1:
            raise ValueError(f"tokenizer: vocab_size={self.vocab_size} must be at least 1.")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"tokenizer: character_coverage={self.character_coverage} must be in (0, 1].")
        if not 0 < self.sampling_alpha <= 1:
            raise ValueError(f"tokenizer: sampling_alpha={self.sampling_alpha} must be in (0, 1].")

    def facts(self) -> dict[str, Any]:
        """The fields, without the sampling of sources where all text counts as it is."""
        found = dataclasses.asdict(self)
        return found if self.sampling_alpha != 1 else {n: v for n, v in found.items() if n != "sampling_alpha"}


def with_preset(key: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options, with those of their `preset` where they do not set it."""
    options = dict(options)
    preset = options.pop("preset", None)
    if preset is None:
        return options
    given = getattr(presets, str(preset), None) if str(preset).isupper() else None
    if not isinstance(given, dict):
        raise ValueError(f"{key}: preset {preset!r} is not in hf_encoders.objectives.presets, such as BERT_MASKING.")
    return {**given, **options}
