"""The folder of a run, and `run.json`, which identifies the run."""

import dataclasses
import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_encoders import __version__
from hf_encoders.corpus.special_tokens import tokenizer_fingerprint
from hf_encoders.objectives.objective import INITIAL
from hf_encoders.publishing.files import RUN_FILE
from hf_encoders.publishing.secrets import is_secret
from hf_encoders.runs.recipe import Phase, Recipe
from hf_encoders.runs.sources import CORPUS, Sources, needs_similar_words
from hf_encoders.training.checkpoints import UNFINISHED, checkpoints_by_step
from hf_encoders.writing import read_json, storage_problem, write_whole


# Fields of `TrainingArguments` that a checkpoint's optimizer and schedule contain: other values would be ignored.
SHAPING = (
    "learning_rate",
    "warmup_steps",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
)
# Files of a run in its folder, except the model, which stays until there is a new one.
RUN_PARTS = (
    RUN_FILE,
    "tokenizer",
    "_tokenizer",
    CORPUS,
    "_model",
    "finetuned",
    "checkpoint-*",
    UNFINISHED,
    "trainer_state.json",
)
REPLACED = "_replaced_run"  # folder of a run that --overwrite replaces, until the new one trains
# Folders in it that commands prepare from text, `_text` of the quickstart.
PREPARED = ("tokenizer", CORPUS, f"{CORPUS}/*", "_text")
# Facts of `run_identity` that depend on the number of steps.
OF_STEPS = ("warmup_steps", "lr_scheduler_kwargs")
VERSION = "hf_encoders"  # entry of `run.json`: the version that the run began with
# Further entries of `run.json`: whether the run is finished, the metrics of held-out text before the first and after
# the last step, the unigram cross-entropy of that text, and the steps in which new heads learn alone.
IS_FINISHED, BEFORE, AFTER, UNIGRAM, ALONE = "is_finished", "before", "after", "unigram_cross_entropy", "head_steps"


def set_run_aside(output: Path, read_by_the_next: list[str | None]) -> None:
    """Move the files of a run into a folder that is removed when the next run begins to train.

    The model stays where it is until the next one is complete.

    Raises:
        ValueError: before anything is moved, if `read_by_the_next`, paths and names, are among the files.
    """
    found = [path for pattern in RUN_PARTS for path in output.glob(pattern)]
    for name in read_by_the_next:
        read = None if name is None else Path(name).resolve()
        if read is not None and any(path.resolve() in (read, *read.parents) for path in found):
            raise ValueError(f"--overwrite would remove {name}, which this run reads: move it out of {output} first.")
    aside = output / REPLACED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)


@contextmanager
def restored_if_refused(output: Path) -> Iterator[None]:
    """Leave the folder of a run as it was if a command fails before it trains.

    Tokenizer and text that the command made are removed, and a run that it was to replace is put back.

    Ctrl-C, a kill, and a worker that ran out of memory leave them: the same command goes on with the preparation.
    """
    earlier, run_before = prepared_folders(output), _when_written(output / RUN_FILE)
    try:
        yield
    except Exception as error:
        is_refused = isinstance(error, ValueError | OSError) or storage_problem(error) is not None
        if is_refused and _when_written(output / RUN_FILE) == run_before:
            for path in prepared_folders(output) - earlier:
                shutil.rmtree(path, ignore_errors=True)
            for path in (output / REPLACED).glob("*"):
                path.rename(output / path.name)
            shutil.rmtree(output / REPLACED, ignore_errors=True)
        raise


def prepared_folders(output: Path) -> set[Path]:
    """Return the folders of tokenizers and text that commands make in the folder of a run."""
    return {path for pattern in PREPARED for path in output.glob(pattern) if path.is_dir()}


