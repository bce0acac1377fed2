"""A pre-training objective as one object: examples, data collator, model head, loss terms and words for the card."""

import copy
import importlib
import inspect
import math
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
from hf_encoders.objectives.dataset import EpochDataset, check_draws, refuse_unknown_options
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
    chance: float | None = None  # accuracy of guessing, if that is known


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
    is_of_heads: ClassVar[bool] = True  # whether the heads of a checkpoint decide if `adapt` trains it, or its recipe
    initial: Any = None  # checkpoint that new models begin as (`Initial`); None: fresh weights
    needs: str | None = None  # what it cannot be trained without, and how to give it, if `hf-encoders pretrain` cannot
    held_out_options: ClassVar[tuple[str, ...]] = ()  # of the dataset, which held-out examples have too: no artefacts

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weight of each loss term, as `PreTrainingTrainer` takes them."""
        return {term.name: term.weight for term in self.terms}

    def model_class(self, config_class: type[PreTrainedConfig]) -> type[PreTrainedModel]:
        """Return the family's class with the heads of the objective.

        Raises:
            ValueError: if the family does not have them.
        """
        model_class, missing = self.find_model_class(config_class)
        if missing:
            families = getattr(transformers, self.auto_class)._model_mapping._extra_content  # those registered here
            able = [config.model_type for config in families if not self.find_model_class(config)[1]]
            objectives_of_family = [
                name for name, objective in objectives().items() if not objective.find_model_class(config_class)[1]
            ]
            raise ValueError(
                f"objective {self.name}: {config_class.model_type} has no head for {' and '.join(missing)}. Use "
                f"{' or '.join(objectives_of_family)}, or the family {' or '.join(able)}."
            )
        return model_class

    def find_model_class(self, config_class: type[PreTrainedConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        """Return the family's class, and what it has no head for."""
        model_class = getattr(transformers, self.auto_class)._model_mapping.get(config_class, None)
        terms = getattr(model_class, "loss_terms", {})
        return model_class, [term.items for term in self.terms if term.name not in terms]

    def with_options(self, **options: Any) -> "Objective":
        """Return the objective with its own options.

        Raises:
            ValueError: naming an option that it does not have, or with an invalid value.
        """
        if not options:
            return self
        known = () if self.options_class is None else inspect.signature(self.options_class).parameters
        refuse_unknown_options(f"options: {self.name}", options, known)
        try:
            return type(self)(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"options: {error}") from error

    @property
    def begins_trained(self) -> bool:
        """Return whether new models begin with the weights of a trained encoder."""
        return self.initial is not None

    def of_checkpoint(self, initial: Any) -> "Objective":
        """Return the objective for models that are initialised from a checkpoint, an `Initial`."""
        objective = copy.copy(self)
        objective.initial = initial
        return objective

    def model_fields(self, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
        """Return the fields of a new model's configuration that the recipe may replace: the checkpoint's."""
        return {} if self.initial is None else self.initial.fields

    def facts(self) -> dict[str, Any]:
        """Return the facts that identify a run next to its recipe and text, for `run.json`."""
        return {} if self.initial is None else {INITIAL: self.initial.facts}

    def new_model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """Return a model with fresh weights, or those of the checkpoint."""
        if self.initial is None or torch.get_default_device().type == "meta":  # a model without memory, for a plan
            return getattr(transformers, self.auto_class).from_config(config)
        return self.initial.model(config)

    def saved_model(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model in the folder that a trained one is saved to, which the card describes."""
        return model

    def make_parallel_examples(
        self, documents: datasets.Dataset, max_length: int, languages: Sequence[str], **options: Any
    ) -> EpochDataset:
        """Return the examples of a parallel corpus: translation language modelling, for objectives that have it.

        They need a collator with `first_position`, `config_class.position_rows(0, tokenizer.pad_token_id)`.

        Args:
            documents (`datasets.Dataset`): Documents of two sentences.
            max_length (`int`): Longest example in tokens, special tokens included.
            languages (`Sequence[str]`): Names of the languages of the two sentences.
            options: As of `dataset_class`; those of blocks of text have no effect on pairs.

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
        """Return the data collator.

        `options` are those of `masking`, `packed`, and where there is parallel text or a model with language
        embeddings `first_position` and `lang2id`.
        """
        return self.collator_class(tokenizer, **{**self.default_masking, **options})

    def check_options(self, examples: Mapping[str, Any], masking: Mapping[str, Any]) -> None:
        """Refuse unknown or invalid options of the dataset and the data collator before there is text.

        Raises:
            ValueError: naming the option; and as `example_options` and `masking_options`.
        """
        if not callable(masking.get("word_starts", WordStarts)):
            raise ValueError(f"masking: word_starts={masking['word_starts']!r} is set by presets only: leave it out.")
        options_of_dataset = dict(inspect.signature(self.dataset_class).parameters)
        for name in GIVEN_BY_THE_RUN:
            options_of_dataset.pop(name, None)
        options_of_masking = inspect.signature(self.masking_options).parameters
        for key, kind, options, known in (
            ("examples", self.example_options, examples, options_of_dataset),
            ("masking", self.masking_options, {**self.default_masking, **masking}, options_of_masking),
        ):
            refuse_unknown_options(f"{key}: {self.name}", options, known)
            for name, value in options.items():
                if isinstance(known[name].default, bool) and not isinstance(value, bool):
                    raise ValueError(f"{key}: {name}={value!r} must be true or false.")
            try:
                check_draws(**{name: options[name] for name in ("epochs_per_draw", "dupe_factor") if name in options})
                if kind is not None:
                    kind(**{n: options[n] for n in inspect.signature(kind).parameters if n in options})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{key}: {error}") from error

    # --- what the log and the card say ---

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

    def scores(
        self, term: LossTerm, metrics: Mapping[str, float], unigram_cross_entropy: float
    ) -> list[dict[str, Any]]:
        """Return metrics of an evaluation (`eval_...`) besides the loss of a term, with baselines."""
        scores = []
        if self.token_term is not None and term.name == self.token_term.name:
            baseline = f"unigram {math.exp(unigram_cross_entropy):.1f}"
            scores.append(
                {"metric": "perplexity", "value": round(metrics["eval_perplexity"], 2), "baseline": baseline}
            )
        if (accuracy := metrics.get(f"eval_{term.name}_accuracy")) is not None:
            scores.append({"metric": "accuracy", "value": round(accuracy, 4)})
            if term.chance is not None:
                scores[-1]["baseline"] = f"chance {term.chance}"
        return scores

    def results(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> list[dict[str, Any]]:
        """Return entries of the card's evaluation from the metrics of an evaluation."""
        return [
            {"task": term.task, **score}
            for term in self.terms
            for score in self.scores(term, metrics, unigram_cross_entropy)
        ]

    def summary(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> str:
        """Return the metrics of an evaluation in a line."""
        terms = []
        for term in self.terms:
            loss, per_byte = (metrics.get(f"eval_{term.name}_{name}") for name in ("loss", "nats_per_byte"))
            words = [] if loss is None else [f"loss {loss:.3f}"]
            words += [] if per_byte is None else [f"{per_byte:.3f} nats per byte"]
            for score in self.scores(term, metrics, unigram_cross_entropy):
                baseline = f" ({score['baseline']})" if "baseline" in score else ""
                words.append(f"{score['metric']} {score['value']}{baseline}")
            terms.append(f"{term.items} {', '.join(words)}")
        return "; ".join(terms)

    def losses(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the losses of an evaluation for the card: `{"masked tokens, held-out": 2.31}`."""
        names = {f"{term.items}, held-out": f"eval_{term.name}_loss" for term in self.terms}
        names |= {f"{term.items}, held-out, per byte": f"eval_{term.name}_nats_per_byte" for term in self.terms}
        return {words: round(metrics[name], 4) for words, name in names.items() if name in metrics}

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """Return losses without learning, in words and nats: `{"mlm_loss": ("unigram cross-entropy", 6.4)}`."""
        of_chance = {term.name: ("chance", -math.log(term.chance)) for term in self.terms if term.chance is not None}
        of_tokens = (
            {} if self.token_term is None else {self.token_term.name: ("unigram cross-entropy", unigram_cross_entropy)}
        )
        return {f"{name}_loss": baseline for name, baseline in {**of_tokens, **of_chance}.items()}


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
