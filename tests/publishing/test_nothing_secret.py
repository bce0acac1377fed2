"""A token, a home folder and a sentence of the text are in nothing that a push would send, whoever wrote it."""

import json
import shutil
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import transformers.trainer
import yaml
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Trainer, TrainingArguments

from hf_encoders import HealthCallback, HfeBertForMaskedLM, HubCodeCallback, PreTrainingTrainer
from hf_encoders.cli import main
from hf_encoders.publishing.files import published_files
from hf_encoders.publishing.publish import plan_publication, publish
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs import train as pretrain_command
from tests.corpus.corpora import write_corpus
from tests.hub.test_pretraining_push import RECIPE
from tests.hub.tiny_checkpoints import BERT
from tests.publishing.saved import RECORD, save


TOKEN = "hf_" + "Planted0Token1Planted2Token3Secret"
SHORT = "xq7kzw"  # looks like nothing: only its option tells; long enough not to be in weights by chance
USER, HOST = "alice-acme", "node17-acme"
SENTENCE = "The zygote of Wuppertal hid quixotically behind seven violet xylophones"
PLANTED = (TOKEN, SHORT, USER, HOST, SENTENCE, "training_args", "not_finite")


class Recorder:
    """The Hub's client, without a Hub: keeps what it is to send."""

    endpoint = "https://hub"

    def __init__(self):
        self.sent: dict[str, bytes] = {}
        self.pushes = 0

    def create_repo(self, repo_id, **options):
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, folder_path, allow_patterns=None, ignore_patterns=None, path_in_repo="", **options):
        folder = Path(folder_path)
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        kept = filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        return self.send({str(Path(path_in_repo or "", name)): (folder / name).read_bytes() for name in kept})

    def create_commit(self, *, operations, **options):
        return self.send({one.path_in_repo: Path(one.path_or_fileobj).read_bytes() for one in operations})

    def send(self, files):
        self.sent |= files
        self.pushes += 1
        done = Future()
        done.set_result(None)
        return done


