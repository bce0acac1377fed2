"""A run from a command line: its options, plan, training and finished folder; what `pretrain` and `distil` share."""

import argparse
import dataclasses
import json
import os
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from accelerate.utils import release_memory
from huggingface_hub import upload_folder
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_encoders.corpus.named_sources import named_values
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.loading import check_first_position, check_rows, load_tokenizer, set_inputs, set_length
from hf_encoders.objectives.objective import Objective
from hf_encoders.runs.plan import Plan, make_plan, measure_passes
from hf_encoders.runs.pretrained_folder import metrics_of_source, save_pretrained_folder, with_nats_per_byte
from hf_encoders.runs.recipe import Recipe
from hf_encoders.runs.run import Run, divide, num_processes, train_to_the_end
from hf_encoders.runs.run_corpus import CORPUS, CorpusPaths, open_sources, remove_other_sources
from hf_encoders.runs.run_folder import (
    ALONE,
    BEFORE,
    IS_FINISHED,
    BeforeCallback,
    RunFileCallback,
    begin_or_go_on,
    check_run,
    phases_of,
    read_run_file,
    restored_if_refused,
    run_identity,
    set_run_aside,
    settings_facts,
    write_run,
)
from hf_encoders.runs.run_options import OWN
from hf_encoders.runs.sources import Sources, bytes_per_token, divided
from hf_encoders.publishing.files import CARD_FILE, published_files, refuse_secrets
from hf_encoders.training.checkpoints import checkpoints_by_step, step_of
from hf_encoders.training.out_of_memory import is_out_of_memory
from hf_encoders.training.head_warm_up import HeadWarmUpCallback
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.training_fields import given_fields
from hf_encoders.writing import locked


def train_run(arguments: argparse.Namespace, recipe: Recipe, objective: Objective | None = None) -> int:
    """Plan, train, evaluate, save; `objective` replaces the recipe's by one with a teacher, say."""
    given = given_fields(arguments)
    if "optim" in given:
        recipe = dataclasses.replace(recipe, optimizer=given["optim"])
    if "max_steps" in given:
        recipe = recipe.of_steps(given["max_steps"])
    corpus = CorpusPaths.of_words(arguments.corpus, arguments.language, arguments.source_options)
    recipe = with_sampling(recipe, arguments, corpus)
    corpus.check_recipe(recipe, objective.model_fields(recipe.config_class) if objective else None)
    output = Path(arguments.output)
    noted = None if overwrites(arguments) else read_run_file(output)
    if noted is not None:
        recipe = recipe.lengthened(phases_of(noted), is_scaled="max_steps" in given)
    halves = bool(given.get("auto_find_batch_size"))
    if halves and num_processes() > 1:
        raise ValueError("--auto-find-batch-size is for one process: give --per-device-train-batch-size instead.")
    batch = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    options = {name: value for name, value in given.items() if name not in OWN}
    run = Run.from_recipe(recipe, output, options, divide(recipe, num_processes(), *batch), objective)
    transformers.logging.set_verbosity_warning()
    if objective is not None:
        check_given_model(run, arguments.tokenizer)
    if noted is not None:  # before anything is made
        check_run(output, recipe, facts_without_text(arguments, run), run.objective.model_fields(recipe.config_class))
    tokenizer, sources, noted = open_run(arguments, run, corpus)
    if noted.get(IS_FINISHED) and (output / "model" / CARD_FILE).is_file() and not arguments.plan:
        if run.arguments.push_to_hub:
            raise ValueError(
                f"--push-to-hub: this run is finished. `hf-encoders publish {output / 'model'} --repo NAME` pushes it."
            )
        print(
            f"This run is finished: {output / 'model'}. (A larger --max-steps extends it, --overwrite starts it from "
            "scratch.)",
            flush=True,
        )
        return 0
    with run.arguments.main_process_first(desc="split of the corpus"):
        parts = divided(sources, run.objective, arguments.validation_share, run.arguments.seed)
    if arguments.plan:
        plan = plan_of_run(run, parts, tokenizer, arguments)
        print(plan, flush=True)
        if done := checkpoints_by_step(output):
            print(f"  {plan.left(step_of(done[0]))}", flush=True)
        if (output / CORPUS).is_dir():
            print(f"  (the prepared corpus is kept for the run: {output / CORPUS})", flush=True)
        return 0
    while True:
        try:
            set_seed(run.arguments.seed)
            trainer = run.trainer(*parts, tokenizer)
            if run.objective.initial is not None:
                begin_from_checkpoint(run, trainer, noted)
            trainer.add_callback(RunFileCallback(output, noted))
            if run.arguments.process_index == 0:
                plan = plan_of_trainer(run, trainer)
                print(plan, flush=True)
                trainer.add_callback(LeftCallback(plan))
            how = "give the same command again" + " without --overwrite" * arguments.overwrite
            after = train_to_the_end(trainer, how)
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            run = run.with_half_micro_batches(error, is_allowed=halves)
            examples = run.micro_batching.examples
            print(f"Out of memory: from now on {examples} examples of the longest phase per micro-batch.", flush=True)
        # Outside of the handler, which keeps the error and with it everything on the device.
        trainer = None
        release_memory()
    finish(run, trainer, parts, after, arguments, corpus, noted)
    return 0


