"""The folder of a run, and `run.json`, which identifies the run.

`run.json` holds the version, recipe, seed, validation share, training arguments that shape the result, hashes of
corpus and tokenizer, the plan, and, when they are known, the metrics before and after, the unigram cross-entropy,
guesses of hidden words, and whether the run is finished. Runs that read a checkpoint or a teacher name it by its
weights.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator
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
from hf_encoders.runs.recipe import Phase
from hf_encoders.runs.run import Run
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
VERSION = "hf_encoders"  # entry of `run.json`: the version that the run began with
# Entries that do not tell runs apart: fields of `TrainingArguments` in a recipe are in `training` with their effective
# values if they shape the result, and the initial checkpoint may be moved: its weights are compared.
IGNORED = {("recipe", "name"), ("recipe", "training"), (INITIAL, "name"), (VERSION, None)}
OF_STEPS = {("recipe", "phases"), ("training", "warmup_steps"), ("training", "lr_scheduler_kwargs")}
# Further entries of `run.json`: whether the run is finished, the metrics of held-out text before the first and after
# the last step, the unigram cross-entropy of that text, and the steps in which new heads learn alone; the plan and
# guesses of hidden words are for `hf-encoders report`.
IS_FINISHED, BEFORE, AFTER, UNIGRAM, ALONE = "is_finished", "before", "after", "unigram_cross_entropy", "head_steps"
PLAN, PREDICTIONS = "plan", "predictions"


def set_run_aside(output: Path, read_by_the_next: list[str | None]) -> None:
    """Move the files of a run, except its model, into a folder that is removed when the next run begins to train.

    Raises:
        ValueError: before anything is moved, if `read_by_the_next`, paths and names, are among the files.
    """
    parts = [path for pattern in RUN_PARTS for path in output.glob(pattern)]
    for name in filter(None, read_by_the_next):
        read = Path(name).resolve()
        if any(path.resolve() in (read, *read.parents) for path in parts):
            raise ValueError(f"--overwrite would remove {name}, which this run reads: move it out of {output} first.")
    aside = output / REPLACED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in parts:
        path.rename(aside / path.name)


@contextmanager
def restored_if_refused(output: Path) -> Iterator[None]:
    """Leave the folder of a run as it was if a command fails before it trains.

    Tokenizer and text that the command made are removed, and a run that it was to replace is put back. Ctrl-C, a kill,
    and a worker that ran out of memory leave them: the same command continues the preparation.
    """

    def prepared_folders() -> set[Path]:
        return {path for pattern in PREPARED for path in output.glob(pattern) if path.is_dir()}

    def when_written() -> int | None:
        return (output / RUN_FILE).stat().st_mtime_ns if (output / RUN_FILE).exists() else None

    earlier, written_before = prepared_folders(), when_written()
    try:
        yield
    except Exception as error:
        is_refused = isinstance(error, ValueError | OSError) or storage_problem(error) is not None
        if is_refused and when_written() == written_before:
            for path in prepared_folders() - earlier:
                shutil.rmtree(path, ignore_errors=True)
            for path in (output / REPLACED).glob("*"):
                path.rename(output / path.name)
            shutil.rmtree(output / REPLACED, ignore_errors=True)
        raise


def settings_facts(run: Run, validation_share: float) -> dict[str, Any]:
    """Return the facts that identify a run and do not depend on its text, as read back from `run.json`."""
    recipe, training = run.recipe, run.arguments
    fields = {name: value for name, value in recipe.training.items() if not is_secret(name, str(value))}
    facts = {
        VERSION: __version__,
        "recipe": {**recipe.facts(), "training": fields},
        "seed": training.seed,
        "validation share": validation_share,
        "training": {name: getattr(training, name) for name in SHAPING},
        **run.objective.facts(),
    }
    return json.loads(json.dumps(facts, default=str))


def text_facts(run: Run, sources: Sources, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the facts that identify the text of a run and its tokenizer."""
    facts = {**sources.facts(), "tokenizer": tokenizer_fingerprint(tokenizer)}
    if needs_similar_words(run.recipe):
        facts["similar words"] = sources.similar_words(tokenizer).fingerprint
    return json.loads(json.dumps(facts, default=str))


