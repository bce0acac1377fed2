"""What a pre-training leaves: a folder of model, tokenizer and code, with record, curve and card of the run."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np

from hf_encoders.data.corpus.report import corpus_statistics
from hf_encoders.publishing.model_card import make_model_card
from hf_encoders.recipes.run import Run
from hf_encoders.records.curves import Curve
from hf_encoders.records.hardware import describe_hardware, describe_software
from hf_encoders.records.plots import draw_runs
from hf_encoders.records.training_record import TrainingRecord
from hf_encoders.redaction import published_path
from hf_encoders.saved_files import CARD_FILE, CURVE_FILE
from hf_encoders.training.optimizers import optimization_facts
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import replaced_folder


def save_pretrained_folder(
    directory: Path,
    run: Run,
    trainer: PreTrainingTrainer,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
    command: str,
) -> None:
    """Save a trained model with all that is told about it. Every process of a launch calls it.

    Args:
        directory (`Path`): made if it is not there; a model that it holds is removed only when the new one is whole.
        run, trainer, corpus_name, documents, after, language, command: As in `pretraining_record`.
    """
    if trainer.args.process_index != 0:
        trainer.save_model(str(directory), _internal_call=True)  # gathers shards; the first process writes
        return
    with replaced_folder(directory) as folder:
        # Internal for `Trainer` means: without pushing its own card for the one that is made here.
        trainer.save_model(str(folder), _internal_call=True)
        record = pretraining_record(run, trainer, corpus_name, documents, after, language, command)
        record.save(folder)
        draw_runs(
            [Curve("training", trainer.state.log_history)],
            folder / CURVE_FILE,
            run.recipe.name,
            baselines=run.objective.loss_baselines(trainer.health.unigram_cross_entropy),
            phases=[(phase.steps, f"{phase.length} tokens") for phase in run.recipe.phases],
        )
        model = trainer.accelerator.unwrap_model(trainer.model)
        name = trainer.hub_model_id if trainer.args.push_to_hub else published_path(str(directory))
        card = make_model_card(model, record, name=name, has_curve=True)
        card.save(folder / CARD_FILE)


def pretraining_record(
    run: Run,
    trainer: PreTrainingTrainer,
    corpus_name: str,
    documents: datasets.Dataset,
    after: dict[str, float],
    language: str,
    command: str,
) -> TrainingRecord:
    """The facts of a run that has ended, restarts included.

    Args:
        run (`Run`): The run.
        trainer (`PreTrainingTrainer`): Its trainer, whose `health` counted tokens and seconds.
        corpus_name (`str`): Name of the training text.
        documents (`datasets.Dataset`): Tokenised documents of the training text.
        after (`dict`): Metrics of the last evaluation.
        language (`str`): Language code of the text.
        command (`str`): Command that started the run (`command_of`).
    """
    unigram = trainer.health.unigram_cross_entropy
    recipe, log = run.recipe, trainer.state.log_history
    held_out = {"dataset": "held-out documents of the corpus"}
    logged = {name: logged_mean(log, name) for name in log_names(log)}
    rates = () if recipe.mask_rate is None else (recipe.mask_rate(0.0), recipe.mask_rate(1.0))
    statistics = corpus_statistics(documents)
    return TrainingRecord(
        objectives=run.objective.describe(trainer.data_collator, rates, recipe.examples, logged),
        corpus={
            "name": corpus_name,
            "documents": statistics.documents,
            "sentences": statistics.sentences,
            "tokens": statistics.tokens,
        },
        schedule={
            "optimizer steps": trainer.state.global_step,
            "recipe": recipe.name,
            "phases": ", ".join(map(str, recipe.phases)),
            # For `Trainer` an example is a micro-batch, so its batch size is left out.
            **{name: fact for name, fact in optimization_facts(trainer).items() if not name.startswith("rows")},
            "seed": trainer.args.seed,
        },
        losses=run.objective.losses(after),
        hardware=describe_hardware(),
        software=describe_software(),
        seconds=trainer.health.training_seconds,
        tokens_per_second=trainer.health.tokens_seen / trainer.health.training_seconds,
        evaluation=[{**held_out, **result} for result in run.objective.results(after, unigram)],
        command=command,
        language=[language],
    )


def log_names(log_history: list[dict[str, Any]]) -> set[str]:
    """The metrics that `HealthCallback` logged as shares of the tokens or examples since the last log."""
    entries = (entry for entry in log_history if "tokens_seen" in entry)
    return {name for entry in entries for name in entry if name.endswith(("_rate", "_share"))} - {"learning_rate"}


def logged_mean(log_history: list[dict[str, Any]], figure: str) -> float | None:
    """Mean over a run of a figure that is logged of the steps since the last log; None where it was not logged.

    Weighted by the real tokens of those steps. A log that a resumed run made again counts once.

    >>> log = [{"step": 1, "tokens_seen": 30, "mask_rate": 0.2}, {"step": 2, "tokens_seen": 40, "mask_rate": 0.4}]
    >>> logged_mean(log, "mask_rate")
    0.25
    """
    entries = {entry["step"]: entry for entry in log_history if "tokens_seen" in entry and figure in entry}
    logs = [entries[step] for step in sorted(entries)]
    tokens = np.diff([0, *(entry["tokens_seen"] for entry in logs)])
    return float(np.average([entry[figure] for entry in logs], weights=tokens)) if logs else None
