"""Recipes: everything that shapes a pre-training run except the text and the machine, read from one YAML file.

A recipe names the family, the objective, the model, the tokenizer, how examples are made and masked, the phases, the
optimizer, and any field of `transformers.TrainingArguments`. The shipped ones are in `hf_encoders/runs/`.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase, TrainingArguments

from hf_encoders.corpus.text_files import Sampling
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.inputs import is_number
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives import presets
from hf_encoders.objectives.masking import Masking
from hf_encoders.objectives.objective import Objective, get_objective
from hf_encoders.options import SET_BY_RUN, advice
from hf_encoders.registration import config_class_of
from hf_encoders.runs.options import BEGINNINGS, RECIPES, SCRATCH, read_recipe, recipe_file, recipe_names, with_changes
from hf_encoders.training.callbacks import MaskRate, PhaseChanges
from hf_encoders.training.optimizers import OPTIMIZERS, check_layer_decay


SHORTEST = 5  # tokens: a pair of one token each, with its three special tokens
MOST_WARMUP = 0.2  # of the steps of a shortened run, where its share would be too short; this package's choice
# Types of a recipe's fields in YAML; the others are mappings.
KINDS = {
    "family": str,
    "objective": str,
    "begins_from": str,
    "is_family_default": bool,
    "phases": list,
    "mask_rate": list,
    "optimizer": str,
    "layer_decay": float,
}


@dataclass(frozen=True)
class Phase:
    """A part of a run with examples of one length; ValueError for a number that is too small."""

    steps: int  # of the optimizer
    length: int  # longest example in tokens, special tokens included
    examples: int  # per optimizer step, over all processes and micro-batches
    rising_from: int | None = None  # examples of the first step, where they rise to `examples`: `rising_sizes`
    masking: dict[str, Any] = field(default_factory=dict)  # options that differ from the recipe's, or a `preset`
    sources: dict[str, Any] | None = None  # instead of the recipe's, as there
    # Instead of the run's, whose warm-up and decay multiply it; of two, it falls from the first to the second: 1-sqrt.
    learning_rate: float | list[float] | None = None
    weight_decay: float | None = None  # instead of the run's
    model: dict[str, Any] = field(default_factory=dict)  # fields that differ from the recipe's: `PHASE_FIELDS`

    def __post_init__(self):
        if not isinstance(self.masking, dict):
            raise ValueError(f"phases: masking={self.masking!r} must be options, such as {{unit: word}}.")
        if not isinstance(self.model, dict):
            raise ValueError(f"phases: model={self.model!r} must be fields, such as {{local_attention: 128}}.")
        rates = self.learning_rate if isinstance(self.learning_rate, list) else [self.learning_rate] * 2
        are_rates = len(rates) == 2 and all(is_number(rate) and rate > 0 for rate in rates)
        if self.learning_rate is not None and not are_rates:
            raise ValueError(
                f"phases: learning_rate={self.learning_rate!r} must be a number above 0, such as 3.0e-4, or the first "
                "and the last of a fall, such as [3.0e-4, 3.0e-5]."
            )
        if self.weight_decay is not None and not (is_number(self.weight_decay) and self.weight_decay > 0):
            raise ValueError(f"phases: weight_decay={self.weight_decay!r} must be a number above 0, such as 0.01.")
        for name, least in (("steps", 1), ("length", SHORTEST), ("examples", 1), ("rising_from", 1)):
            value = getattr(self, name)
            if name == "rising_from" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"phases: {name}={value!r} must be a whole number, at least {least}.")
        if self.rising_from is not None and self.rising_from >= self.examples:
            raise ValueError(f"phases: rising_from={self.rising_from} must be below examples={self.examples}.")
        sampling_of(self.sources, "phases: sources")

    @property
    def changes(self) -> bool:
        """Return whether it trains otherwise than the recipe says."""
        return bool(self.masking or self.model or self.learning_rate is not None or self.weight_decay is not None)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Its first and its last learning rate; None means the run's."""
        if self.learning_rate is None:
            return None
        return tuple(self.learning_rate) if isinstance(self.learning_rate, list) else (self.learning_rate,) * 2

    @property
    def fewest_examples(self) -> int:
        """Examples of its first step."""
        return self.examples if self.rising_from is None else self.rising_from

    @property
    def examples_per_step(self) -> str:
        """Its examples per step in words: `256`, `768 to 4,608`."""
        return " to ".join(f"{number:,}" for number in dict.fromkeys([self.fewest_examples, self.examples]))

    @property
    def bounds(self) -> np.ndarray:
        """Number of its examples before each step and after the last one, `(steps + 1,)`."""
        if self.rising_from is None:
            return np.arange(self.steps + 1) * self.examples
        return np.concatenate([[0], rising_sizes(self.rising_from, self.examples, self.steps).cumsum()])

    def __str__(self) -> str:
        sampling = sampling_of(self.sources, "sources")
        notes = [] if sampling is None else [str(sampling)]
        if self.rates is not None:
            notes.append("learning rate " + " to ".join(f"{rate:g}" for rate in dict.fromkeys(self.rates)))
        if self.weight_decay is not None:
            notes.append(f"weight decay {self.weight_decay:g}")
        for kind, fields in (("masking", self.masking), ("model", self.model)):
            if fields:
                notes.append(f"{kind} " + " ".join(f"{name}={value}" for name, value in fields.items()))
        shown = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.steps:,} steps of {self.examples_per_step} x {self.length} tokens{shown}"


