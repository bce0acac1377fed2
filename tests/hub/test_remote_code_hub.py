"""A repository carries its code at every commit, whoever pushed it: a model, or `Trainer` on the way or at the end.

One process with the package pushes to the loopback Hub; others, without it and with empty caches, load.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import peft
import pytest
import torch
from huggingface_hub import CommitOperationAdd, HfApi
from transformers import BertConfig, BertModel, TrainerControl, TrainerState, TrainingArguments

from hf_encoders import HubCodeCallback
from hf_encoders.publishing.files import published_files
from hf_encoders.training.callbacks import ModelUploads, watch_pushes
from tests.hub.auto_class_loads import LOAD, TOKENIZERS, Answers, Job, ask_other_process
from tests.hub.loopback_hub import LoopbackHub
from tests.hub.remote_process import run_with_package
from tests.hub.tiny_checkpoints import (
    ALBERT,
    BERT,
    FAMILIES,
    ROBERTA,
    TEXTS,
    Family,
    auto_classes,
    labels_for,
    make_batch,
    make_model,
    make_tokenizer,
    outputs_of,
    save_checkpoint,
)


pytestmark = pytest.mark.processes


# Model and tokenizer; then a model of other weights on top, as a second training would push it.
PUSH = """
import hf_encoders
from transformers import AutoTokenizer

result = {}
for name, (class_name, first, second) in argument.items():
    model_class = getattr(hf_encoders, class_name)
    model_class.from_pretrained(first).push_to_hub(f"user/{name}")
    AutoTokenizer.from_pretrained(first).push_to_hub(f"user/{name}")
    model_class.from_pretrained(second).push_to_hub(f"user/{name}")
"""

# What a process without the package loaded, saved by it.
RESAVE = """
way, source, auto_class, arguments = argument["loads"][0]
load(source, auto_class, arguments)[0].save_pretrained(argument["target"])
"""

# Three ways to train: what they share, then each. Ten examples of two texts, in batches of two.
TRAIN = """
import hf_encoders
import torch
from hf_encoders import HubCodeCallback, PreTrainingTrainer
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments


class WaitForPush(TrainerCallback):
    # Steps of milliseconds overtake the push of a checkpoint, which then finds the files of a later one.
    def __init__(self, trainer):
        self.trainer = trainer

    def on_save(self, *args, **kwargs):
        self.trainer._finish_current_push()


def train(name, trainer_class, class_name, folder, rows, callbacks, **arguments):
    model = getattr(hf_encoders, class_name).from_pretrained(folder)
    arguments = TrainingArguments(
        f"{argument['outputs']}/{name}", push_to_hub=True, hub_model_id=f"user/{name}", max_steps=4,
        per_device_train_batch_size=2, use_cpu=True, report_to="none", disable_tqdm=True, **arguments,
    )
    trainer = trainer_class(
        model, arguments, train_dataset=rows * 5, processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=callbacks,
    )
    trainer.add_callback(WaitForPush(trainer))
    trainer.train()
    return trainer


