"""A run from a command line: its options, plan, training, and the finished folder with record, curve and card."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import transformers
from accelerate.utils import release_memory
from huggingface_hub import upload_folder
from huggingface_hub.utils import disable_progress_bars
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_encoders.corpus.report import corpus_statistics
from hf_encoders.corpus.similar_words import share_without_similar
from hf_encoders.corpus.special_tokens import mask_and_padding, sequence_ends
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.evaluation.masked_lm import hide_words
from hf_encoders.loading import hide_bars_of_weights
from hf_encoders.objectives.objective import LossTerm, Objective
from hf_encoders.options import RUN_OPTIONS, given_fields
from hf_encoders.publishing.curves import Curve, draw_runs
from hf_encoders.publishing.files import (
    CARD_FILE,
    CURVE_FILE,
    MODULES_FILE,
    complete_tokenizer_config,
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
    PLAN,
    PREDICTIONS,
    UNIGRAM,
    RunFileCallback,
    check_resumed,
    phases_of,
    read_run_file,
    restored_if_refused,
    resumed_facts,
    set_run_aside,
    settings_facts,
    text_facts,
    write_run,
)
from hf_encoders.runs.initial import Initial
from hf_encoders.runs.plan import Plan, make_plan, measure_passes
from hf_encoders.runs.recipe import Recipe
from hf_encoders.runs.run import Run, divide, num_processes
from hf_encoders.runs.sources import CORPUS, Sources, needs_similar_words
from hf_encoders.tokenizer_loading import check_first_position, check_rows, load_tokenizer, set_inputs, set_length
from hf_encoders.training.callbacks import HeadWarmUpCallback
from hf_encoders.training.checkpoints import checkpoints_by_step, step_of
from hf_encoders.training.fault_tolerance import is_out_of_memory
from hf_encoders.training.health import HealthCallback
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import locked, replaced_folder


# Of the report: documents whose sentences are taken, words that are hidden, and how many of them are shown.
SHOWN_DOCUMENTS, HIDDEN_WORDS, SHOWN_WORDS = 100, 50, 12


def train_run(
    arguments: argparse.Namespace, recipe: Recipe, initial: Initial | None = None, objective: Objective | None = None
) -> int:
    """Plan, train, evaluate, save.

    Args:
        arguments (`argparse.Namespace`): Options, of `add_run_arguments`.
        recipe (`Recipe`): What is trained.
        initial (`Initial`, *optional*): The checkpoint that the model is initialised from, or the teacher.
        objective (`Objective`, *optional*): The recipe's, with its teacher.
    """
    options, output, tokenizer_name = given_fields(arguments), Path(arguments.output), arguments.tokenizer
    steps, optimizer, examples, accumulation = (options.pop(name, None) for name in RUN_OPTIONS)
    halves = options.pop("auto_find_batch_size", False)
    if halves and num_processes() > 1:
        raise ValueError("--auto-find-batch-size is for one process: give --per-device-train-batch-size instead.")
    if initial is not None:
        initial.check_output(output)
        tokenizer_name = initial.tokenizer_name(tokenizer_name)
        objective = objective or recipe.own_objective.of_checkpoint(initial)
    recipe = dataclasses.replace(recipe, optimizer=optimizer or recipe.optimizer)
    recipe = recipe if steps is None else recipe.of_steps(steps)
    sources = Sources.from_words(arguments.corpus, arguments.language, arguments.source_options)
    sources.check_recipe(recipe, objective.model_fields(recipe.config_class) if objective else None)
    noted = None if overwrites(arguments) else read_run_file(output)
    if noted is not None:
        recipe = recipe.lengthened(phases_of(noted), is_scaled=steps is not None)
    run = Run(recipe, output, options, divide(recipe, num_processes(), examples, accumulation), objective)
    transformers.logging.set_verbosity_warning()
    hide_bars_of_weights()
    if run.arguments.disable_tqdm or run.arguments.process_index != 0:
        disable_progress_bars()
        datasets.disable_progress_bars()
    if initial is not None:
        check_initial(run, initial, tokenizer_name)
    facts = settings_facts(run, arguments.validation_share)
    if noted is not None:  # before anything is made
        check_resumed(noted, run, facts)
    read = [path for source in sources.values() for path in source.paths]
    read += [tokenizer_name, arguments.recipe, initial and initial.source]
    tokenizer, sources = open_text(run, sources, tokenizer_name, read, arguments)
    if not arguments.plan:
        facts |= text_facts(run, sources, tokenizer)
        if noted is not None:
            check_resumed(noted, run, facts)
            facts = resumed_facts(noted, run, facts)
        if is_finished(run, facts):
            return 0
    with run.arguments.main_process_first(desc="split of the corpus"):
        parts = sources.divided(run.objective, arguments.validation_share, run.arguments.seed)
    if arguments.plan:
        print_plan(run, parts, tokenizer, arguments)
        return 0
    run, trainer, after = train(run, parts, tokenizer, arguments, facts, halves)
    finish(run, trainer, parts, after, arguments, facts)
    return 0


def overwrites(arguments: argparse.Namespace) -> bool:
    """Return whether to remove the run in the output folder: once, not when torchrun restarts the command."""
    return arguments.overwrite and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0


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
    run.recipe.model_config(tokenizer, initial=run.initial_fields)


def open_text(
    run: Run, sources: Sources, tokenizer_name: str | None, read: list[str | None], arguments: argparse.Namespace
) -> tuple[PreTrainedTokenizerBase, Sources]:
    """Return tokenizer and text of the run, made in its folder where they are not; other processes wait for the first.

    `read` are paths and names that --overwrite must not remove.
    """
    training, output = run.arguments, run.output
    is_main = training.process_index == 0
    if is_main and not (arguments.plan and sources.are_prepared):  # that plan writes nothing
        arguments.until_end.enter_context(locked(output, "--output", wait=False))
    if num_processes() > 1 and is_main:
        print(f"Other processes wait for the corpus at most {training.ddp_timeout} s (--ddp-timeout).", flush=True)
    with training.main_process_first(desc="corpus"):
        if is_main:
            if overwrites(arguments):
                set_run_aside(output, read)
            arguments.until_end.enter_context(restored_if_refused(output))
            sources.remove_others(output)
        tokenizer, sources = sources.open(run.recipe, tokenizer_name, output)
        set_inputs(tokenizer, run.model_config(tokenizer, sources))  # which refuses too few rows of a table
        set_length(tokenizer, run.recipe.longest)
        return tokenizer, sources


def is_finished(run: Run, facts: Mapping[str, Any]) -> bool:
    """Return whether the folder holds the finished run, and say so."""
    directory = run.output / "model"
    if not facts.get(IS_FINISHED) or not (directory / CARD_FILE).is_file():
        return False
    if run.arguments.push_to_hub:
        raise ValueError(
            f"--push-to-hub: this run is finished. `hf-encoders publish {directory} --repo NAME` pushes it."
        )
    remedy = "(A larger --max-steps extends it, --overwrite starts it from scratch.)"
    print(f"This run is finished: {directory}. {remedy}", flush=True)
    return True


def plan_of_trainer(run: Run, trainer: PreTrainingTrainer) -> Plan:
    """Return the plan of a run that has a trainer."""
    return make_plan(run, trainer.train_dataset, trainer.data_collator, trainer.model.config)


def print_plan(
    run: Run, parts: tuple[Sources, Sources], tokenizer: PreTrainedTokenizerBase, arguments: argparse.Namespace
) -> None:
    """Print the plan alone: makes no model unless it is to be measured, and writes nothing into the output folder."""
    with TemporaryDirectory() as folder:
        planned = Run(run.recipe, folder, run.options, run.micro_batching, run.objective)
        if arguments.measure:
            trainer = planned.trainer(*parts, tokenizer)
            plan = measure_passes(plan_of_trainer(planned, trainer), trainer)
        else:
            examples, collator = planned.examples(parts[0]), planned.collator(tokenizer, parts[0])
            config = planned.model_config(tokenizer, parts[0])
            plan = make_plan(planned, examples, collator, config, arguments.device, arguments.device_tflops)
    print_with_rest(plan, run.output)
    if (run.output / CORPUS).is_dir():
        print(f"  (the prepared corpus is kept for the run: {run.output / CORPUS})", flush=True)


def print_with_rest(plan: Plan, output: Path) -> None:
    """Print a plan, and what is left of it after the newest checkpoint in the folder."""
    print(plan, flush=True)
    if checkpoints := checkpoints_by_step(output):
        print(f"  {plan.left(step_of(checkpoints[0]))}", flush=True)


def begin_from_checkpoint(run: Run, trainer: PreTrainingTrainer, facts: dict[str, Any]) -> None:
    """Let new heads learn alone at first, and say which weights of the checkpoint are new or unused."""
    new_weights, unused_weights, total = trainer.model.new_weights, trainer.model.unused_weights, run.recipe.steps
    steps = facts.setdefault(ALONE, run.objective.initial.alone(total))  # also of a run that is extended later
    if new_weights and steps:
        trainer.add_callback(HeadWarmUpCallback(new_weights, steps))
    if run.arguments.process_index != 0:
        return
    if new_weights:
        alone = f"alone in the first {steps:,} of {total:,} steps"
        when = alone if steps else "with the others from the first step"
        print(f"New weights ({some_of(new_weights)}): they learn {when}.", flush=True)
        if has_new_token_head(trainer.model):
            lacking = f"{run.objective.initial.source} has no head for {run.objective.token_term.items}"
            effect = "takes thousands of steps before the perplexity says anything about the encoder"
            print(f"{lacking}: the new one {effect}.", flush=True)
    if unused_weights:
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


def train(
    run: Run,
    parts: tuple[Sources, Sources],
    tokenizer: PreTrainedTokenizerBase,
    arguments: argparse.Namespace,
    facts: dict[str, Any],
    halves: bool,
) -> tuple[Run, PreTrainingTrainer, dict[str, float]]:
    """Return run and trainer after training, and the last metrics; out of memory, it `halves` micro-batches."""
    while True:
        try:
            set_seed(run.arguments.seed)
            trainer = run.trainer(*parts, tokenizer)
            if run.objective.initial is not None:
                begin_from_checkpoint(run, trainer, facts)
            if (run.objective.initial is not None or arguments.evaluate_first) and BEFORE not in facts:
                # Not by `evaluate()`, for which accelerate would shard the model before there is an optimizer (FSDP2).
                trainer.args.eval_on_start = True
            trainer.add_callback(RunFileCallback(run.output, facts))
            if run.arguments.process_index == 0:
                plan = plan_of_trainer(run, trainer)
                facts.setdefault(PLAN, plan.facts())  # of a resumed run, the first one
                print_with_rest(plan, run.output)
            trainer.interruption.how_to_resume = (
                "give the same command again" + " without --overwrite" * arguments.overwrite
            )
            return run, trainer, train_to_the_end(trainer)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            run = run.with_half_micro_batches(error, is_allowed=halves)
            examples = run.micro_batching.examples
            print(f"Out of memory: from now on {examples} examples of the longest phase per micro-batch.", flush=True)
        # Outside of the handler, which keeps the error and with it everything on the device.
        trainer = None
        release_memory()


def train_to_the_end(trainer: PreTrainingTrainer) -> dict[str, float]:
    """Train, from the newest complete checkpoint if there is one, and return the metrics after the last step."""
    has_checkpoints = bool(checkpoints_by_step(Path(trainer.args.output_dir)))
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or has_checkpoints)
    if not trainer.args.load_best_model_at_end:
        for entry in reversed(trainer.state.log_history):
            if entry["step"] == trainer.state.global_step and "eval_loss" in entry:
                return {name: value for name, value in entry.items() if name.startswith("eval_")}
    return trainer.evaluate()


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
    if trainer.args.process_index != 0:
        trainer.save_model(str(directory), _internal_call=True)  # gathers shards; the first process writes
        return
    evaluated = {"held-out": after}
    if run.objective.initial is not None and BEFORE in facts:  # perhaps of a checkpoint whose tokenizer was extended
        sizes = parts[1].bytes_per_token(trainer.processing_class)
        evaluated = {"held-out, before": facts[BEFORE], "held-out": after}
        evaluated = {
            when: with_nats_per_byte(metrics, run.objective.token_term, sizes) for when, metrics in evaluated.items()
        }
    save_pretrained_folder(run, trainer, partial(pretraining_record, run, trainer, parts[0], evaluated, arguments))
    unigram = trainer.health.unigram_cross_entropy
    facts |= {AFTER: evaluated["held-out"], UNIGRAM: unigram, PREDICTIONS: predictions(run, trainer, parts[1])}
    write_run(run.output, {**facts, IS_FINISHED: True})
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
    for name, baseline in baselines(trainer.health).items():
        # What a checkpoint gained on one text and lost on another does not add up.
        if name or len(evaluated) == 1 or not trainer.health.source_unigrams:
            for when, metrics in evaluated.items():
                summary = run.objective.summary(metrics_of_source(metrics, name), baseline)
                print(f"{when}{name and f', {name}'}: {summary}")
    print(f"model, tokenizer, code, record, card, curve: {directory}")


def predictions(run: Run, trainer: PreTrainingTrainer, held_out: Sources) -> dict[str, Any] | None:
    """Return what the model guesses for hidden words of held-out sentences; None if it fills no masks alone."""
    tokenizer, sentences = trainer.processing_class, []
    if not run.objective.fills_masks or trainer.model.config.languages is not None:
        return None
    for source in held_out.values():
        rows = source.documents.select(range(min(len(source.documents), SHOWN_DOCUMENTS)))
        sentences += [tokenizer.decode(ids, skip_special_tokens=True) for row in rows["input_ids"] for ids in row]
    # As it was saved: the one that was trained may be in parts in several processes.
    trained = run.objective.saved_model(trainer.accelerator.unwrap_model(trainer.model))
    model = type(trained).from_pretrained(run.output / "model")
    is_shown = not trainer.args.disable_tqdm
    hidden = hide_words(model, tokenizer, sentences, HIDDEN_WORDS, trainer.args.seed, is_shown)
    shown = []
    for text, word, guesses in hidden[:SHOWN_WORDS]:
        before, _, after = text.partition(tokenizer.mask_token)
        shown.append({"before": before, "after": after, "truth": word, "guesses": guesses})
    return {"right": sum(word.is_right for word in hidden), "number": len(hidden), "shown": shown} if hidden else None


def save_pretrained_folder(run: Run, trainer: PreTrainingTrainer, make_record: Callable[[], TrainingRecord]) -> None:
    """Save a trained model with its record, curve and card in the run's folder, which are replaced when complete.

    The first process calls it; saving is collective.
    """
    directory = run.output / "model"
    with replaced_folder(directory) as folder:
        # `_internal_call` keeps `Trainer` from pushing a card of its own.
        trainer.save_model(str(folder), _internal_call=True)
        record = make_record()  # reads the corpus, while no process waits for this one
        complete_tokenizer_config(folder)
        if run.objective.initial is not None:
            run.objective.initial.copy_files(folder)
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
    sources: Sources,
    evaluated: Mapping[str, Mapping[str, float]],
    arguments: argparse.Namespace,
) -> TrainingRecord:
    """Return the facts of a finished run, restarts included.

    Args:
        run (`Run`): The run.
        trainer (`PreTrainingTrainer`): Its trainer, whose `health` counted tokens and seconds.
        sources (`Sources`): The training text.
        evaluated (`Mapping`): Metrics of the last evaluation, "held-out", and of the initial checkpoint if there is
            one, "held-out, before".
        arguments (`argparse.Namespace`): Of the command that started the run.
    """
    recipe, objective, logged = run.recipe, run.objective, logged_means(trainer.state.log_history)
    corpus_name = arguments.corpus_name or sources.shown
    passes, evaluation, losses = trainer.train_dataset.passes, [], {}
    for name, baseline in baselines(trainer.health).items():
        if name or all(passes.values()):  # otherwise the mean over all is also of text that was not trained on
            results = objective.results(metrics_of_source(evaluated["held-out"], name), baseline)
            dataset = f"held-out documents of {name or 'the corpus'}"
            evaluation += [{"dataset": dataset, **result} for result in results]
    for when, metrics in evaluated.items():
        for name in baselines(trainer.health) if len(evaluated) > 1 else [""]:
            suffix = (name and f", {name}") + when.removeprefix("held-out")
            of_source = objective.losses(metrics_of_source(metrics, name))
            losses |= {f"{words}{suffix}": loss for words, loss in of_source.items()}
    rates = () if recipe.mask_rate is None else (recipe.mask_rate(0.0), recipe.mask_rate(1.0))
    objectives = objective.describe(trainer.data_collator, rates, recipe.examples, logged)
    if parallel := [name or corpus_name for name, source in sources.items() if source.is_parallel]:
        objectives |= objective.describe_parallel(parallel)
    maskings = recipe.maskings
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
        losses=losses,
        base_model=None if objective.initial is None else objective.initial.name,
        **facts_of_this_process(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=evaluation,
        command=command_of(arguments),
        fills_masks=objective.fills_masks
        and (not maskings or any(masking.mask_replace_probability for masking in maskings)),
        language=list(dict.fromkeys(code for source in sources.values() for code in source.languages)),
    )


def corpus_counts(run: Run, trainer: PreTrainingTrainer, sources: Sources) -> dict[str, Any]:
    """Return sizes of the training text, how often each source was read, and how far similar words go."""
    statistics = {name: corpus_statistics(source.documents) for name, source in sources.items()}
    passes = trainer.train_dataset.passes
    read = [of_source for name, of_source in statistics.items() if passes.get(name, 1)]
    counts: dict[str, Any] = {
        name: sum(getattr(of_source, name) for of_source in read) for name in ("documents", "sentences", "tokens")
    }
    for name, times in passes.items():
        counts[name] = f"{statistics[name].tokens:,} tokens, read {times:.3g} times"
    if needs_similar_words(run.recipe):
        table = sources.similar_words(trainer.processing_class)
        for name, source in sources.items():
            share = share_without_similar(table, source.documents, trainer.processing_class)
            counts[f"words without a similar one{name and f', {name}'}"] = f"{share:.1%}"
    return counts


def baselines(health: HealthCallback) -> dict[str, float]:
    """Return the unigram cross-entropy of held-out text: over all sources under `""`, and of each with a name."""
    return {"": health.unigram_cross_entropy, **health.source_unigrams}


def with_nats_per_byte(
    metrics: Mapping[str, float], term: LossTerm | None, sizes: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics of an evaluation with the loss per byte too, by source, from the bytes per token.

    >>> with_nats_per_byte({"eval_mlm_loss": 3.0}, LossTerm("mlm", "masked tokens"), {"": 4.0})
    {'eval_mlm_loss': 3.0, 'eval_mlm_nats_per_byte': 0.75}
    """
    metrics = dict(metrics)
    for name, size in sizes.items() if term else ():
        metric = f"eval_{name and f'{name}_'}{term.name}"
        if f"{metric}_loss" in metrics:
            metrics[f"{metric}_nats_per_byte"] = metrics[f"{metric}_loss"] / size
    return metrics


