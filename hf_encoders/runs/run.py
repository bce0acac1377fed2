"""A run: a recipe on this machine, and from it the examples, the data collator and the trainer."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProgressCallback, TrainingArguments

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.report import cross_entropy, token_counts
from hf_encoders.corpus.text_files import UNNAMED
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.dataset import EpochDataset, Example
from hf_encoders.objectives.mixture import MixedExamples, source_seed
from hf_encoders.objectives.objective import Objective
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.runs.recipe import Phase, Recipe
from hf_encoders.runs.sources import Source, Sources, masking_options
from hf_encoders.training.callbacks import CompactProgressCallback
from hf_encoders.training.health import HealthCallback
from hf_encoders.training.muon import set_muon_groups
from hf_encoders.training.optimizers import check_training_arguments, optim_field, optimizer_class, set_layer_decay
from hf_encoders.training.trainer import PreTrainingTrainer


MICRO_BATCH_TOKENS = 16384  # the default fills a GPU and fits a laptop
# Most tokens between two checkpoints: about 20 minutes of 8 GPUs, or 3 hours of one, with a model of base size.
SAVE_TOKENS = 10**9
FEWEST_SAVE_STEPS = 50  # default number of steps between two checkpoints and evaluations, at least
EVAL_EXAMPLES = 2000  # most examples of an evaluation, spread evenly over the held-out documents
FEWEST_EVAL_EXAMPLES = 200  # of each of many sources, if it has so many

Documents = datasets.Dataset | Mapping[str, Source]  # the documents of one source without a name, or sources


@dataclass(frozen=True)
class MicroBatching:
    """How the examples of a step are divided into micro-batches."""

    processes: int
    accumulation: int  # micro-batches of a process per step
    examples: int  # most in a micro-batch of the longest phase

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step, over all processes."""
        return self.processes * self.accumulation