every_save = {"hub_strategy": "every_save", "hub_always_push": True, "save_steps": 2}
jobs = argument["jobs"]
# Two pushes on the way and none after: the repository must be whole without a last one.
train("pairs", PreTrainingTrainer, *jobs["pairs"], [], **every_save)._finish_current_push()
train("order", Trainer, *jobs["order"], [HubCodeCallback()], **every_save).push_to_hub()
train("tokens", Trainer, *jobs["tokens"], [], hub_strategy="end", save_strategy="no").push_to_hub()
"""


class Pushed(NamedTuple):
    """Repositories `user/<family>`, pushed twice each, and what another process loaded from main and the first commit.

    It saved `again/<family>`. Outputs and commits are of the first push and of the second.
    """

    hub: LoopbackHub
    folder: Path
    outputs: dict[str, list[dict[str, torch.Tensor]]]
    shas: dict[str, list[str]]
    answers: dict[str, Answers]


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    """Serve an empty hub."""
    with LoopbackHub() as server:
        yield server


@pytest.fixture(scope="module")
def pushed(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Pushed:
    """Push all families in one process, load them in another."""
    folder = tmp_path_factory.mktemp("pushed")
    pushes, outputs = {}, {}
    for family in FAMILIES:
        folders = []
        outputs[family.name] = []
        for seed in (1, 2):
            model = make_model(family, family.token_head, seed)
            folders.append(save_checkpoint(model, family, folder / family.name / str(seed)))
            outputs[family.name].append(outputs_of(model, family.token_head, make_batch(family)))
        pushes[family.name] = [type(model).__name__, *map(str, folders)]
    run_with_package(PUSH, folder / "pusher", pushes, hub.environment(folder / "pusher"))
    shas = {family.name: hub.commits(f"user/{family.name}")[-2:] for family in FAMILIES}
    jobs = {}
    for family in FAMILIES:
        trusted = {"trust_remote_code": True}
        revisions = {"main": trusted, "first": trusted | {"revision": shas[family.name][0]}}
        jobs[family.name] = (family, revisions)
    answers = load_elsewhere(hub, folder, jobs)
    return Pushed(hub, folder, outputs, shas, answers)


def load_elsewhere(
    hub: LoopbackHub, folder: Path, jobs: dict[str, tuple[Family, dict[str, dict]]]
) -> dict[str, Answers]:
    """Load `user/<name>` in one process with an empty cache, and save it to `folder/again/<name>`.

    `jobs` holds by name the family and, by way, the arguments of `from_pretrained`.
    """

    def job(name: str) -> Job:
        family, ways = jobs[name]
        loads = [
            (way, f"user/{name}", auto_class, arguments)
            for way, arguments in ways.items()
            for auto_class in loaded_classes(family)
        ]
        return Job(family, {"loads": loads, "target": str(folder / "again" / name)})

    home = folder / "loader"
    answers = ask_other_process([LOAD, TOKENIZERS, RESAVE], home, [job(name) for name in jobs], hub.environment(home))
    return dict(zip(jobs, answers, strict=True))


def loaded_classes(family: Family) -> list[str]:
    """All Auto classes of BERT; of others the encoder and some heads."""
    some = ("AutoModel", "AutoModelForPreTraining", "AutoModelForTokenClassification", family.token_head)
    return auto_classes(family) if family is BERT else list(dict.fromkeys(some))


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    """Each family in turn."""
    return request.param


def assert_loaded_from_commit(
    answers: Answers, way: str, family: Family, auto_class: str, repo_id: str, sha: str
) -> None:
    """Our class, from the code of that commit, under the name that transformers gives to it."""
    module, name = family.config_class.AUTO_MAP[auto_class].split(".")
    found = answers.seen[f"{way}/{auto_class}"]
    owner, repository = repo_id.replace("-", "_hyphen_").split("/")
    assert found["class"] == name
    assert found["module"] == f"transformers_modules.{owner}.{repository}.{sha}.{module}"
    # Configuration and model meet in one module: `isinstance` would hold here, as it does not from directories.
    assert found["config"] == [
        family.config_class.__name__,
        f"transformers_modules.{owner}.{repository}.{sha}.configuration_{family.file}",
    ]


def test_model_and_tokenizer_load_from_main_and_from_a_pinned_commit(pushed: Pushed, family: Family) -> None:
    """With the weights of that commit."""
    repo_id, answers = f"user/{family.name}", pushed.answers[family.name]
    for way, sha, expected in zip(
        ("first", "main"), pushed.shas[family.name], pushed.outputs[family.name], strict=True
    ):
        for auto_class in loaded_classes(family):
            assert_loaded_from_commit(answers, way, family, auto_class, repo_id, sha)
        assert [answers.seen[f"{way}/{family.token_head}"][name] for name in ("missing", "unexpected")] == [[], []]
        logits = answers.outputs_of(way, family.token_head)["logits"]
        torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=0)
        tokenizer = answers.seen[f"{way}/tokenizer"]
        assert tokenizer["class"] == family.tokenizer_class.__name__
        assert tokenizer["ids"] == make_tokenizer(family)(list(TEXTS))["input_ids"]


class Trained(NamedTuple):
    """Repositories `user/<job>` that `Trainer` pushed to, and what was loaded from each commit, by job and `<sha>`."""

    hub: LoopbackHub
    outputs: Path
    answers: dict[str, Answers]


JOBS = {
    "pairs": (BERT, "AutoModelForPreTraining"),
    "order": (ALBERT, "AutoModelForPreTraining"),
    "tokens": (ROBERTA, "AutoModelForTokenClassification"),
}


@pytest.fixture(scope="module")
def trained(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train and push three models in one process; load every commit of each in another."""
    folder = tmp_path_factory.mktemp("trained")
    jobs = {}
    for name, (family, head) in JOBS.items():
        model = make_model(family, head)
        path = save_checkpoint(model, family, folder / "start" / name)
        batch = make_batch(family)
        columns = {key: value.tolist() for key, value in batch.items()} | labels_for(family, head, batch)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        jobs[name] = [type(model).__name__, str(path), rows]
    home = folder / "trainer"
    argument = {"jobs": jobs, "outputs": str(folder / "outputs")}
    run_with_package(TRAIN, home, argument, hub.environment(home))
    revisions = {name: hub.commits(f"user/{name}")[1:] for name in JOBS}
    loads = {
        name: (family, {sha: {"trust_remote_code": True, "revision": sha} for sha in revisions[name]})
        for name, (family, _) in JOBS.items()
    }
    answers = load_elsewhere(hub, folder, loads)
    return Trained(hub, folder / "outputs", answers)


