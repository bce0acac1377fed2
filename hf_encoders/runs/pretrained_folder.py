"""The result of a pre-training: a folder of model, tokenizer and code, with record, curve and card of the run."""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_encoders.corpus.report import corpus_statistics
from hf_encoders.corpus.similar_words import share_without_similar
from hf_encoders.corpus.sampling import Sampling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.publishing.card import make_model_card
from hf_encoders.runs.masking_data import needs_similar_words, similar_words_of
from hf_encoders.runs.run import Run
from hf_encoders.runs.sources import Documents, Sources, corpora_of, named_sources
from hf_encoders.publishing.curves import Curve
from hf_encoders.publishing.curves import draw_runs
from hf_encoders.publishing.record import TrainingRecord, command_of, facts_of_this_process
from hf_encoders.publishing.secrets import published_path
from hf_encoders.publishing.files import CARD_FILE, CURVE_FILE, MODULES_FILE, complete_tokenizer_config, copy_modules
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import replaced_folder


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
    documents: Documents,
    after: dict[str, float],
    arguments: argparse.Namespace,
    before: Mapping[str, float] | None = None,
) -> TrainingRecord:
    """The facts of a finished run, restarts included.

    Args:
        run (`Run`): The run.
        trainer (`PreTrainingTrainer`): Its trainer, whose `health` counted tokens and seconds.
        corpus_name (`str`): Name of the training text.
        documents (`Documents`): The training text, by source where sources have names.
        after (`dict`): Metrics of the last evaluation.
        arguments (`argparse.Namespace`): Of the command that started the run.
        before (`Mapping`, *optional*): Metrics of the checkpoint that it began as.
    """
    unigram = trainer.health.unigram_cross_entropy
    recipe, logged = run.recipe, logged_means(trainer.state.log_history)
    sources = named_sources(documents)
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
        table = similar_words_of(corpora_of(sources), trainer.processing_class)
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