def _when_written(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def settings_facts(recipe: Recipe, training: TrainingArguments, validation_share: float) -> dict[str, Any]:
    """Return the facts that identify a run and do not depend on its text, as read back from `run.json`."""
    fields = {name: value for name, value in recipe.training.items() if not is_secret(name, str(value))}
    facts = {
        VERSION: __version__,
        "recipe": {**recipe.facts(), "training": fields},
        "seed": training.seed,
        "validation share": validation_share,
        "training": {name: getattr(training, name) for name in SHAPING},
    }
    return json.loads(json.dumps(facts, default=str))


def run_identity(
    recipe: Recipe,
    sources: Sources,
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingArguments,
    validation_share: float,
) -> dict[str, Any]:
    """Return the facts that identify a run, as read back from `run.json`; without tokens of the Hub."""
    of_text = {**sources.facts(), "tokenizer": tokenizer_fingerprint(tokenizer)}
    if needs_similar_words(recipe):
        of_text["similar words"] = sources.similar_words(tokenizer).fingerprint
    return settings_facts(recipe, training, validation_share) | json.loads(json.dumps(of_text, default=str))


def read_run_file(output: Path) -> dict[str, Any] | None:
    """Return the content of a folder's `run.json`; None if there is no run, and ValueError if it is damaged."""
    file = output / RUN_FILE
    if not file.is_file():
        if any(output.glob("checkpoint-*")):
            raise ValueError(f"--output {output} holds checkpoints of another kind of run: give another folder.")
        return None
    remedy = "it identifies the run of the checkpoints: restore it, or start from scratch with --overwrite."
    facts = read_json(file, remedy)
    # Other entries are compared with those of the resumed run.
    try:
        is_whole = bool(phases_of(facts)) and isinstance(facts["training"], dict)
    except (KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{file} is damaged (its phases or training): {remedy}")
    if VERSION not in facts:
        raise ValueError(
            f"--output {output} holds a run begun with hf_encoders 0.1, whose examples this version would not repeat: "
            "finish it with the old version (pip install 'hf_encoders<0.2'), give another folder, or start from "
            "scratch with --overwrite."
        )
    return facts


def phases_of(noted: dict[str, Any]) -> tuple[Phase, ...]:
    """Return the phases in `run.json`."""
    return tuple(Phase(**phase) for phase in noted["recipe"]["phases"])


def write_run(output: Path, facts: dict[str, Any]) -> None:
    """Write `run.json` atomically."""
    output.mkdir(parents=True, exist_ok=True)
    write_whole(output / RUN_FILE, json.dumps(facts, indent=1) + "\n")


def begin_or_go_on(
    output: Path, recipe: Recipe, facts: dict[str, Any], is_main: bool, given: Collection[str] = ()
) -> dict[str, Any]:
    """Return what `RunFileCallback` writes into `run.json`, for a new, a resumed or an extended run.

    `given` are the fields of the model that the recipe does not decide, but a checkpoint.

    Raises:
        ValueError: if the folder holds another run, or one that cannot be extended.
    """
    before = check_run(output, recipe, facts, given)
    if before is None:
        return facts
    if not recipe.continues(phases_of(before)):
        return before
    if is_main:
        phases = ", ".join(map(str, recipe.phases))
        steps = sum(phase.steps for phase in phases_of(before))
        print(
            f"This run is extended from {steps:,} to {recipe.steps:,} steps ({phases}): learning rate and mask rate "
            "follow the longer schedule from now on.",
            flush=True,
        )
    return {**before, **facts, IS_FINISHED: False}


def check_run(
    output: Path, recipe: Recipe, facts: dict[str, Any], given: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return the content of `run.json` of the run that goes on in the folder; None if there is none yet.

    `facts` may be a part of those that identify the run: what is known before there is text.

    Raises:
        ValueError: if the folder holds another run, or one that cannot be extended.
    """
    before = read_run_file(output)
    if before is None:
        return None
    if not recipe.continues(phases_of(before)):
        check_same(before, facts, output)
        return before
    check_same(without_steps(before), without_steps(facts), output)
    steps, longest = sum(phase.steps for phase in phases_of(before)), max(phase.length for phase in phases_of(before))
    if before.get(IS_FINISHED) and not checkpoints_by_step(output):
        raise ValueError(
            f"--output {output} holds a finished run of {steps:,} steps without a checkpoint to resume from: give "
            "another folder, or start from scratch with --overwrite."
        )
    has_table = any(one.name == "max_position_embeddings" for one in dataclasses.fields(recipe.config_class))
    if recipe.longest > longest and has_table and "max_position_embeddings" not in (*recipe.model, *given):
        raise ValueError(
            f"phases: examples of {recipe.longest} tokens need more positions than the model of the run in --output "
            f"{output} has, which was made for {longest}: start a new run in another folder, or with --overwrite. "
            "Longer examples can extend only a recipe that sets model: max_position_embeddings."
        )
    return before


def without_steps(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a run except its length."""
    training = {name: value for name, value in facts["training"].items() if name not in OF_STEPS}
    return {**facts, "recipe": {**facts["recipe"], "phases": None}, "training": training}


def check_same(before: dict[str, Any], facts: dict[str, Any], output: Path) -> None:
    """Refuse a run that differs from the one in the output folder.

    Ignored are the name of the recipe and its fields of `TrainingArguments`: those that shape the result are in
    `training` with their effective values; how often a run is saved may change. Also the name of the initial
    checkpoint, whose weights are compared: its folder may be moved.

    Raises:
        ValueError: naming the first difference.
    """
    before, facts = (
        {
            **one,
            "recipe": {**one["recipe"], "name": None, "training": None},
            VERSION: None,
            INITIAL: {**one.get(INITIAL, {}), "name": None},
        }
        for one in (before, facts)
    )
    for name, value in facts.items():
        if before.get(name) != value:
            where, old, hint = name, before.get(name), ""
            if isinstance(value, dict) and isinstance(old, dict):
                missing = object()  # a key that one of the two does not have
                differing = (key for key in {**value, **old} if value.get(key, missing) != old.get(key, missing))
                where = f"{name} ({next(differing)})"
            if where == "recipe (phases)":
                phases = ", ".join(map(str, phases_of(before)))
                hint = f"It has {phases}; a longer run keeps these, and extends the last (--max-steps) or adds others."
            raise ValueError(
                f"--output {output} holds a run with another {where}: resume it with its own arguments, give another "
                f"folder, or start from scratch with --overwrite. {hint}".rstrip()
            )


class RunFileCallback(TrainerCallback):
    """Writes `run.json`, with the metrics of the evaluation at step 0 if there is one (`eval_on_start`).

    Not before the trainer has loaded its checkpoint: an earlier failure must not change the folder.
    """

    def __init__(self, output: Path, facts: dict[str, Any]):
        self.output, self.facts = output, facts
        self._before: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write it, in the main process, and remove a run that this one replaces."""
        if state.is_world_process_zero:
            write_run(self.output, self.facts)
            shutil.rmtree(self.output / REPLACED, ignore_errors=True)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: dict, **kwargs: Any
    ) -> None:
        """Keep the metrics at step 0; of several datasets, the last call has those of all."""
        if state.global_step == 0:
            self._before = {name: value for name, value in metrics.items() if name.startswith("eval_")}

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write these before the first step, and train as if there had been no evaluation."""
        if not self._before:
            return
        self.facts[BEFORE], self._before = self._before, {}
        if state.is_world_process_zero:
            write_run(self.output, self.facts)
        set_seed(args.seed)