@cache
def rising_sizes(first: int, last: int, steps: int) -> np.ndarray:
    """Return the examples of each step of a batch that rises by one at a time, `(steps,)`.

    Each size has the same share of the steps, as in ModernBERT's batch warm-up (AnswerDotAI/ModernBERT): a size ends
    where as many examples have been read as all sizes up to it would have taken.

    >>> rising_sizes(2, 4, 6).tolist(), rising_sizes(2, 5, 3).tolist()
    ([2, 2, 3, 3, 4, 4], [2, 3, 4])
    """
    sizes = np.arange(first, last + 1)
    ends = sizes.cumsum() * steps / len(sizes)
    taken, read = [], 0
    for _ in range(steps):
        taken.append(sizes[min(np.searchsorted(ends, read, "right"), len(sizes) - 1)])
        read += taken[-1]
    return np.array(taken)


def sampling_of(fields: dict[str, Any] | None, key: str) -> Sampling | None:
    """Return how often sources are drawn, from the fields of a recipe; None where it does not say."""
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
    """Options of the tokenizer that is trained if none is given, as in `train_tokenizer`."""

    vocab_size: int
    lowercase: bool = True
    strip_accents: bool = False
    character_coverage: float = 1.0
    sampling_alpha: float = 1.0

    def __post_init__(self):
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if type(value) is not option.type:
                raise ValueError(f"tokenizer: {option.name}={value!r} must be of type {option.type.__name__}.")
        if self.vocab_size < 1:
            raise ValueError(f"tokenizer: vocab_size={self.vocab_size} must be at least 1.")
        for name in ("character_coverage", "sampling_alpha"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"tokenizer: {name}={getattr(self, name)} must be in (0, 1].")


