"""A pre-training objective as one object: examples, data collator, model head, loss terms and words for the card."""

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import datasets
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.word_starts import WordStarts
from hf_encoders.objectives.dataset import NAMES_ELSEWHERE, EpochDataset, check_draws
from hf_encoders.objectives.masking import Masking


GIVEN_BY_THE_RUN = ("documents", "max_length", "seed", "rule")  # arguments of datasets that are not options
INITIAL = "initial checkpoint"  # key of `run.json`
_registered: "dict[str, Objective]" = {}


@dataclass(frozen=True)
class LossTerm:
    """A term of the loss: a sum over its items divided by their number in the whole batch."""

    name: str  # key in the model's `loss_terms`; logged as `<name>_loss` and `<name>_accuracy`
    items: str  # what is predicted, in words for the card ("masked tokens")
    weight: float = 1.0  # in the loss
    task: str = "fill-mask"  # of the Hub, for the card's evaluation
    is_per_example: bool = False  # labels are per example, not per token
    baseline: str | None = None  # accuracy without learning, in words for the card ("chance 0.5")


class Objective:
    """Define what a model is pre-trained on. A subclass in a file of its own sets the attributes."""

    name: ClassVar[str]  # in recipes and on the command line
    terms: ClassVar[tuple[LossTerm, ...]]  # of the loss; the model's class has all of them in `loss_terms`
    token_term: ClassVar[LossTerm | None] = None  # whose items are tokens of the text, each predicted once
    auto_class: ClassVar[str] = "AutoModelForPreTraining"  # whose model has the head
    dataset_class: ClassVar[type[EpochDataset]]  # makes the examples of tokenised documents
    collator_class: ClassVar[type]  # masks them and makes batches
    parallel_class: ClassVar[type[EpochDataset] | None] = None  # makes the examples of parallel text, if it takes any
    example_options: ClassVar[type | None] = None  # dataclass of further options of the dataset
    masking_options: ClassVar[type] = Masking  # dataclass of the options of the data collator
    default_masking: ClassVar[Mapping[str, Any]] = {}  # those of them that the data collator has other defaults of
    least_documents: ClassVar[int] = 1  # fewest that examples can be made of
    turns_column: ClassVar[str | None] = None  # field of JSON lines with turns, if its text is dialogues
    fills_masks: ClassVar[bool] = True  # whether the saved model predicts masked tokens
    is_in_transformers: ClassVar[bool] = True  # whether transformers has a model that is trained so, to compare with
    options_class: ClassVar[type | None] = None  # dataclass of the objective's own options, its arguments
    initial: Any = None  # checkpoint that new models begin as (`Initial`); None: fresh weights
    needs: str | None = None  # what it cannot be trained without, and how to give it, if `hf-encoders pretrain` cannot

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weight of each loss term, as `PreTrainingTrainer` takes them."""
        return {term.name: term.weight for term in self.terms}

    def model_class(self, config_class: type[PreTrainedConfig]) -> type[PreTrainedModel]:
        """The family's class with the heads of the objective.

        Raises:
            ValueError: if the family does not have them.
        """
        model_class, missing = self._model_class(config_class)
        if missing:
            families = getattr(transformers, self.auto_class)._model_mapping._extra_content  # those registered here
            able = [config.model_type for config in families if not self._model_class(config)[1]]
            others = [name for name, one in objectives().items() if not one._model_class(config_class)[1]]
            raise ValueError(
                f"objective {self.name}: {config_class.model_type} has no head for {' and '.join(missing)}. Use "
                f"{' or '.join(others)}, or the family {' or '.join(able)}."
            )
        return model_class

    def _model_class(self, config_class: type[PreTrainedConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        """The family's class, and what it has no head for."""
        model_class = getattr(transformers, self.auto_class)._model_mapping.get(config_class, None)
        terms = getattr(model_class, "loss_terms", {})
        return model_class, [term.items for term in self.terms if term.name not in terms]

    def with_options(self, **options: Any) -> "Objective":
        """The objective with its own options.

        Raises:
            ValueError: naming an option that it does not have, or with an invalid value.
        """
        if not options:
            return self
        known = (
            [] if self.options_class is None else [option.name for option in dataclasses.fields(self.options_class)]
        )
        if unknown := [name for name in options if name not in known]:
            remedy = f"its options are {', '.join(known)}" if known else "it has none: leave options out"
            raise ValueError(f"options: {self.name} has no option {unknown[0]!r}: {remedy}.")
        try:
            return type(self)(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options: {error}") from error

    @property
    def begins_trained(self) -> bool:
        """Whether new models begin with the weights of a trained encoder."""
        return self.initial is not None

    def of_checkpoint(self, initial: Any) -> "Objective":
        """The same for models that begin as a checkpoint, an `Initial`."""
        objective = copy.copy(self)
        objective.initial = initial
        return objective

    def model_fields(self, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
        """Fields of a new model's configuration that are decided, unless the recipe does: the checkpoint's."""
        return {} if self.initial is None else self.initial.fields

    def facts(self) -> dict[str, Any]:
        """Return the facts that identify a run next to its recipe and text, for `run.json`."""
        return {} if self.initial is None else {INITIAL: self.initial.facts}

    def new_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """A model with fresh weights, or those of the checkpoint."""
        if self.initial is None or torch.get_default_device().type == "meta":  # a model without memory, for a plan
            return getattr(transformers, self.auto_class).from_config(config)
        return self.initial.model(config)

    def saved_model(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model in the folder that a trained one is saved to, which the card describes."""
        return model

    def held_out_options(self, examples: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `make_examples` that held-out examples have too: none that is an artefact."""
        return {}

    def make_examples(self, documents: datasets.Dataset, max_length: int, **options: Any) -> EpochDataset:
        """The dataset of examples, of at most `max_length` tokens each."""
        return self.dataset_class(documents, max_length, **options)

    def make_parallel_examples(
        self, documents: datasets.Dataset, max_length: int, languages: Sequence[str], **options: Any
    ) -> EpochDataset:
        """The dataset of examples of a parallel corpus: translation language modelling, for objectives that have it.

        A source of a run is parallel if `parallel_languages(folder)` is not None: these are the `languages`. Its
        examples need a collator with `first_position`, `config_class.position_rows(0, tokenizer.pad_token_id)`.

        Args:
            documents (`datasets.Dataset`): Documents of two sentences.
            max_length (`int`): Longest example in tokens, special tokens included.
            languages (`Sequence[str]`): Names of the languages of the two sentences.
            options: As of `make_examples`; those of blocks of text have no effect on pairs.

        Raises:
            ValueError: If the objective takes no parallel text, or no pair fits.
        """
        if self.parallel_class is None:
            able = [objective.name for objective in objectives().values() if objective.parallel_class is not None]
            raise ValueError(
                f"objective {self.name}: the corpus {'-'.join(languages)} is parallel text, of which it makes no "
                f"examples: use {' or '.join(able)}, or leave that corpus out."
            )
        known = inspect.signature(self.parallel_class).parameters
        options = {name: value for name, value in options.items() if name in known}
        return self.parallel_class(documents, max_length, languages, **options)

    def make_collator(
        self, tokenizer: PreTrainedTokenizerBase, model_class: type[PreTrainedModel], **options: Any
    ) -> Any:
        """The data collator: examples -> arguments of the model's `forward`.

        `options` are those of `masking`, `packed`, and where there is parallel text or a model with language
        embeddings `first_position` and `lang2id`.
        """
        return self.collator_class(tokenizer, **options)

    def check_options(self, examples: Mapping[str, Any], masking: Mapping[str, Any]) -> None:
        """Refuse unknown or invalid options of `make_examples` and `make_collator` before there is text.

        Raises:
            ValueError: naming the option; and as `example_options` and `masking_options`.
        """
        parameters = inspect.signature(self.dataset_class).parameters
        own = [name for name in parameters if name not in GIVEN_BY_THE_RUN]
        if not callable(masking.get("word_starts", WordStarts)):
            raise ValueError(f"masking: word_starts={masking['word_starts']!r} is set by presets only: leave it out.")
        for key, kind, options, others in (
            ("examples", self.example_options, examples, own),
            ("masking", self.masking_options, {**self.default_masking, **masking}, []),
        ):
            fields = [] if kind is None else [option.name for option in dataclasses.fields(kind)]
            known = list(dict.fromkeys([*others, *fields]))
            unknown = [name for name in options if name not in known]
            if unknown:
                remedy = NAMES_ELSEWHERE.get(unknown[0], f"its options are {', '.join(known)}")
                raise ValueError(f"{key}: {self.name} has no option {unknown[0]!r}: {remedy}.")
            defaults = {name: parameters[name].default for name in others}
            defaults |= {} if kind is None else {option.name: option.default for option in dataclasses.fields(kind)}
            for name, value in options.items():
                if isinstance(defaults[name], bool) and not isinstance(value, bool):
                    raise ValueError(f"{key}: {name}={value!r} must be true or false.")
            try:
                check_draws(**{name: options[name] for name in ("epochs_per_draw", "dupe_factor") if name in options})
                if kind is not None:
                    kind(**{name: value for name, value in options.items() if name in fields})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{key}: {error}") from error

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe what was predicted and how, for the card: `{"masked language modelling": "15 % of ..."}`.

        Args:
            collator: Data collator of the run.
            mask_rates (`Sequence[float]`): First and last mask rate of a schedule; empty without one.
            examples (`Mapping`): Options of the examples.
            logged (`Mapping[str, float]`): Means over the run of the metrics of `HealthCallback`.
        """
        return {self.name: ", ".join(term.items for term in self.terms)}

    def describe_parallel(self, sources: Sequence[str]) -> dict[str, str]:
        """Describe what is predicted of parallel text, for the card, from the names of those sources."""
        return {}

    def results(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> list[dict[str, Any]]:
        """Entries of the card's evaluation, with their baselines, from the metrics of an evaluation (`eval_...`)."""
        entries = []
        for term in self.terms:
            if f"eval_{term.name}_accuracy" in metrics:
                value = round(metrics[f"eval_{term.name}_accuracy"], 4)
                entry = {"task": term.task, "metric": "accuracy", "value": value}
                entries.append(entry if term.baseline is None else {**entry, "baseline": term.baseline})
        return entries

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """Losses without learning, in words and nats: `{"mlm_loss": ("unigram cross-entropy", 6.4)}`."""
        return {}

    def summary(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> str:
        """The metrics of an evaluation (`eval_...`) in a line."""
        parts = []
        for term in self.terms:
            metric = f"eval_{term.name}"
            if f"{metric}_loss" in metrics:
                parts.append(f"{term.items} loss {metrics[f'{metric}_loss']:.3f}")
                if f"{metric}_nats_per_byte" in metrics:
                    parts[-1] += f" ({metrics[f'{metric}_nats_per_byte']:.3f} nats per byte)"
            if f"{metric}_accuracy" in metrics:
                parts[-1] += f", accuracy {metrics[f'{metric}_accuracy']:.1%}"
        return "; ".join(parts)

    def losses(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Losses of an evaluation for the card: `{"masked tokens, held-out": 2.31}`."""
        names = {f"{term.items}, held-out": f"eval_{term.name}_loss" for term in self.terms}
        names |= {f"{term.items}, held-out, per byte": f"eval_{term.name}_nats_per_byte" for term in self.terms}
        return {words: round(metrics[name], 4) for words, name in names.items() if name in metrics}


def register_objective(objective: Objective) -> None:
    """Make your own objective known by its name to recipes and commands.

    Raises:
        ValueError: if another objective has the name.
    """
    if type(objectives().get(objective.name, objective)) is not type(objective):
        raise ValueError(f"objective {objective.name!r} is already registered: choose another name.")
    _registered[objective.name] = objective


def objectives() -> dict[str, Objective]:
    """Return all objectives by name: those whose classes write out a `name` in the files here, and your own ones."""
    _register_files()
    return _registered


@cache
def _register_files() -> None:
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        module = importlib.import_module(f"hf_encoders.objectives.{file.stem}")
        for kind in [value for value in vars(module).values() if isinstance(value, type)]:
            is_here = kind.__module__ == module.__name__ and issubclass(kind, Objective)
            if is_here and "name" in vars(kind):  # a base of several has none
                _registered[kind.name] = kind()


def get_objective(name: str) -> Objective:
    """Return an objective by its name.

    Raises:
        ValueError: if there is no such objective.
    """
    if name not in objectives():
        raise ValueError(f"objective {name!r}: it must be one of {', '.join(objectives())}.")
    return _registered[name]