def begin_from(source: str, arguments: argparse.Namespace, option: str) -> None:
    """Note the checkpoint or teacher that a run reads, and whose tokenizer it has unless --tokenizer is given.

    Raises:
        ValueError: If the run's result would replace it; and as `tokenizer_of`.
    """
    if Path(source).resolve() == Path(arguments.output, "model").resolve():
        raise ValueError(
            f"--output {arguments.output}: the result would replace {option} {source!r}, which the run begins from: "
            "give another folder."
        )
    arguments.begins_from = source
    arguments.tokenizer = tokenizer_of(source, arguments.tokenizer, option)


def tokenizer_of(source: str, given: str | None, option: str) -> str:
    """The name of the tokenizer for a checkpoint or teacher: `given`, or that in its folder `source`.

    Raises:
        ValueError: if both are there, and tokens have other ids.
    """
    if given is None:
        return source
    try:
        own = load_tokenizer(source)
    except ValueError:  # there is none: that is what --tokenizer is for
        return given
    if not own.get_vocab().items() <= load_tokenizer(given, "--tokenizer").get_vocab().items():
        raise ValueError(
            f"--tokenizer {given!r} has other ids than the tokenizer of {option} {source!r}, whose rows they would "
            "stand for: leave it out."
        )
    return given


def check_given_model(run: Run, tokenizer_name: str) -> None:
    """Refuse a checkpoint or teacher that is not complete or does not fit, before there is text."""
    run.objective.facts()
    initial = run.objective.initial
    is_own = initial is not None and tokenizer_name == initial.source
    tokenizer = load_tokenizer(tokenizer_name, initial.option if is_own else "--tokenizer")
    mask_and_padding(tokenizer)  # each collator puts them into examples
    sequence_ends(tokenizer)
    if initial is not None:
        initial.alone(run.recipe.steps)
        check_first_position(initial.config, tokenizer, f"{initial.option} {initial.source!r}")
    if is_own:
        check_rows(tokenizer, initial.config, f"{initial.option} {initial.source!r}")
    run.recipe.model_config(tokenizer, given=run.objective.model_fields(run.recipe.config_class))


