"""A run from a command line: its options, plan, training, and the finished folder with record, curve and card."""

import argparse
import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
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

from hf_encoders.corpus.report import corpus_statistics
from hf_encoders.corpus.similar_words import share_without_similar
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.objectives.objective import LossTerm, Objective
from hf_encoders.options import RUN_OPTIONS, given_fields
from hf_encoders.publishing.curves import Curve, draw_runs
from hf_encoders.publishing.files import (
    CARD_FILE,
    CURVE_FILE,
    MODULES_FILE,
    complete_tokenizer_config,
    copy_modules,
    published_files,
    refuse_secrets,
)
from hf_encoders.publishing.record import TrainingRecord, command_of, facts_of_this_process, make_model_card
from hf_encoders.publishing.secrets import published_path
from hf_encoders.runs.folder import (
    AFTER,
    ALONE,
    BEFORE,
    IS_FINISHED,
    UNIGRAM,
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
from hf_encoders.runs.initial import Initial
from hf_encoders.runs.plan import Plan, make_plan, measure_passes
from hf_encoders.runs.recipe import Recipe
from hf_encoders.runs.run import Run, divide, num_processes, train_to_the_end
from hf_encoders.runs.sources import CORPUS, Sources, needs_similar_words
from hf_encoders.tokenizer_loading import check_first_position, check_rows, load_tokenizer, set_inputs, set_length
from hf_encoders.training.callbacks import HeadWarmUpCallback
from hf_encoders.training.checkpoints import checkpoints_by_step, step_of
from hf_encoders.training.fault_tolerance import is_out_of_memory
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import locked, replaced_folder


def train_run(
    arguments: argparse.Namespace, recipe: Recipe, initial: Initial | None = None, objective: Objective | None = None
) -> int:
    """Plan, train, evaluate, save.

    Args:
        arguments (`argparse.Namespace`): Options, of `add_run_arguments`.
        recipe (`Recipe`): What is trained.
        initial (`Initial`, *optional*): The checkpoint that the model begins as, or the teacher.
        objective (`Objective`, *optional*): The recipe's, with its teacher.
    """
    given, output = given_fields(arguments), Path(arguments.output)
    if initial is not None:
        initial.check_output(arguments.output)
        arguments.begins_from, arguments.tokenizer = initial.source, initial.tokenizer_name(arguments.tokenizer)
        objective = objective or recipe.own_objective.of_checkpoint(initial)
    if "optim" in given:
        recipe = dataclasses.replace(recipe, optimizer=given["optim"])
    if "max_steps" in given:
        recipe = recipe.of_steps(given["max_steps"])
    sources = Sources.from_words(arguments.corpus, arguments.language, arguments.source_options)
    sources.check_recipe(recipe, objective.model_fields(recipe.config_class) if objective else None)
    facts = None if overwrites(arguments) else read_run_file(output)
    if facts is not None:
        recipe = recipe.lengthened(phases_of(facts), is_scaled="max_steps" in given)
    halves = bool(given.get("auto_find_batch_size"))
    if halves and num_processes() > 1:
        raise ValueError("--auto-find-batch-size is for one process: give --per-device-train-batch-size instead.")
    batch = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    options = {name: value for name, value in given.items() if name not in (*RUN_OPTIONS, "auto_find_batch_size")}
    run = Run.from_recipe(recipe, output, options, divide(recipe, num_processes(), *batch), objective)
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()  # of every file that a checkpoint writes
    if initial is not None:
        check_initial(run, initial, arguments.tokenizer)
    if facts is not None:  # before anything is made
        check_run(output, recipe, facts_without_text(arguments, run), run.objective.model_fields(recipe.config_class))
    tokenizer, sources, facts = open_run(arguments, run, sources)
    directory = output / "model"
    if facts.get(IS_FINISHED) and (directory / CARD_FILE).is_file() and not arguments.plan:
        if run.arguments.push_to_hub:
            raise ValueError(
                f"--push-to-hub: this run is finished. `hf-encoders publish {directory} --repo NAME` pushes it."
            )
        remedy = "(A larger --max-steps extends it, --overwrite starts it from scratch.)"
        print(f"This run is finished: {directory}. {remedy}", flush=True)
        return 0
    with run.arguments.main_process_first(desc="split of the corpus"):
        parts = sources.divided(run.objective, arguments.validation_share, run.arguments.seed)
    if arguments.plan:
        print_plan(run, parts, tokenizer, arguments)
        return 0
    while True:
        try:
            set_seed(run.arguments.seed)
            trainer = run.trainer(*parts, tokenizer)
            if run.objective.initial is not None:
                begin_from_checkpoint(run, trainer, facts)
            if (run.objective.initial is not None or arguments.evaluate_first) and BEFORE not in facts:
                # Not by `evaluate()`, for which accelerate would shard the model before there is an optimizer (FSDP2).
                trainer.args.eval_on_start = True
            trainer.add_callback(RunFileCallback(output, facts))
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
    finish(run, trainer, parts, after, arguments, facts)
    return 0


def check_initial(run: Run, initial: Initial, tokenizer_name: str) -> None:
    """Refuse a checkpoint or teacher that is not complete or does not fit, before there is text."""
    run.objective.facts()
    is_own = tokenizer_name == initial.source
    tokenizer = load_tokenizer(tokenizer_name, initial.option if is_own else "--tokenizer")
    mask_and_padding(tokenizer)  # each collator puts them into examples
    sequence_ends(tokenizer)
    if run.objective.initial is not None:
        initial.alone(run.recipe.steps)
    check_first_position(initial.config, tokenizer, str(initial))
    if is_own:
        check_rows(tokenizer, initial.config, str(initial))
    run.recipe.model_config(tokenizer, initial=run.objective.model_fields(run.recipe.config_class))


def begin_from_checkpoint(run: Run, trainer: PreTrainingTrainer, facts: dict[str, Any]) -> None:
    """Let new heads learn alone at first, and say which weights of the checkpoint are new or unused."""
    new_weights, total = trainer.model.new_weights, run.recipe.steps
    steps = facts.setdefault(ALONE, run.objective.initial.alone(total))  # also of a run that is extended later
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


def has_new_token_head(model: PreTrainedModel) -> bool:
    """Return whether a weight of the projection onto the vocabulary is new; tied ones are the embeddings'."""
    head = model.get_output_embeddings()
    names = {id(value): name for name, value in model.named_parameters() if name in model.new_weights}
    return head is not None and any(id(value) in names for value in head.parameters())


def some_of(names: Collection[str]) -> str:
    """Return the first three names, for a message."""
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
    """Return whether to remove the run in the output folder: once, not when torchrun restarts the command."""
    return arguments.overwrite and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0


def print_plan(
    run: Run, parts: tuple[Sources, Sources], tokenizer: PreTrainedTokenizerBase, arguments: argparse.Namespace
) -> None:
    """Print the plan alone: makes no model unless it is to be measured, and writes nothing into the output folder."""
    output = run.output
    with TemporaryDirectory() as elsewhere:
        run = Run.from_recipe(run.recipe, elsewhere, run.options, run.micro_batching, run.given_objective)
        if arguments.measure:
            trainer = run.trainer(*parts, tokenizer)
            plan = measure_passes(plan_of_trainer(run, trainer), trainer)
        else:
            made = run.examples(parts[0]), run.collator(tokenizer, parts[0]), run.model_config(tokenizer, parts[0])
            plan = make_plan(run, *made, arguments.device, arguments.device_tflops)
    print(plan, flush=True)
    if done := checkpoints_by_step(output):
        print(f"  {plan.left(step_of(done[0]))}", flush=True)
    if (output / CORPUS).is_dir():
        print(f"  (the prepared corpus is kept for the run: {output / CORPUS})", flush=True)


def plan_of_trainer(run: Run, trainer: PreTrainingTrainer) -> Plan:
    """Return the plan of a run that has a trainer."""
    return make_plan(run, trainer.train_dataset, trainer.data_collator, trainer.model.config)


def open_run(
    arguments: argparse.Namespace, run: Run, sources: Sources
) -> tuple[PreTrainedTokenizerBase, Sources, dict[str, Any]]:
    """Return tokenizer, sources and `run.json` of the run that the output folder holds or that starts there.

    Other processes wait for the first.
    """
    training, recipe, output = run.arguments, run.recipe, run.output
    is_main = training.process_index == 0
    if is_main and not (arguments.plan and sources.are_prepared):  # that plan writes nothing
        arguments.until_end.enter_context(locked(output, "--output", wait=False))
    if num_processes() > 1 and is_main:
        print(f"Other processes wait for the corpus at most {training.ddp_timeout} s (--ddp-timeout).", flush=True)
    with training.main_process_first(desc="corpus"):
        if overwrites(arguments) and is_main:
            read = [path for source in sources.values() for path in source.paths]
            set_run_aside(output, [*read, arguments.tokenizer, arguments.recipe, arguments.begins_from])
        if is_main:
            arguments.until_end.enter_context(restored_if_refused(output))
            sources.remove_others(output)
        tokenizer, sources = sources.open(recipe, arguments.tokenizer, output)
        config = run.model_config(tokenizer, sources)  # refuses too few rows of a table
        set_inputs(tokenizer, config)
        set_length(tokenizer, recipe.longest)
        if arguments.plan:
            return tokenizer, sources, {}
        facts = run_identity(recipe, sources, tokenizer, training, arguments.validation_share)
        facts |= facts_without_text(arguments, run)
        fields = run.objective.model_fields(recipe.config_class)
        return tokenizer, sources, begin_or_go_on(output, recipe, facts, is_main, fields)


def facts_without_text(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
    """Return the facts of `run.json` that are known before there is text, also of a checkpoint or teacher."""
    facts = settings_facts(run.recipe, run.arguments, arguments.validation_share)
    return facts | json.loads(json.dumps(run.objective.facts()))


def finish(
    run: Run,
    trainer: PreTrainingTrainer,
    parts: tuple[Sources, Sources],
    after: dict[str, float],
    arguments: argparse.Namespace,
    facts: dict[str, Any],
) -> None:
    """Save the model with tokenizer, record, curve and card, push it if asked to, and print the metrics."""
    directory = run.output / "model"
    trainer.save_state()
    before = None if run.objective.initial is None else facts.get(BEFORE)
    if before is not None:  # perhaps of a checkpoint whose tokenizer was extended
        term, sizes = run.objective.token_term, parts[1].bytes_per_token(trainer.processing_class)
        before, after = (with_nats_per_byte(metrics, term, sizes) for metrics in (before, after))
    name = arguments.corpus_name or parts[0].shown
    save_pretrained_folder(run, trainer, name, parts[0], after, arguments, before)
    if trainer.args.process_index != 0:
        return
    unigram = trainer.health.unigram_cross_entropy
    write_run(run.output, {**facts, AFTER: after, UNIGRAM: unigram, IS_FINISHED: True})
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


def save_pretrained_folder(run: Run, trainer: PreTrainingTrainer, *facts: Any) -> None:
    """Save a trained model with its record, curve and card in the run's folder; a collective operation.

    A model that is there is replaced when the new one is complete. Arguments as those of `pretraining_record`.
    """
    directory = run.output / "model"
    if trainer.args.process_index != 0:
        trainer.save_model(str(directory), _internal_call=True)  # gathers shards; the first process writes
        return
    with replaced_folder(directory) as folder:
        # `_internal_call` keeps `Trainer` from pushing a card of its own.
        trainer.save_model(str(folder), _internal_call=True)
        complete_tokenizer_config(folder)
        if run.objective.initial is not None:
            copy_modules(run.objective.initial.source, folder)
        record = pretraining_record(run, trainer, *facts)
        record.save(folder)
        draw_runs(
            [Curve("training", trainer.state.log_history)],
            folder / CURVE_FILE,
            run.recipe.name,
            baselines=run.objective.loss_baselines(trainer.health.unigram_cross_entropy),
            phases=[(phase.steps, f"{phase.length} tokens") for phase in run.recipe.phases],
            evaluated=f"at {run.recipe.longest} tokens" if len({p.length for p in run.recipe.phases}) > 1 else "",
        )
        model = run.objective.saved_model(trainer.accelerator.unwrap_model(trainer.model))
        name = trainer.hub_model_id if trainer.args.push_to_hub else published_path(str(directory))
        card = make_model_card(model, record, name, has_curve=True, has_modules=(folder / MODULES_FILE).exists())
        card.save(folder / CARD_FILE)


def pretraining_record(
    run: Run,
    trainer: PreTrainingTrainer,
    corpus_name: str,
    sources: Sources,
    after: dict[str, float],
    arguments: argparse.Namespace,
    before: Mapping[str, float] | None = None,
) -> TrainingRecord:
    """The facts of a finished run, restarts included.

    Args:
        run (`Run`): The run.
        trainer (`PreTrainingTrainer`): Its trainer, whose `health` counted tokens and seconds.
        corpus_name (`str`): Name of the training text.
        sources (`Sources`): The training text.
        after (`dict`): Metrics of the last evaluation.
        arguments (`argparse.Namespace`): Of the command that started the run.
        before (`Mapping`, *optional*): Metrics of the checkpoint that it began as.
    """
    unigram = trainer.health.unigram_cross_entropy
    recipe, logged = run.recipe, logged_means(trainer.state.log_history)
    passes, evaluation = trainer.train_dataset.passes, []
    if all(passes.values()):  # otherwise the mean over all is also of text that was not trained on
        results = run.objective.results(after, unigram)
        evaluation += [{"dataset": "held-out documents of the corpus", **result} for result in results]
    for name, of_source in trainer.health.source_unigrams.items():
        results = run.objective.results(metrics_of_source(after, name), of_source)
        evaluation += [{"dataset": f"held-out documents of {name}", **result} for result in results]
    rates = () if recipe.mask_rate is None else (recipe.mask_rate(0.0), recipe.mask_rate(1.0))
    maskings = recipe.maskings
    objectives = run.objective.describe(trainer.data_collator, rates, recipe.examples, logged)
    if parallel := [name or corpus_name for name, source in sources.items() if source.is_parallel]:
        objectives |= run.objective.describe_parallel(parallel)
    return TrainingRecord(
        objectives=objectives,
        corpus={"name": corpus_name, **corpus_counts(run, trainer, sources)},
        schedule={
            "optimizer steps": trainer.state.global_step,
            "recipe": recipe.name,
            "phases": ", ".join(map(str, recipe.phases)),
            **({"sources": str(recipe.samplings[-1] or Sampling())} if passes else {}),
            # For `Trainer` an example is a micro-batch, so its batch size is left out.
            **{name: fact for name, fact in optimization_facts(trainer).items() if not name.startswith("rows")},
            "seed": trainer.args.seed,
        },
        losses=run.objective.losses(after) if before is None else losses_before_and_after(run, trainer, before, after),
        base_model=None if run.objective.initial is None else run.objective.initial.name,
        **facts_of_this_process(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=evaluation,
        command=command_of(arguments),
        fills_masks=run.objective.fills_masks
        and (not maskings or any(masking.mask_replace_probability for masking in maskings)),
        language=list(dict.fromkeys(code for source in sources.values() for code in source.languages)),
    )


def corpus_counts(run: Run, trainer: PreTrainingTrainer, sources: Sources) -> dict[str, Any]:
    """Sizes of the training text, how often each source was read, and how far the table of similar words goes."""
    statistics = {name: corpus_statistics(source.documents) for name, source in sources.items()}
    all_passes = trainer.train_dataset.passes
    read = [one for name, one in statistics.items() if all_passes.get(name, 1)]
    counts: dict[str, Any] = {
        name: sum(getattr(one, name) for one in read) for name in ("documents", "sentences", "tokens")
    }
    for name, passes in all_passes.items():
        counts[name] = f"{statistics[name].tokens:,} tokens, read {passes:.3g} times"
    if needs_similar_words(run.recipe):
        table = sources.similar_words(trainer.processing_class)
        for name, source in sources.items():
            share = share_without_similar(table, source.documents, trainer.processing_class)
            counts[f"words without a similar one{name and f', {name}'}"] = f"{share:.1%}"
    return counts


def losses_before_and_after(
    run: Run, trainer: PreTrainingTrainer, before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Losses for the card, over all and of each source with a name."""
    found = {}
    for when, metrics in ((", before", before), ("", after)):
        found |= {f"{words}{when}": loss for words, loss in run.objective.losses(metrics).items()}
        for name in trainer.health.source_unigrams:
            losses = run.objective.losses(metrics_of_source(metrics, name))
            found |= {f"{words}, {name}{when}": loss for words, loss in losses.items()}
    return found


def with_nats_per_byte(
    metrics: Mapping[str, float], term: LossTerm | None, sizes: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of an evaluation with the loss per byte too, by source, from the bytes per token.

    >>> with_nats_per_byte({"eval_mlm_loss": 3.0}, LossTerm("mlm", "masked tokens"), {"": 4.0})
    {'eval_mlm_loss': 3.0, 'eval_mlm_nats_per_byte': 0.75}
    """
    found = dict(metrics)
    for name, size in sizes.items():
        own = f"eval_{name and f'{name}_'}{term.name}" if term else ""
        if f"{own}_loss" in metrics:
            found[f"{own}_nats_per_byte"] = metrics[f"{own}_loss"] / size
    return found


def metrics_of_source(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """The metrics of one source in those of an evaluation, under the names that they have over all.

    >>> metrics_of_source({"eval_mlm_loss": 2.5, "eval_de_mlm_loss": 3.0}, "de")
    {'eval_mlm_loss': 3.0}
    """
    prefix = f"eval_{name}_"
    return {f"eval_{key.removeprefix(prefix)}": value for key, value in metrics.items() if key.startswith(prefix)}


def logged_means(log_history: list[dict[str, Any]]) -> dict[str, float]:
    """Means over a run of the shares and rates that `HealthCallback` logged, each since the last log.

    Weighted by the tokens of those steps. A step that a resumed run logged again counts once.

    >>> log = [{"step": 1, "tokens_seen": 30, "mask_rate": 0.2}, {"step": 2, "tokens_seen": 40, "mask_rate": 0.4}]
    >>> logged_means(log)
    {'mask_rate': 0.25}
    """
    by_step = {entry["step"]: entry for entry in log_history if "tokens_seen" in entry}
    names = {name for entry in by_step.values() for name in entry if name.endswith(("mask_rate", "_share"))}
    found = {}
    for name in sorted(names):
        logs = [by_step[step] for step in sorted(by_step) if name in by_step[step]]
        tokens = np.diff([0, *(entry["tokens_seen"] for entry in logs)])
        found[name] = float(np.average([entry[name] for entry in logs], weights=tokens))
    return found