@pytest.mark.parametrize(("job", "pushes"), [("pairs", 2), ("order", 3), ("tokens", 1)])
def test_every_commit_of_a_training_is_complete_and_can_be_loaded(trained: Trained, job: str, pushes: int) -> None:
    """`every_save` pushes at steps 2 and 4; `push_to_hub()` once more."""
    family, head = JOBS[job]
    shas, answers = trained.hub.commits(f"user/{job}")[1:], trained.answers[job]
    assert len(shas) == pushes
    for sha in shas:
        for auto_class in loaded_classes(family):
            assert_loaded_from_commit(answers, sha, family, auto_class, f"user/{job}", sha)
        assert not any(answers.seen[f"{sha}/{head}"][name] for name in ("missing", "unexpected", "mismatched"))
        assert answers.seen[f"{sha}/tokenizer"]["class"] == family.tokenizer_class.__name__
        # All classes are named, and every file is at the root of the repository.
        files = trained.hub.files(f"user/{job}", sha)
        auto_map = json.loads(files["config.json"])["auto_map"]
        assert auto_map == family.config_class.AUTO_MAP
        assert {f"{reference.split('.')[0]}.py" for reference in auto_map.values()} <= files.keys()
        assert not any(path.startswith("_") or "/" in path for path in files)
        # `Trainer` without our callbacks pushes its arguments as a pickle, which no loader reads.
        pickles = [path for path in files if path.endswith((".bin", ".pt", ".pkl"))]
        assert pickles == ["training_args.bin"] * (job == "tokens")
    last = trained.outputs / job / ("checkpoint-4" if job == "pairs" else "") / "model.safetensors"
    assert files["model.safetensors"] == last.read_bytes()
    start = trained.hub.files(f"user/{job}", shas[0])
    assert job == "tokens" or files["model.safetensors"] != start["model.safetensors"]


def test_checkpoint_from_the_hub_can_be_saved_again_as_a_directory(pushed: Pushed, family: Family) -> None:
    """Its auto_map names its own files, not those of the repository it came from."""
    target = pushed.folder / "again" / family.name
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    assert config["auto_map"] == family.config_class.AUTO_MAP
    files = pushed.hub.files(f"user/{family.name}")
    code = {path for path in files if path.endswith(".py")}
    assert {path.name for path in target.iterdir()} == code | {"config.json", "model.safetensors"}
    assert all((target / path).read_bytes() == files[path] for path in code)