def begin_from_checkpoint(run: Run, trainer: PreTrainingTrainer, noted: dict[str, Any]) -> None:
    """Have the checkpoint that the run begins as evaluated, once, and let new heads learn alone at first."""
    new_weights, total = trainer.model.new_weights, run.recipe.steps
    steps = noted.setdefault(ALONE, run.objective.initial.alone(total))  # also of a run that is extended later
    if new_weights:
        if steps:
            trainer.add_callback(HeadWarmUpCallback(new_weights, steps))
        if run.arguments.process_index == 0:
            when = (
                f"alone in the first {steps:,} of {total:,} steps" if steps else "with the others from the first step"
            )
            print(f"New weights ({some_of(new_weights)}): they learn {when}.", flush=True)
            if has_new_token_head(trainer.model):
                lacking = f"{run.objective.initial.source} has no head for {run.objective.token_term.items}"
                effect = "takes thousands of steps before the perplexity says anything about the encoder"
                print(f"{lacking}: the new one {effect}.", flush=True)
    unused_weights = trainer.model.unused_weights
    if unused_weights and run.arguments.process_index == 0:
        left_out = f"Weights of the checkpoint that {run.recipe.objective} does not train are left out"
        print(f"{left_out}: {some_of(unused_weights)}.", flush=True)
    if BEFORE not in noted:
        # Not by `evaluate()`, for which accelerate would have to shard the model before there is an optimizer (FSDP2).
        trainer.args.eval_on_start = True
        trainer.add_callback(BeforeCallback(run.output, noted))


def has_new_token_head(model: PreTrainedModel) -> bool:
    """Whether a weight of the projection onto the vocabulary is new; tied ones are the embeddings'."""
    head = model.get_output_embeddings()
    names = {id(value): name for name, value in model.named_parameters() if name in model.new_weights}
    return head is not None and any(id(value) in names for value in head.parameters())


def some_of(names: Collection[str]) -> str:
    """The first three names, for a message."""
    return ", ".join(sorted(names)[:3]) + ", ..." * (len(names) > 3)


class LeftCallback(TrainerCallback):
    """Prints what is left of a run that goes on, once its checkpoint is loaded."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Print it."""
        if state.global_step:
            print(f"  {self.plan.left(state.global_step)}", flush=True)


def overwrites(arguments: argparse.Namespace) -> bool:
    """Whether to remove the run in the output folder: once, not when torchrun restarts the command."""
    return arguments.overwrite and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0


def plan_of_run(
    run: Run, parts: tuple[Sources, Sources], tokenizer: PreTrainedTokenizerBase, arguments: argparse.Namespace
) -> Plan:
    """The plan alone: writes nothing into the output folder, and makes no model unless it is to be measured."""
    with TemporaryDirectory() as elsewhere:
        run = Run.from_recipe(run.recipe, elsewhere, run.options, run.micro_batching, run.given_objective)
        if not arguments.measure:
            config = run.model_config(tokenizer, parts[0])
            made = run.examples(parts[0]), run.collator(tokenizer, parts[0]), config
            return make_plan(run, *made, arguments.device, arguments.device_tflops)
        trainer = run.trainer(*parts, tokenizer)
        return measure_passes(plan_of_trainer(run, trainer), trainer)


def plan_of_trainer(run: Run, trainer: PreTrainingTrainer) -> Plan:
    """The plan of a run that has a trainer."""
    return make_plan(run, trainer.train_dataset, trainer.data_collator, trainer.model.config)


def with_sampling(recipe: Recipe, arguments: argparse.Namespace, corpus: CorpusPaths) -> Recipe:
    """The recipe with the sampling of sources that was given on the command line."""
    alpha, words = arguments.sampling_alpha, arguments.corpus_weights
    if alpha is None and words is None:
        return recipe
    option = "--sampling-alpha" if words is None else "--corpus-weights"
    if any(phase.sources for phase in recipe.phases):
        raise ValueError(f"{option}: phases of {recipe.name} have sources of their own: leave it out.")
    if not corpus.are_named:
        raise ValueError(f"{option} is for sources with names: give --corpus NAME=PATH for each.")
    if words is None:
        return dataclasses.replace(recipe, sources={"alpha": alpha})
    weights = {}
    for name, word in named_values(words, option, "WEIGHT", corpus.paths).items():
        try:
            weights[name] = float(word)
        except ValueError:
            raise ValueError(f"{option} {name}={word}: the weight must be a number.") from None
    return dataclasses.replace(recipe, sources={"weights": weights})