def metrics_of_source(metrics: Mapping[str, float], name: str) -> Mapping[str, float]:
    """Return the metrics of a source in those of an evaluation, under the names that they have over all.

    >>> metrics_of_source({"eval_mlm_loss": 2.5, "eval_de_mlm_loss": 3.0}, "de")
    {'eval_mlm_loss': 3.0}
    """
    if not name:
        return metrics
    prefix = f"eval_{name}_"
    return {f"eval_{key.removeprefix(prefix)}": value for key, value in metrics.items() if key.startswith(prefix)}


def logged_means(log_history: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over a run of the shares and rates that `HealthCallback` logged, each since the last log.

    Weighted by the tokens of those steps. A step that a resumed run logged again counts once.

    >>> log = [{"step": 1, "tokens_seen": 30, "mask_rate": 0.2}, {"step": 2, "tokens_seen": 40, "mask_rate": 0.4}]
    >>> logged_means(log)
    {'mask_rate': 0.25}
    """
    by_step = {entry["step"]: entry for entry in log_history if "tokens_seen" in entry}
    names = {name for entry in by_step.values() for name in entry if name.endswith(("mask_rate", "_share"))}
    means = {}
    for name in sorted(names):
        logs = [by_step[step] for step in sorted(by_step) if name in by_step[step]]
        tokens = np.diff([0, *(entry["tokens_seen"] for entry in logs)])
        means[name] = float(np.average([entry[name] for entry in logs], weights=tokens))
    return means