def divide(
    recipe: Recipe, processes: int, examples: int | None = None, accumulation: int | None = None
) -> MicroBatching:
    """Divide the steps of a recipe into as few micro-batches as possible.

    Args:
        recipe (`Recipe`): Sets the examples per step.
        processes (`int`): Processes of the launch.
        examples (`int`, *optional*): Most examples of the longest phase in a micro-batch. Defaults to 16,384 tokens'
            worth, or more where a phase has too few examples per step to be divided that often.
        accumulation (`int`, *optional*): Micro-batches per step, instead.

    Raises:
        ValueError: if both are given, for numbers below 1, and for a phase with fewer examples per step than there
            would be micro-batches.

    >>> from hf_encoders.runs.recipe import load_recipe
    >>> divide(load_recipe("bert-base"), processes=8)  # 256 examples, 32 per device, of 512 tokens in the second phase
    MicroBatching(processes=8, accumulation=1, examples=32)
    >>> divide(load_recipe("bert-base"), processes=2, examples=16).accumulation
    8
    """
    for name, value in (("per_device_train_batch_size", examples), ("gradient_accumulation_steps", accumulation)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    if examples is not None and accumulation is not None:
        raise ValueError(
            f"per_device_train_batch_size={examples} and gradient_accumulation_steps={accumulation}: the recipe sets "
            "the examples per step, so one of them follows from the other: give one."
        )
    largest = max(phase.length * phase.examples for phase in recipe.phases)
    if accumulation is None:
        tokens = MICRO_BATCH_TOKENS if examples is None else examples * recipe.longest
        accumulation = math.ceil(largest / (processes * tokens))
        if examples is None:
            # A phase of few examples limits how often a step can be divided.
            fewest = min(phase.fewest_examples for phase in recipe.phases) // processes
            accumulation = max(1, min(accumulation, fewest))
    for number, phase in enumerate(recipe.phases):
        if phase.fewest_examples < processes * accumulation:
            raise ValueError(
                f"phase {number + 1} has {phase.fewest_examples} examples per step, and processes times accumulation "
                f"steps are {processes * accumulation}: use fewer of either (a larger per_device_train_batch_size "
                "accumulates less), or give the phase more examples."
            )
    return MicroBatching(processes, accumulation, math.ceil(largest / recipe.longest / (processes * accumulation)))


def num_processes() -> int:
    """Return the processes of the launch: `torchrun` and `accelerate launch` set `WORLD_SIZE`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class PhaseExamples:
    """A phase and the dataset of its examples, which have the phase's length."""

    phase: Phase
    dataset: EpochDataset

    @property
    def epochs(self) -> float:
        """Passes over the dataset."""
        return int(self.phase.bounds[-1]) / len(self.dataset)


class RunExamples(Dataset):
    """The micro-batches of a run, of all its phases in order: item k is the k-th.

    So a run of several lengths and batch sizes is one `train()`, with one optimizer and one schedule, and a restart
    skips to its micro-batch without reading those before it.

    Every step takes the next `examples` of its phase from a random order of the epoch's examples, a function of (seed,
    epoch). The division into micro-batches changes neither the examples of a step nor their random choices: a run on
    one device equals the same run on two. Epochs are numbered across phases, so no phase repeats an earlier one.
    Examples of a phase with `masking` name it, for the data collator's `phase_masking`.

    Args:
        phases (`Sequence[PhaseExamples]`): The phases in order.
        micro_batches (`int`): Micro-batches per step, over all processes: processes times accumulation steps.
        mask_rate (`Callable`, *optional*): Progress in [0, 1) -> mask rate of a step, such as `MaskRate`. None
            leaves it to the data collator.
    """

    def __init__(
        self,
        phases: Sequence[PhaseExamples],
        micro_batches: int,
        mask_rate: Callable[[float], float] | None = None,
    ):
        self.phases, self.micro_batches, self.mask_rate = list(phases), micro_batches, mask_rate
        self.bounds = [part.phase.bounds for part in self.phases]  # examples of each phase before its steps
        # First micro-batch and first epoch of each phase.
        self.first_items, self.first_epochs = [0], [0]
        for part in self.phases:
            self.first_items.append(self.first_items[-1] + part.phase.steps * micro_batches)
            self.first_epochs.append(self.first_epochs[-1] + math.ceil(part.epochs))
        self._opened: tuple[int, int, EpochDataset, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.first_items[-1]

    @property
    def corpora(self) -> list[FlatCorpus]:
        """The corpora of the phases, which checkpoints record."""
        return self.phases[0].dataset.corpora

    @property
    def mixtures(self) -> list[tuple[MixedExamples, float]]:
        """The mixture of sources of each phase, and how many of its epochs the phase has; empty for a single text."""
        return [(part.dataset, part.epochs) for part in self.phases if isinstance(part.dataset, MixedExamples)]

    @property
    def passes(self) -> dict[str, float]:
        """How often the run reads each source; empty for a single text."""
        total: dict[str, float] = {}
        for mixture, epochs in self.mixtures:
            for name, passes in mixture.passes.items():
                total[name] = total.get(name, 0.0) + passes * epochs
        return total

    def items_of(self, phase: int) -> range:
        """Return the micro-batches of a phase, from 0."""
        return range(self.first_items[phase], self.first_items[phase + 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __getitem__(self, index: int) -> list[Example]:
        """Return the examples of a micro-batch."""
        number = int(np.searchsorted(self.first_items, index, "right")) - 1
        phase, num_examples = self.phases[number].phase, len(self.phases[number].dataset)
        step, turn = divmod(index - self.first_items[number], self.micro_batches)
        first, next_step = (int(bound) for bound in self.bounds[number][step : step + 2])
        # Micro-batches of a step differ by one example at most.
        begin, end = (first + (next_step - first) * i // self.micro_batches for i in (turn, turn + 1))
        examples = []
        for i in range(begin, end):
            epoch, position = divmod(i, num_examples)
            dataset, order = self._open(number, self.first_epochs[number] + epoch)
            examples.append(dataset.example(int(order[position])))
        for example in examples:
            if self.mask_rate is not None:
                example.mask_rate = self.mask_rate(index // self.micro_batches * self.micro_batches / len(self))
            if phase.masking:
                example.phase = number + 1
        return examples

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Return the examples of several micro-batches together."""
        return [example for index in indices for example in self[int(index)]]

    def _open(self, phase: int, epoch: int) -> tuple[EpochDataset, np.ndarray]:
        """Return a phase's dataset in an epoch, and the order of its examples in it."""
        if self._opened is None or self._opened[:2] != (phase, epoch):
            dataset = self.phases[phase].dataset.at_epoch(epoch)
            random = generator(Key(dataset.seed, epoch, phase), RandomStream.PHASE_SHUFFLE)
            self._opened = (phase, epoch, dataset, random.permutation(len(dataset)))
        return self._opened[2:]


class Run:
    """A recipe on this machine.

    Args:
        recipe (`Recipe`): What is trained.
        output (`Path` or `str`): Folder of the run.
        options (`Mapping`, *optional*): Fields of `TrainingArguments` that take precedence over the recipe's.
        micro_batching (`MicroBatching`, *optional*): Defaults to `divide(recipe, num_processes())`.
        objective (`Objective`, *optional*): The recipe's with its checkpoint or teacher; by default, as the recipe's.

    Raises:
        ValueError: as `training_arguments` and `divide`.
    """

    def __init__(
        self,
        recipe: Recipe,
        output: Path | str,
        options: Mapping[str, Any] | None = None,
        micro_batching: MicroBatching | None = None,
        objective: Objective | None = None,
    ):
        self.recipe, self.output, self.options = recipe, Path(output), options or {}
        self.micro_batching = micro_batching or divide(recipe, num_processes())
        self.objective = objective or recipe.own_objective
        self.arguments = training_arguments(recipe, self.micro_batching, output, self.options)

    @property
    def initial_fields(self) -> dict[str, Any]:
        """Fields of the model that a checkpoint or teacher decides where the recipe does not."""
        return self.objective.model_fields(self.recipe.config_class)

    def examples(self, documents: Documents) -> RunExamples:
        """Return the micro-batches of the run; phases of one length, with the same sampling, share a dataset."""
        recipe, seed, sources = self.recipe, self.arguments.seed, Sources.of(documents)
        by_length = {
            length: {
                name: source.examples(self.objective, length, recipe.examples, seed=seed)
                for name, source in sources.items()
            }
            for length in {phase.length for phase in recipe.phases}
        }
        made, phases = {}, []
        for phase, sampling in zip(recipe.phases, recipe.samplings, strict=True):
            kind = phase.length, str(sampling)
            if kind not in made:
                # Another mixture counts passes from 0 again, so its examples need random numbers of their own.
                mixture_seed = source_seed(seed, f"phase {len(made)}") if made else seed
                made[kind] = sources.mixed(by_length[phase.length], sampling, mixture_seed)
            phases.append(PhaseExamples(phase, made[kind]))
        return RunExamples(phases, self.micro_batching.micro_batches, recipe.mask_rate)

    def held_out_examples(self, documents: Documents) -> Dataset | dict[str, Dataset]:
        """Return examples of the longest phase's length to evaluate on: always the same, without artefacts.

        Of sources with names, a dataset for each, which share the number of examples.
        """
        sources, seed = Sources.of(documents), self.arguments.seed
        most = max(EVAL_EXAMPLES // len(sources), FEWEST_EVAL_EXAMPLES)
        names, evaluated = self.objective.held_out_options, {}
        options = {name: value for name, value in self.recipe.examples.items() if name in names}
        for name, source in sources.items():
            try:
                # A mixture says by itself that it is not drawn again.
                examples = source.examples(self.objective, self.recipe.longest, options, seed=seed, redraw=bool(name))
            except ValueError as error:
                number = f"{len(source.documents):,} held-out document{'s' * (len(source.documents) != 1)}"
                raise ValueError(f"{number}: {error} Or hold out more, with --validation-share.") from error
            examples = sources.mixed({name: examples}, None, seed, redraw=False)
            spread = np.linspace(0, len(examples) - 1, min(len(examples), most)).astype(int)
            evaluated[name] = Subset(examples, spread.tolist())
        return evaluated.get(UNNAMED, evaluated)

    def model_config(self, tokenizer: PreTrainedTokenizerBase, documents: Documents) -> EncoderConfig:
        """Return the configuration of a new model, for a tokenizer and the languages of the text.

        Raises:
            ValueError: as `Recipe.model_config`; for parallel text in a model that cannot restart positions; and for
                text in a language that the model has no embedding of.
        """
        sources = Sources.of(documents)
        languages = [name for source in sources.values() for name in source.languages]
        config = self.recipe.model_config(tokenizer, languages, self.initial_fields)
        sources.check_languages(config)
        if sources.have_pairs and not (config.has_position_table or getattr(config, "rope_parameters", None)):
            raise ValueError(
                f"model: a {config.model_type} of distances counts positions on through a pair of translations, where "
                "they begin again: take one with a table of positions (leave position_embedding_type out), or leave "
                "out the parallel corpus."
            )
        return config

    def collator(self, tokenizer: PreTrainedTokenizerBase, documents: Documents) -> Any:
        """Return the data collator. With a schedule of mask rates, evaluation is at the last one."""
        sources, config = Sources.of(documents), self.model_config(tokenizer, documents)
        options = masking_options(self.recipe, tokenizer, sources)
        if sources.have_pairs:
            options["first_position"] = self.recipe.config_class.position_rows(0, tokenizer.pad_token_id)
        if config.languages is not None:
            options["lang2id"] = config.languages
        model_class = self.objective.model_class(self.recipe.config_class)
        return self.objective.make_collator(tokenizer, model_class, packed=True, **options)

    def trainer(
        self,
        documents: Documents,
        held_out: Documents,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel | None = None,
    ) -> PreTrainingTrainer:
        """Return the trainer of the run, for `model` or, by default, a new one."""
        if model is None:
            model = self.objective.new_model(self.model_config(tokenizer, documents))
        examples, evaluated = self.examples(documents), self.held_out_examples(held_out)
        baselines = unigrams(
            examples, evaluated, Sources.of(documents), Sources.of(held_out), padded_vocab_size(tokenizer, 1)
        )
        trainer = PreTrainingTrainer(
            model=model,
            args=self.arguments,
            train_dataset=examples,
            eval_dataset=evaluated,
            data_collator=self.collator(tokenizer, documents),
            processing_class=tokenizer,
            loss_weights=self.objective.loss_weights,
            health=HealthCallback(*baselines, is_trained=self.objective.begins_trained),
            optimizer_cls_and_kwargs=optimizer_class(self.recipe.optimizer, self.arguments),
        )
        set_muon_groups(trainer)
        set_layer_decay(trainer, self.recipe.layer_decay)
        changes = self.recipe.phase_changes(trainer.model.config, self.arguments.learning_rate)
        if changes is not None:
            trainer.add_callback(changes)
        if not self.arguments.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(CompactProgressCallback)
        return trainer

    def with_half_micro_batches(self, error: Exception, is_allowed: bool) -> "Run":
        """Return the run after `error`, out of memory, with half as many examples per micro-batch; steps keep theirs.

        Raises:
            ValueError: with the remedy, if it is not allowed, or half as many are impossible.
        """
        examples, half = self.micro_batching.examples, self.micro_batching.examples // 2
        problem = f"out of memory with {examples} examples of {self.recipe.longest} tokens per micro-batch"
        try:
            smaller = divide(self.recipe, self.micro_batching.processes, examples=half)
        except ValueError as refused:
            otherwise = "Or use a smaller model, or --activation-checkpointing True."
            raise ValueError(f"{problem}, and half as many are impossible: {refused} {otherwise}") from error
        if not is_allowed:
            raise ValueError(
                f"{problem}: give --per-device-train-batch-size {half}, which trains on the same steps, or "
                "--auto-find-batch-size True, which halves by itself."
            ) from error
        return Run(self.recipe, self.output, self.options, smaller, self.objective)


def unigrams(
    examples: RunExamples, evaluated: Any, sources: Sources, held_out: Sources, vocab_size: int
) -> tuple[float, dict[str, float]]:
    """Return the unigram cross-entropy in nats per held-out token: over all sources, and of each one with a name.

    A source's is under its own token frequencies. That over all is under those of the mixture of the last phase, of
    the held-out tokens that are evaluated.
    """
    counts = {name: token_counts(source.documents, vocab_size) for name, source in sources.items()}
    of_source = {name: cross_entropy(counts[name], held_out[name].documents) for name in sources}
    if UNNAMED in sources:
        return of_source[UNNAMED], {}
    passes = examples.phases[-1].dataset.passes
    mixture = sum(passes[name] * counts[name] for name in sources)
    nats, weights = [], []
    for name, source in held_out.items():
        nats.append(cross_entropy(mixture, source.documents))
        share = len(evaluated[name]) / len(evaluated[name].dataset)
        weights.append(share * len(FlatCorpus.of(source.documents).tokens))
    return float(np.average(nats, weights=weights)), of_source


def training_arguments(
    recipe: Recipe, micro_batching: MicroBatching, output: Path | str, options: Mapping[str, Any]
) -> TrainingArguments:
    """Return the recipe's fields, overridden by `options`, and those that make item k of the dataset micro-batch k.

    Raises:
        ValueError: for epochs as a strategy, and for what transformers, `check_training_arguments` or the optimizer
            refuses.
    """
    if "learning_rate" not in recipe.training and "learning_rate" not in options:
        raise ValueError("training: learning_rate is missing, and no default suits all models and batches.")
    tokens_per_step = max(phase.length * phase.examples for phase in recipe.phases)
    save_steps = max(1, min(max(recipe.steps // 10, FEWEST_SAVE_STEPS), SAVE_TOKENS // tokens_per_step))
    fields = {
        "logging_steps": max(1, min(500, recipe.steps // 100)),
        "save_steps": save_steps,
        "save_total_limit": 3,
        "eval_strategy": "steps",
        "eval_steps": save_steps,
        "per_device_eval_batch_size": micro_batching.examples,
        "report_to": "none",
        "dataloader_pin_memory": torch.cuda.is_available(),
        # A GPU computes while they make the next batches; a CPU's cores compute.
        "dataloader_num_workers": 2 if torch.cuda.is_available() else 0,
        "use_cpu": not torch.accelerator.is_available(),
        "disable_tqdm": False,
        "ddp_find_unused_parameters": False,
        **recipe.training,
        "warmup_steps": recipe.warmup_steps,
        **options,
    }
    try:
        arguments = TrainingArguments(
            **fields,
            output_dir=str(output),
            max_steps=recipe.steps,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=micro_batching.accumulation,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            optim=optim_field(recipe.optimizer),
        )
    except ValueError as error:
        raise ValueError(f"TrainingArguments: {' '.join(str(error).split())}") from error
    for name in ("save_strategy", "eval_strategy", "logging_strategy"):
        if getattr(arguments, name) == "epoch":
            raise ValueError(f"{name}=epoch: the run is one pass over its steps: use steps.")
    if arguments.weight_decay == 0 and any(phase.weight_decay is not None for phase in recipe.phases):
        raise ValueError("weight_decay=0, and a phase has one: give the run one above 0, for parameters that decay.")
    check_training_arguments(arguments, arguments.max_steps)
    optimizer_class(recipe.optimizer, arguments)  # refuses invalid combinations before there is text
    return arguments