def open_run(
    arguments: argparse.Namespace, run: Run, corpus: CorpusPaths
) -> tuple[PreTrainedTokenizerBase, Sources, dict[str, Any]]:
    """Tokenizer, corpus and `run.json` of the run that the output folder holds or that starts there.

    Other processes wait for the first.
    """
    training, recipe, output = run.arguments, run.recipe, run.output
    is_main = training.process_index == 0
    if is_main and not (arguments.plan and corpus.is_prepared):  # that plan writes nothing
        arguments.until_end.enter_context(locked(output, "--output", wait=False))
    if num_processes() > 1 and is_main:
        print(f"Other processes wait for the corpus at most {training.ddp_timeout} s (--ddp-timeout).", flush=True)
    with training.main_process_first(desc="corpus"):
        if overwrites(arguments) and is_main:
            read = [path for paths in corpus.paths.values() for path in paths]
            set_run_aside(output, [*read, arguments.tokenizer, arguments.recipe, arguments.begins_from])
        if is_main:
            arguments.until_end.enter_context(restored_if_refused(output))
            remove_other_sources(corpus, output)
        tokenizer, sources = open_sources(recipe, corpus, arguments.tokenizer, output)
        config = run.model_config(tokenizer, sources)  # refuses too few rows of a table
        set_inputs(tokenizer, config)
        set_length(tokenizer, recipe.longest)
        if arguments.plan:
            return tokenizer, sources, {}
        facts = run_identity(recipe, sources, tokenizer, training, arguments.validation_share)
        facts |= facts_without_text(arguments, run)
        given = run.objective.model_fields(recipe.config_class)
        return tokenizer, sources, begin_or_go_on(output, recipe, facts, is_main, given)


def facts_without_text(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
    """The facts of `run.json` that are known before there is text, those of a checkpoint or teacher included."""
    facts = settings_facts(run.recipe, run.arguments, arguments.validation_share)
    return facts | json.loads(json.dumps(run.objective.facts()))


def finish(
    run: Run,
    trainer: PreTrainingTrainer,
    parts: tuple[Sources, Sources],
    after: dict[str, float],
    arguments: argparse.Namespace,
    corpus: CorpusPaths,
    noted: dict[str, Any],
) -> None:
    """Save the model with tokenizer, record, curve and card, push it if asked to, and print the metrics."""
    directory = run.output / "model"
    trainer.save_state()
    before = noted.get(BEFORE)
    if before is not None:  # perhaps of a checkpoint whose tokenizer was extended
        term, sizes = run.objective.token_term, bytes_per_token(parts[1], trainer.processing_class)
        before, after = (with_nats_per_byte(metrics, term, sizes) for metrics in (before, after))
    save_pretrained_folder(run, trainer, arguments.corpus_name or corpus.shown, parts[0], after, arguments, before)
    if trainer.args.process_index != 0:
        return
    write_run(run.output, {**noted, IS_FINISHED: True})
    if trainer.args.push_to_hub:
        names = published_files(directory)
        refuse_secrets(directory, names)
        upload_folder(
            repo_id=trainer.hub_model_id,
            folder_path=directory,
            allow_patterns=sorted(names),
            commit_message="End of training",
            token=trainer.args.hub_token,
            revision=trainer.args.hub_revision,
        )
    print()
    evaluated = ({} if before is None else {"held-out, before": before}) | {"held-out": after}
    # What a checkpoint gained on one text and lost on another does not add up.
    if before is None or not trainer.health.source_unigrams:
        for what, metrics in evaluated.items():
            print(f"{what}: {run.objective.summary(metrics, trainer.health.unigram_cross_entropy)}")
    for name, unigram in trainer.health.source_unigrams.items():
        for what, metrics in evaluated.items():
            print(f"{what}, {name}: {run.objective.summary(metrics_of_source(metrics, name), unigram)}")
    print(f"model, tokenizer, code, record, card, curve: {directory}")