def read_run_file(output: Path) -> dict[str, Any] | None:
    """Return the content of a folder's `run.json`; None if there is no run.

    Raises:
        ValueError: if it is damaged, or the run began with a version whose examples are others.
    """
    file = output / RUN_FILE
    if not file.is_file():
        if any(output.glob("checkpoint-*")):
            raise ValueError(f"--output {output} holds checkpoints of another kind of run: give another folder.")
        return None
    remedy = "it identifies the run of the checkpoints: restore it, or start from scratch with --overwrite."
    noted = read_json(file, remedy)
    # Other entries are compared with those of the resumed run.
    try:
        is_whole = bool(phases_of(noted)) and isinstance(noted["training"], dict)
    except (KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{file} is damaged (its phases or training): {remedy}")
    begun, here = (".".join(version.split(".")[:2]) for version in (str(noted.get(VERSION, "0.1")), __version__))
    if begun != here:
        raise ValueError(
            f"--output {output} holds a run begun with hf_encoders {begun}, whose examples {here} would not repeat: "
            f"finish it with pip install 'hf_encoders=={begun}.*', give another folder, or start from scratch with "
            "--overwrite."
        )
    return noted


def phases_of(noted: dict[str, Any]) -> tuple[Phase, ...]:
    """Return the phases in `run.json`."""
    return tuple(Phase(**phase) for phase in noted["recipe"]["phases"])


def write_run(output: Path, facts: dict[str, Any]) -> None:
    """Write `run.json` atomically."""
    output.mkdir(parents=True, exist_ok=True)
    write_whole(output / RUN_FILE, json.dumps(facts, indent=1) + "\n")


def check_resumed(noted: dict[str, Any], run: Run, facts: dict[str, Any]) -> None:
    """Refuse to resume or extend a run, `noted` in `run.json`, as another one.

    `facts` may be a part of those that identify the run: what is known before there is text.

    Raises:
        ValueError: naming the first difference, or why the run cannot be extended.
    """
    recipe, output, before = run.recipe, run.output, phases_of(noted)
    if not recipe.continues(before):
        check_same(noted, facts, output, IGNORED)
        return
    check_same(noted, facts, output, IGNORED | OF_STEPS)
    if noted.get(IS_FINISHED) and not checkpoints_by_step(output):
        raise ValueError(
            f"--output {output} holds a finished run of {sum(phase.steps for phase in before):,} steps without a "
            "checkpoint to resume from: give another folder, or start from scratch with --overwrite."
        )
    table, longest = "max_position_embeddings", max(phase.length for phase in before)
    has_table = any(field.name == table for field in dataclasses.fields(recipe.config_class))
    has_table &= recipe.config_class.LIMITS_LENGTH
    if recipe.longest > longest and has_table and table not in {**run.initial_fields, **recipe.model}:
        raise ValueError(
            f"phases: examples of {recipe.longest} tokens need more positions than the model of the run in --output "
            f"{output} has, which was made for {longest}: start a new run in another folder, or with --overwrite. "
            f"Longer examples can extend only a recipe that sets model: {table}."
        )


def resumed_facts(noted: dict[str, Any], run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what `RunFileCallback` writes into `run.json` for a resumed or extended run; prints what is extended."""
    before = phases_of(noted)
    if not run.recipe.continues(before):
        return noted
    if run.arguments.process_index == 0:
        steps, phases = sum(phase.steps for phase in before), ", ".join(map(str, run.recipe.phases))
        print(
            f"This run is extended from {steps:,} to {run.recipe.steps:,} steps ({phases}): learning rate and mask "
            "rate follow the longer schedule from now on.",
            flush=True,
        )
    return {**noted, **facts, IS_FINISHED: False}


def check_same(noted: dict[str, Any], facts: dict[str, Any], output: Path, ignored: set[tuple]) -> None:
    """Refuse a run that differs from the one in the output folder; ValueError naming the first difference."""
    # A run that began from a checkpoint has an entry that one from scratch does not have.
    names = dict.fromkeys((*facts, INITIAL))
    before, now = (entries({name: run.get(name) for name in names}) for run in (noted, facts))
    missing = object()  # an entry that one of the two does not have
    for entry in {**now, **before}:
        if entry in ignored or before.get(entry, missing) == now.get(entry, missing):
            continue
        name, key = entry
        hint = ""
        if entry == ("recipe", "phases"):
            phases = ", ".join(map(str, phases_of(noted)))
            hint = f"It has {phases}; a longer run keeps these, and extends the last (--max-steps) or adds others."
        raise ValueError(
            f"--output {output} holds a run with another {name}{f' ({key})' if key else ''}: resume it with its own "
            f"arguments, give another folder, or start from scratch with --overwrite. {hint}".rstrip()
        )


def entries(facts: dict[str, Any]) -> dict[tuple[str, str | None], Any]:
    """Return facts by name and key, without a key for those that are no dictionary."""
    pairs = ((name, value if isinstance(value, dict) else {None: value}) for name, value in facts.items())
    return {(name, key): value for name, inner in pairs for key, value in inner.items()}


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