@pytest.fixture
def hub(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(transformers.trainer, "hf_api", lambda: recorder)
    monkeypatch.setattr(pretrain_command, "upload_folder", recorder.upload_folder)
    monkeypatch.setattr(transformers.trainer.PushInProgress, "wait_until_done", lambda self: None)
    monkeypatch.setattr("hf_encoders.training.callbacks.wait", lambda jobs: None)
    return recorder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder of a user with a text."""
    home = tmp_path / "home" / USER
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", USER)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.setattr("platform.node", lambda: HOST)
    text = write_corpus(home / "text.txt", 60, "alpha")
    text.write_text(text.read_text() + f"\n\n{SENTENCE}.\nIt was found.\nNobody knows why.\n")
    (home / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    return home


def assert_clean(files: dict[str, bytes]) -> None:
    assert files
    for name, content in files.items():
        for planted in PLANTED:
            assert planted not in name, name
            assert planted.encode() not in content, f"{planted} in {name}"


def what_publish_sends(directory: Path) -> dict[str, bytes]:
    with mock.patch("hf_encoders.publishing.publish.check_loading", return_value=[]):
        plan = plan_publication(directory, "me/encoder")
    assert plan.errors == []
    return {n: plan.texts[n].encode() if n in plan.texts else (directory / n).read_bytes() for n in plan.files}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_pretrain_with_pushes_on_the_way(home, hub):
    options = ["--hub_token", SHORT, "--run_name", TOKEN, "--push_to_hub", "--hub_model_id", "me/tiny"]
    options += ["--save_steps", "1", "--hub_always_push", "True", "--hub_strategy", "all_checkpoints"]
    output = home / "run"
    words = ["--corpus", str(home / "text.txt"), "--output", str(output), "--validation-share", "0.2"]
    assert main(["pretrain", str(home / "tiny.yaml"), *words, *options, "--disable_tqdm", "True"]) == 0
    assert hub.pushes == 3 * 2 + 1
    assert_clean(hub.sent)
    assert "# me/tiny" in hub.sent["README.md"].decode()
    # Whatever way somebody sends the folder.
    assert_clean(files_in(output / "model"))
    assert_clean(what_publish_sends(output / "model"))
    record = TrainingRecord.load(output / "model")
    assert record.corpus["name"] == "text.txt"
    assert record.command.startswith(
        "hf-encoders pretrain tiny.yaml --corpus text.txt --output run --validation-share"
    )
    assert "--hub_token REDACTED --run_name REDACTED --push_to_hub --hub_model_id me/tiny" in record.command


@pytest.mark.slow
def test_the_user_names_the_corpus(home, monkeypatch):
    monkeypatch.chdir(home)
    (home / "clients").mkdir()
    shutil.move(home / "text.txt", home / "clients" / "acme-text.txt")
    words = ["--corpus", "clients/acme-text.txt", "--output", "run", "--corpus-name", "letters of 1900"]
    assert main(["pretrain", str(home / "tiny.yaml"), *words, "--disable_tqdm", "True"]) == 0
    assert TrainingRecord.load(home / "run" / "model").corpus["name"] == "letters of 1900"
    card = (home / "run" / "model" / "README.md").read_text()
    assert "| corpus: name | letters of 1900 |" in card and "\n# run/model\n" in card
    for name, content in files_in(home / "run" / "model").items():
        assert b"clients" not in content and b"acme-text" not in content, name


@pytest.mark.slow
def test_quickstart(home, monkeypatch):
    monkeypatch.setattr("hf_encoders.publishing.verification.verify_loading", lambda *arguments: None)
    text = write_corpus(home / "more.txt", 200, "beta")
    text.write_text(text.read_text() + f"\n\n{SENTENCE}.\nIt was found.\n")
    words = ["--input", str(home / "text.txt"), str(text), "--output", str(home / "out"), "--max-steps", "4"]
    assert main(["quickstart", *words, "--vocab-size", "300", "--max-length", "32"]) == 0
    assert_clean(files_in(home / "out" / "model"))
    assert_clean(what_publish_sends(home / "out" / "model"))
    assert TrainingRecord.load(home / "out" / "model").corpus["name"] == "text.txt, more.txt"


def test_the_user_names_the_labelled_rows(home, monkeypatch):
    """Labels and the name look like paths, and stay."""
    encoder = save(BERT, "AutoModelForMaskedLM", home / "encoder")
    monkeypatch.chdir(home)
    (home / "clients").mkdir()
    rows = [f"{number} is it,/r/{'cat' if number % 2 else 'dog'}\n" for number in range(20)]
    (home / "clients" / "acme-rows.csv").write_text("text,label\n" + "".join(rows))
    words = ["--model", str(encoder), "--train", "clients/acme-rows.csv", "--data-name", "/r/pets", "--max-steps", "1"]
    words += ["--class-weights", "/r/cat=2", "--output", "out"]
    assert main(["finetune", "text-classification", *words]) == 0
    for name, content in files_in(home / "out").items():
        assert b"clients" not in content and b"acme-rows" not in content, name
    record = TrainingRecord.load(home / "out" / "seed-0")
    assert "--train /r/pets --data-name /r/pets --max-steps 1 --class-weights /r/cat=2" in record.command
    assert record.corpus["name"] == record.evaluation[0]["dataset"] == "/r/pets"
    assert json.loads((home / "out" / "results.json").read_text())["data"]["train"] == "/r/pets"


def test_finetune(home):
    encoder = save(BERT, "AutoModelForMaskedLM", home / "encoder")
    rows = [f"{SENTENCE} {number},{'cat' if number % 2 else 'dog'}\n" for number in range(20)]
    (home / "train.csv").write_text("text,label\n" + "".join(rows))
    words = ["--model", str(encoder), "--train", str(home / "train.csv"), "--output", str(home / "out")]
    words += ["--max-steps", "2", "--hub_token", SHORT, f"--run-name={TOKEN}", "--optim", "adafactor"]
    assert main(["finetune", "text-classification", *words]) == 0
    assert_clean(files_in(home / "out" / "seed-0"))
    assert_clean({"results.json": (home / "out" / "results.json").read_bytes()})
    shutil.copy(home / "out" / "results.json", home / "out" / "seed-0")
    assert_clean(what_publish_sends(home / "out" / "seed-0"))
    record = TrainingRecord.load(home / "out" / "seed-0")
    assert record.base_model == "encoder (a local folder)"
    card = what_publish_sends(home / "out" / "seed-0")["README.md"].decode()
    assert "Fine-tuned from `encoder (a local folder)`." in card and "base_model:" not in card
    assert record.schedule["optimizer"] == "Adafactor"


@pytest.mark.parametrize("form", ["native", "safetensors-bf16"])
def test_export(home, form):
    encoder = save(BERT, "AutoModelForMaskedLM", home / "encoder")
    (encoder / "training_args.bin").write_text(TOKEN)
    record = {"command": f"hf-encoders pretrain --hub_token {TOKEN} {home}"}
    (encoder / "training_record.json").write_text(json.dumps(record))
    assert main(["export", str(encoder), "--to", form, "--output", str(home / "out")]) == 0
    assert_clean(files_in(home / "out"))


@pytest.fixture
def directory(home, monkeypatch):
    """What a user is about to publish."""
    monkeypatch.setattr("hf_encoders.publishing.publish.check_loading", lambda directories, trust: [])
    return save(BERT, "AutoModelForMaskedLM", home / "model")


def test_publish_redacts_a_record_of_an_earlier_version(directory, home):
    record = json.loads(RECORD.to_json()) | {
        "command": f"hf-encoders pretrain {home}/r.yaml --hub_token {SHORT} --x {TOKEN} --output {home}/run",
        "corpus": {"name": f"{home}/text.txt", "from": f"https://{USER}:{SHORT}@host/text"},
        "base_model": f"{home}/encoder",
    }
    (directory / "training_record.json").write_text(json.dumps(record))
    sent = what_publish_sends(directory)
    assert_clean(sent)
    assert b"hf-encoders pretrain r.yaml --hub_token REDACTED --x REDACTED --output run" in sent["README.md"]
    assert b'"name": "text.txt"' in sent["training_record.json"]


def in_weights(directory):
    weights = load_file(directory / "model.safetensors")
    save_file(weights, directory / "model.safetensors", {"format": "pt", "note": TOKEN})


def in_text(name, text):
    return lambda directory: (directory / name).write_text(text)


def in_json(name):
    def put(directory):
        fields = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**fields, "zz_note": TOKEN}, indent=1))

    return put


@pytest.mark.parametrize(
    ("put", "where"),
    [
        (in_weights, "model.safetensors, line "), (in_json("config.json"), "config.json, line "),
        (in_json("tokenizer_config.json"), "tokenizer_config.json, line "),
        (in_text("README.md", f"---\nlicense: mit\n---\n# Mine\n\nUse {TOKEN}.\n"), "README.md, line 6"),
        (in_text("LICENSE", f"MIT\n{TOKEN}"), "LICENSE, line 2"), (in_text("NOTICE", TOKEN), "NOTICE, line 1"),
        (in_text("results.json", json.dumps({"x": TOKEN})), "results.json, line 1"),
        (in_text("added_tokens.json", json.dumps({TOKEN: 3})), "added_tokens.json, line 1"),
    ],
)  # fmt: skip
def test_publish_refuses_a_token_wherever_it_is(directory, put, where):
    put(directory)
    plan = plan_publication(directory, "me/encoder")
    (error,) = [text for text in plan.errors if "looks like" in text]
    assert error.startswith(where) and "a Hugging Face token (hf_P..., 37 characters)" in error and TOKEN not in error
    with pytest.raises(ValueError, match="cannot be published"):
        publish(plan)


def test_publish_refuses_a_token_in_code_that_is_trusted(directory):
    path = directory / "modeling_bert.py"
    path.write_text(path.read_text() + f"\nTOKEN = '{TOKEN}'\n")
    plan = plan_publication(directory, "me/encoder", trust_remote_code=True)
    assert any(text.startswith("modeling_bert.py, line ") for text in plan.errors)


def test_publish_refuses_this_home_and_warns_of_others(directory, home):
    (directory / "README.md").write_text(f"---\nlicense: mit\n---\nSee {home}/x and /home/somebody/y.\n")
    plan = plan_publication(directory, "me/encoder")
    assert [text for text in plan.errors if "README.md, line 4, has a path of this machine" in text]
    assert any("line 4, has a path of a machine" in str(one) and not one.is_error for one in plan.findings)


def rows_of(tokenizer, words):
    row = tokenizer(words)["input_ids"]
    return [{"input_ids": row, "attention_mask": [1] * len(row), "labels": row}] * 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_pushes_of_trainer_with_our_callbacks(home, hub, kind):
    """A run that stopped at a loss that is not finite, and is resumed with pushes."""
    encoder = save(BERT, "AutoModelForMaskedLM", home / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(encoder)

    def trainer(strategy):
        model = HfeBertForMaskedLM.from_pretrained(encoder)
        arguments = TrainingArguments(
            str(home / "run"), max_steps=2, save_steps=1, use_cpu=True, report_to="none", push_to_hub=True,
            hub_model_id="me/tiny", hub_token=TOKEN, hub_strategy=strategy, hub_always_push=True, disable_tqdm=True,
        )  # fmt: skip
        kind_of_trainer = PreTrainingTrainer if kind == "ours" else Trainer
        made = kind_of_trainer(model, arguments, train_dataset=rows_of(tokenizer, "a b c"), processing_class=tokenizer)
        if kind == "stock":
            made.add_callback(HubCodeCallback())
            made.add_callback(HealthCallback())
        return made

    corrupted = trainer("every_save")
    with torch.no_grad():
        corrupted.model.cls.predictions.bias[3] = float("nan")
    with pytest.raises(ValueError, match="is not finite"):
        corrupted.train()
    assert len(list((home / "run").glob("*not_finite*"))) == 1
    (home / "run" / "notes.txt").write_text(SENTENCE)
    (home / "run" / "runs").mkdir()
    (home / "run" / "runs" / f"events.{HOST}").write_text(HOST)
    for strategy in ("every_save", "checkpoint"):
        resumed = trainer(strategy)
        resumed.train()
        resumed.save_state()
        resumed.push_to_hub()
    assert_clean(hub.sent)
    code = {name for name in hub.sent if name.endswith(".py") and "/" not in name}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "modeling_bert.py"} <= set(hub.sent)
    assert {name for name in hub.sent if "/" not in name} == published_files(home / "run") and code
    # Resuming from the Hub's copy needs all of a checkpoint except the pickle of the arguments.
    assert {"last-checkpoint/optimizer.pt", "last-checkpoint/trainer_state.json"} <= set(hub.sent)
    (home / "run" / "README.md").write_text(f"{TOKEN}")
    with pytest.raises(ValueError, match=r"README\.md, line 1, has what looks like") as refused:
        transformers.trainer.hf_api().upload_folder(folder_path=home / "run", repo_id="me/tiny")
    assert TOKEN not in str(refused.value)


def test_tokenizer(home):
    words = ["--kind", "wordpiece", "--vocab-size", "200", "--max-length", "32", "--output", str(home / "tokenizer")]
    assert main(["tokenizer", "--input", str(home / "text.txt"), *words]) == 0
    assert_clean(files_in(home / "tokenizer"))