def with_preset(key: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options, with those of their `preset` where they do not set it."""
    options = dict(options)
    name = options.pop("preset", None)
    if name is None:
        return options
    preset = vars(presets).get(str(name)) if str(name).isupper() else None
    if not isinstance(preset, dict):
        raise ValueError(f"{key}: preset {name!r} is not in hf_encoders.presets, such as BERT_MASKING.")
    return {**preset, **options}


@dataclass(frozen=True)
class Recipe:
    """A pre-training run.

    Args:
        name (`str`): Name of the file without its suffix.
        family (`str`): `model_type` of a registered family, such as `bert`.
        objective (`str`): Name of a registered objective, such as `mlm`.
        model (`dict`): Fields of the family's configuration, and optionally `size`, one of its named sizes (`base`).
        tokenizer (`TokenizerRecipe`): Options of the tokenizer that is trained if none is given.
        phases (`tuple` of `Phase`): In order; learning rate and mask rate follow the steps of all.
        begins_from (`str`): `scratch`, `checkpoint` (a recipe of `hf-encoders adapt`) or `teacher` (of `distil`).
        is_family_default (`bool`): Whether it stands for its family: `adapt` takes the objective of such a recipe.
        examples (`dict`): Options of the objective's dataset; `preset`, a name in `hf_encoders.presets`, sets several
            at once.
        masking (`dict`): Options of the data collator; `preset` likewise. A phase may have others for its training;
            evaluation is with these.
        mask_rate (`MaskRate`, *optional*): In YAML `[0.30, 0.15]`, from the first step to the last, or
            `[0.30, 0.15, cosine]`.
        optimizer (`str`): `adamw`, `lamb`, `muon`, or a name that `TrainingArguments.optim` has, such as `adafactor`.
        layer_decay (`float`): Each layer's learning rate as a share of that of the layer above, in (0, 1].
        training (`dict`): Fields of `transformers.TrainingArguments`; `warmup_steps` below 1 is a share of all steps.
        options (`dict`): Options of the objective itself, such as `{"soft_targets": "all"}` of distillation.
        sources (`dict`, *optional*): How often the sources of the text are drawn, `{"alpha": 0.3}` or `{"weights":
            {"law": 2, "web": 1}}`, as in `Sampling`; a phase may have its own. By default, as often as their sizes
            say.

    Raises:
        ValueError: naming the field, for an unknown field or an invalid value.
    """

    name: str
    family: str
    objective: str
    model: dict[str, Any]
    tokenizer: TokenizerRecipe
    phases: tuple[Phase, ...]
    begins_from: str = SCRATCH
    is_family_default: bool = False
    examples: dict[str, Any] = field(default_factory=dict)
    masking: dict[str, Any] = field(default_factory=dict)
    mask_rate: MaskRate | None = None
    optimizer: str = "adamw"
    layer_decay: float = 1.0
    training: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] | None = None

    def __post_init__(self):
        objective = self.own_objective
        objective.model_class(self.config_class)  # refuses a family without the heads
        if self.begins_from not in BEGINNINGS:
            raise ValueError(f"begins_from {self.begins_from!r}: it must be one of {', '.join(BEGINNINGS)}.")
        if not self.phases:
            raise ValueError("phases: a run needs at least one, such as {steps: 1000, length: 128, examples: 256}.")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r}: it must be one of {', '.join(OPTIMIZERS)}.")
        check_layer_decay(self.layer_decay, "layer_decay:")
        _check_training(self.training)
        try:
            with torch.device("meta"):  # takes no memory
                objective.new_model(config_of_fields(self.config_class, self.model))
        except ValueError as error:
            raise ValueError(f"model: {error}") from error
        self._check_masking(objective)
        self._check_phases()
        sampling_of(self.sources, "sources")
        if self.sources and all(phase.sources for phase in self.phases):
            raise ValueError("sources: every phase has its own: leave these or those out.")

    def _check_phases(self) -> None:
        allowed = self.config_class.PHASE_FIELDS
        for number, phase in enumerate(self.phases, start=1):
            if unknown := sorted(phase.model.keys() - set(allowed)):
                can = f"only {' and '.join(allowed)} can" if allowed else "none can"
                raise ValueError(
                    f"phases: phase {number}: model {unknown[0]} cannot change in a run of {self.family}: {can}."
                )
            try:
                config_of_fields(self.config_class, {**self.model, **phase.model})
            except ValueError as error:
                raise ValueError(f"phases: phase {number}: model: {error}") from error

    def phase_changes(self, config: EncoderConfig, learning_rate: float) -> PhaseChanges | None:
        """Return what changes where a phase begins, besides its examples; None where nothing does.

        Args:
            config (`EncoderConfig`): That of the model that is trained; a phase keeps the fields that it does not set.
            learning_rate (`float`): The run's, of phases that set no other.
        """
        if not any(phase.model or phase.rates or phase.weight_decay is not None for phase in self.phases):
            return None
        names = {name for phase in self.phases for name in phase.model}
        unchanged = {name: getattr(config, name) for name in names}
        rates = [phase.rates or (learning_rate, learning_rate) for phase in self.phases]
        return PhaseChanges(
            first_steps=[sum(phase.steps for phase in self.phases[:i]) for i in range(len(self.phases) + 1)],
            rate_shares=[(first / learning_rate, last / learning_rate) for first, last in rates],
            weight_decays=[phase.weight_decay for phase in self.phases],
            fields=[_merged(unchanged, phase.model) for phase in self.phases],
        )

    def _check_masking(self, objective: Objective) -> None:
        objective.check_options(self.examples, self.masking)
        if not issubclass(objective.masking_options, Masking):
            if self.mask_rate is not None:
                raise ValueError(
                    f"mask_rate: {self.objective} has none: its order depends on what is predicted: leave it out."
                )
            if any(self.phase_masking):
                raise ValueError(f"phases: {self.objective} is the same in every phase: leave out their masking.")
        for number, changed in enumerate(self.phase_masking):
            try:
                objective.check_options(self.examples, {**self.masking, **changed})
            except ValueError as error:
                raise ValueError(f"phases: phase {number + 1}: {error}") from error
        rates = [masking.get("mask_probability") for masking in (self.masking, *self.phase_masking)]
        if self.mask_rate is not None and any(rate is not None for rate in rates):
            raise ValueError(
                "masking: mask_probability does not go with mask_rate, which sets that of every step: leave one out "
                "(mask_rate: null)."
            )

    def facts(self) -> dict[str, Any]:
        """Return the fields as runs and reference curves record them; optional ones that are not set are left out."""
        facts = dataclasses.asdict(self)
        del facts["is_family_default"]
        facts["phases"] = [{n: v for n, v in phase.items() if v not in (None, {})} for phase in facts["phases"]]
        optional = {"begins_from": SCRATCH, "layer_decay": 1.0, "options": {}, "sources": None}
        if self.tokenizer.sampling_alpha == 1:
            del facts["tokenizer"]["sampling_alpha"]
        return {n: v for n, v in facts.items() if n not in optional or v != optional[n]}

    @property
    def own_objective(self) -> Objective:
        """The objective with the recipe's options."""
        return get_objective(self.objective).with_options(**self.options)

    @property
    def config_class(self) -> type[EncoderConfig]:
        """The family's configuration class."""
        return config_class_of(self.family)

    @property
    def phase_masking(self) -> list[dict[str, Any]]:
        """Options of the data collator that differ from `masking`, of each phase."""
        return [with_preset("phases: masking", phase.masking) for phase in self.phases]

    @property
    def maskings(self) -> list[Masking]:
        """How the run masks: by its own options, and by those of phases that have others; [] for no `Masking`."""
        objective = self.own_objective
        if not issubclass(objective.masking_options, Masking):
            return []
        changes = [{}, *filter(None, self.phase_masking)]
        return [Masking(**{**objective.default_masking, **self.masking, **change}) for change in changes]

    @property
    def samplings(self) -> list[Sampling | None]:
        """How often sources are drawn in each phase; None where the recipe does not say."""
        return [sampling_of(phase.sources or self.sources, "sources") for phase in self.phases]

    @property
    def needs_named_sources(self) -> bool:
        """Return whether it says how often sources are drawn, which have names then."""
        return any(self.samplings) or self.tokenizer.sampling_alpha != 1

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(phase.steps for phase in self.phases)

    @property
    def longest(self) -> int:
        """Length of the longest examples in tokens."""
        return max(phase.length for phase in self.phases)

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        steps = self.training.get("warmup_steps", 0)
        return math.ceil(steps * self.steps) if 0 < steps < 1 else int(steps)

    def model_config(
        self,
        tokenizer: PreTrainedTokenizerBase,
        languages: Iterable[str] = (),
        initial: Mapping[str, Any] | None = None,
    ) -> EncoderConfig:
        """Return the configuration for a tokenizer and the languages of the text; the word table has 64 n rows.

        `initial` are fields that a checkpoint or teacher decides where the recipe does not.

        Raises:
            ValueError: if there are fewer rows than the tokenizer or the longest examples need.
        """
        fields = tokenizer_fields(self.config_class, tokenizer, self.longest)
        decided = {**(initial or {}), **self.model}
        for name, least, elsewhere in (
            ("vocab_size", padded_vocab_size(tokenizer, 1), "give the model's own tokenizer, or a smaller one"),
            ("max_position_embeddings", fields.get("max_position_embeddings", 0), "shorten the examples"),
        ):
            if decided.get(name, least) < least:
                remedy = "leave it out" if name in self.model else elsewhere
                raise ValueError(f"model: {name}={decided[name]} must be at least {least} here: {remedy}.")
        if names := sorted(set(languages)):
            fields |= self.config_class.language_fields(names)  # {} of a family without embeddings of languages
        return config_of_fields(self.config_class, {"vocab_size": padded_vocab_size(tokenizer), **fields, **decided})

    def of_steps(self, steps: int) -> "Recipe":
        """Return the run with another number of steps: phases, warm-up and decay keep their shares.

        Warm-up of a shorter run has a floor, the 2 / (1 - beta2) steps of Adam's averages of squared gradients (Ma and
        Yarats 2019, https://arxiv.org/abs/1910.04209), at most those of the whole recipe and `MOST_WARMUP` of all.

        >>> recipe = load_recipe("bert-base").of_steps(1000)
        >>> [phase.steps for phase in recipe.phases], recipe.warmup_steps
        ([900, 100], 200)

        Raises:
            ValueError: if a phase would have no step.
        """
        bounds = [round(sum(p.steps for p in self.phases[:i]) * steps / self.steps) for i in range(len(self.phases))]
        counts = [end - begin for begin, end in zip(bounds, [*bounds[1:], steps], strict=True)]
        if min(counts) < 1:
            raise ValueError(f"max_steps={steps} leaves a phase of {self.name} without a step: give more steps.")
        training = dict(self.training)
        if self.training.get("warmup_steps", 0) >= 1:
            training["warmup_steps"] = round(self.warmup_steps * steps / self.steps)
        averaged = 2 / (1 - training.get("adam_beta2", TrainingArguments.adam_beta2))
        floor = round(min(averaged, self.warmup_steps, MOST_WARMUP * steps))
        if steps < self.steps and floor > self.warmup_steps * steps / self.steps:
            training["warmup_steps"] = floor
        schedule = dict(training.get("lr_scheduler_kwargs") or {})
        if "num_decay_steps" in schedule:
            schedule["num_decay_steps"] = round(schedule["num_decay_steps"] * steps / self.steps)
            training["lr_scheduler_kwargs"] = schedule
        phases = tuple(dataclasses.replace(p, steps=n) for p, n in zip(self.phases, counts, strict=True))
        return dataclasses.replace(self, phases=phases, training=training)

    def lengthened(self, before: "tuple[Phase, ...]", is_scaled: bool) -> "Recipe":
        """Return this recipe as the extension of a run with other phases, or itself if it is not one.

        If `is_scaled`, by `of_steps`, only a number of steps was requested: all further ones belong to the last phase.

        >>> before, recipe = load_recipe("bert-minutes").phases, load_recipe("bert-minutes").of_steps(8000)
        >>> [phase.steps for phase in recipe.phases], [p.steps for p in recipe.lengthened(before, True).phases]
        ([2000, 6000], [1000, 7000])
        """
        further = self.steps - sum(phase.steps for phase in before)
        shapes, earlier = ([dataclasses.replace(phase, steps=1) for phase in run] for run in (self.phases, before))
        if not is_scaled or shapes != earlier or further < 0:
            return self
        last = dataclasses.replace(before[-1], steps=before[-1].steps + further)
        return dataclasses.replace(self, phases=(*before[:-1], last))

    def continues(self, before: "tuple[Phase, ...]") -> bool:
        """Return whether this run starts with all steps of a run with those phases, and has more."""
        if len(self.phases) < len(before) or self.phases[: len(before) - 1] != before[:-1]:
            return False
        is_longer = self.steps > sum(phase.steps for phase in before)
        last, now = before[-1], self.phases[len(before) - 1]
        return is_longer and dataclasses.replace(now, steps=last.steps) == last and now.steps >= last.steps


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or a file.

    Args:
        name (`str` or `Path`): Name or file.
        changes (`Sequence[str]`): Fields that differ, as `--set` takes them: `["masking.mask_probability=0.3"]`.

    Raises:
        ValueError: if there is none, it is not YAML, or a field is invalid.
    """
    path = recipe_file(name)
    fields = with_changes(read_recipe(path), changes)
    try:
        # Records and cards name the recipe: a file named like a shipped one keeps its suffix.
        is_namesake = path.parent != RECIPES and path.stem in recipe_names()
        return recipe_of(path.name if is_namesake else path.stem, fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def recipe_of(name: str, fields: Any) -> Recipe:
    """Return a recipe from the content of a YAML file; ValueError naming a missing, unknown or wrong field."""
    known = [option.name for option in dataclasses.fields(Recipe) if option.name != "name"]
    if not isinstance(fields, dict):
        raise ValueError(f"a recipe has fields, {', '.join(known)}; this is a {type(fields).__name__}.")
    for key, value in fields.items():
        if key not in known:
            raise ValueError(f"{key!r} is not a field of a recipe, which has {', '.join(known)}.")
        kind = KINDS.get(key, dict)
        if not isinstance(value, kind) and not (kind is float and type(value) is int):
            raise ValueError(f"{key}: {value!r} is a {type(value).__name__}, and must be a {kind.__name__}.")
    for key in ("family", "objective", "model", "tokenizer", "phases"):
        if key not in fields:
            raise ValueError(f"{key} is missing.")
    made = dict(fields, name=name)
    made["tokenizer"] = _made(TokenizerRecipe, "tokenizer", fields["tokenizer"])
    made["phases"] = tuple(_made(Phase, "phases", phase) for phase in fields["phases"])
    for key in ("examples", "masking"):
        made[key] = with_preset(key, fields.get(key, {}))
    if "mask_rate" in fields:
        rates = fields["mask_rate"]
        if len(rates) not in (2, 3) or not all(map(is_number, rates[:2])):
            raise ValueError(f"mask_rate: {rates} must be two numbers, such as [0.30, 0.15], and perhaps a shape.")
        made["mask_rate"] = MaskRate(*rates)
    return Recipe(**made)


def _check_training(fields: dict[str, Any]) -> None:
    """Refuse fields that `TrainingArguments` does not have or that the run sets, and values of another type."""
    kinds = {option.name: option.type for option in dataclasses.fields(TrainingArguments) if option.init}
    for name, value in fields.items():
        if name in SET_BY_RUN:
            raise ValueError(f"training: {name} cannot be set here: {advice(SET_BY_RUN[name])}.")
        if name not in kinds:
            raise ValueError(f"training: transformers.TrainingArguments has no field {name!r}.")
        if kinds[name] in (int, float, int | None, float | None) and type(value) not in (int, float, type(None)):
            raise ValueError(f"training: {name}={value!r} must be a number.")
        if kinds[name] is bool and not isinstance(value, bool):
            raise ValueError(f"training: {name}={value!r} must be true or false.")


def _merged(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return fields with changes, also within those that are dictionaries.

    >>> _merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"x": 5}})
    {'a': {'x': 5, 'y': 2}, 'b': 3}
    """
    merged = dict(fields)
    for name, value in changes.items():
        is_nested = isinstance(value, dict) and isinstance(fields.get(name), dict)
        merged[name] = _merged(fields[name], value) if is_nested else value
    return merged


def _made(kind: type, key: str, fields: Any) -> Any:
    try:
        return kind(**fields)
    except TypeError as error:
        names = ", ".join(option.name for option in dataclasses.fields(kind))
        raise ValueError(f"{key}: {fields!r} must have the fields {names} ({error}).") from error


def tokenizer_fields(
    config_class: type[EncoderConfig], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, Any]:
    """Return the fields of the family that tokenizer and longest example decide, except the vocabulary size."""
    fields = {
        "max_position_embeddings": config_class.position_rows(max_length, tokenizer.pad_token_id),
        **{f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "cls", "sep")},
    }
    known = {option.name for option in dataclasses.fields(config_class)}
    # XLNet has no table of positions, and most families no ids of [CLS] and [SEP].
    return {name: value for name, value in fields.items() if name in known}


def config_of_fields(config_class: type[EncoderConfig], fields: Mapping[str, Any]) -> EncoderConfig:
    """Return a configuration from its fields and perhaps `size`, one of the family's named sizes.

    Raises:
        ValueError: naming an unknown size or field, or an invalid value.
    """
    fields = dict(fields)
    size = fields.pop("size", None)
    # Named sizes are class methods of the family itself; `from_pretrained` and the like are inherited.
    if size is not None and not isinstance(vars(config_class).get(str(size)), classmethod):
        raise ValueError(f"size {size!r} is not a named size of {config_class.model_type}, such as base.")
    known = {option.name for option in dataclasses.fields(config_class)}
    if unknown := [name for name in fields if name not in known]:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]!r}.")
    try:
        return (config_class if size is None else getattr(config_class, size))(**fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