def test_only_models_of_ours_get_code_and_only_in_the_process_that_pushes(tmp_path: Path) -> None:
    """Another process would write the files while they are read; PEFT's model answers for that inside."""
    ours = make_model(BERT, "AutoModelForSequenceClassification")
    theirs = BertModel(BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1, intermediate_size=7))
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    adapted = peft.get_peft_model(make_model(BERT, "AutoModelForSequenceClassification"), config)
    for number, (model, is_first) in enumerate([(ours, True), (ours, False), (theirs, True), (adapted, True)]):
        folder = tmp_path / str(number)
        model.save_pretrained(folder / "checkpoint-0")
        arguments = TrainingArguments(str(folder), use_cpu=True, report_to="none")
        state = TrainerState(is_world_process_zero=is_first)
        HubCodeCallback().on_push_begin(arguments, state, TrainerControl())
        code = {path.name for path in folder.glob("*.py")}
        assert ({"modeling_bert.py", "configuration_bert.py"} <= code) if number == 0 else not code


def test_pushes_that_failed_in_the_background_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next push and at the end of training; both wait for pushes under way, whose files are replaced next."""
    told = []
    monkeypatch.setattr("hf_encoders.training.callbacks.logger.warning", told.append)
    good, bad, late, last = Future(), Future(), Future(), Future()
    good.set_result("a commit")
    bad.set_exception(ConnectionError("no\nnetwork"))
    trainer = SimpleNamespace(push_in_progress=None)
    callback = HubCodeCallback(trainer)
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    state = TrainerState(global_step=7)
    callback.on_push_begin(arguments, state, TrainerControl())
    trainer.push_in_progress = SimpleNamespace(jobs=[good, bad])
    for _ in range(2):
        callback.on_push_begin(arguments, state, TrainerControl())
        assert len(told) == 1 and "before step 7 failed (no network)" in told[0]
    with ThreadPoolExecutor() as pool:
        trainer.push_in_progress.jobs += [late]
        pool.submit(lambda: (time.sleep(0.05), late.set_exception(ValueError("refused"))))
        callback.on_push_begin(arguments, state, TrainerControl())
        assert len(told) == 2 and "failed (refused)" in told[1] and "trainer.push_to_hub()" in told[1]
        trainer.push_in_progress.jobs += [last]
        pool.submit(lambda: (time.sleep(0.05), last.set_exception(ValueError("too large"))))
        callback.on_train_end(arguments, state, TrainerControl())
    assert len(told) == 3 and "failed (too large)" in told[2]


def test_checkpoints_may_be_removed_while_a_model_is_pushed(tmp_path: Path) -> None:
    """They lie in the folder that is pushed, and are removed once the push has begun in the background."""

    class Api(HfApi):
        def create_commit(
            self, *, operations: list[CommitOperationAdd], run_as_future: bool, **options: Any
        ) -> Future:
            done: Future = Future()
            done.set_result({operation.path_in_repo for operation in operations})
            return done

    save_checkpoint(make_model(BERT, "AutoModelForMaskedLM"), BERT, tmp_path)
    checkpoints = [tmp_path / f"checkpoint-{number}" for number in range(1000)]
    for checkpoint in checkpoints:
        checkpoint.mkdir()
    watch_pushes(tmp_path)
    options = {"repo_id": "user/model", "commit_message": "step 2", "ignore_patterns": ["_*"], "run_as_future": True}
    job = ModelUploads(Api()).upload_folder(folder_path=tmp_path, **options)
    for checkpoint in checkpoints:
        checkpoint.rmdir()
    pushed = job.result(timeout=60)
    assert {"config.json", "model.safetensors", "modeling_bert.py", "tokenizer.json"} <= pushed
    assert pushed == published_files(tmp_path)
