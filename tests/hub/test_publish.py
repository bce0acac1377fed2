"""`hf-encoders publish` through the loopback Hub: one commit that others can load, or nothing."""

import argparse
import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file, save_file
from transformers.modelcard import TrainingSummary

from hf_encoders.commands import publish as publish_command
from hf_encoders.publishing import publish as publishing
from hf_encoders.publishing.publish import plan_publication, publish
from hf_encoders.publishing.record import TrainingRecord, signed
from tests.hub.auto_class_loads import LOAD, Job, ask_other_process
from tests.hub.loopback_hub import READ_ONLY
from tests.hub.tiny_checkpoints import (
    ALBERT,
    BERT,
    make_batch,
    make_config,
    make_model,
    outputs_of,
    save_checkpoint,
)
from tests.publishing.saved import RECORD, save


MLM = "AutoModelForMaskedLM"
NOT_PUSHED = ("optimizer.pt", "training_args.bin", "trainer_state.json", ".env", "notes.txt", "train.py")


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loads in other processes, which take seconds each: `tests/publishing/test_checks.py` tests them."""
    monkeypatch.setattr(publishing, "check_loading", lambda directories, trust: [])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as training leaves it, with what does not belong on the Hub."""
    folder = save(BERT, MLM, tmp_path_factory.mktemp("trained") / "model")
    for name in NOT_PUSHED:
        (folder / name).write_text("not for the Hub")
    for name in ("checkpoint-3", "runs"):
        (folder / name).mkdir()
        (folder / name / "events.out").write_text("not for the Hub")
    (folder / "loss_curve.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def directory(trained: Path, tmp_path: Path, unloaded: None) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.mark.processes
def test_what_is_published_loads_without_the_package(hub, api, tmp_path, unloaded):
    """Two heads: `test_remote_code_directory.py` loads all of all families from folders."""
    jobs, expected = [], []
    for family, head in ((BERT, MLM), (ALBERT, "AutoModelForSequenceClassification")):
        repo_id = f"user/{family.name}"
        publish(plan_publication(save(family, head, tmp_path / family.name), repo_id), api=api)
        assert len(hub.commits(repo_id)) == 2  # the empty one that the Hub makes, and one more
        loads = [("trusted", repo_id, head, {"trust_remote_code": True}), ("plain", repo_id, head, {})]
        jobs.append(Job(family, {"loads": loads}))
        expected.append((head, outputs_of(make_model(family, head), head, make_batch(family))))
    home = tmp_path / "home"
    for answers, job, (head, outputs) in zip(
        ask_other_process([LOAD], home, jobs, hub.environment(home)), jobs, expected, strict=True
    ):
        name = job.family.config_class.AUTO_MAP[head].split(".")[1]
        assert answers.seen[f"trusted/{head}"]["class"] == name
        assert answers.seen[f"plain/{head}"]["class"] == name.removeprefix("Hfe")
        assert not answers.seen[f"plain/{head}"]["missing"]
        loaded = answers.outputs_of("trusted", head)
        assert loaded.keys() == outputs.keys()
        assert all((loaded[name] - value).abs().max() < 1e-5 for name, value in outputs.items())


def test_a_publication_holds_model_code_tokenizer_card_and_curve_alone(hub, api, directory):
    plan = plan_publication(directory, "user/encoder", license_name="apache-2.0", language=["en", "de"])
    assert set(plan.left) == {*NOT_PUSHED, "checkpoint-3/", "runs/"}
    url = publish(plan, message="First", api=api)
    files = hub.files("user/encoder")
    assert url == f"{hub.endpoint}/user/encoder/commit/{hub.sha('user/encoder')}"
    code = {path.name for path in directory.glob("*.py")} - {"train.py"}
    others = "config.json model.safetensors tokenizer.json tokenizer_config.json README.md loss_curve.png"
    assert set(files) == {*code, *others.split(), "training_record.json", ".gitattributes"}
    assert {name: len(files[name]) for name in plan.files} == plan.files
    assert all(files[name] == (directory / name).read_bytes() for name in plan.files)
    card = ModelCard(files["README.md"].decode())
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en", "de"])
    assert 'from_pretrained("user/encoder", trust_remote_code=True)' in card.text
    # What was stated is recorded, so the next card says it too.
    assert TrainingRecord.load(directory).license == "apache-2.0"
    assert json.loads(files["training_record.json"])["language"] == ["en", "de"]
    assert "PUT /lfs/" in " ".join(hub.requests)


def test_files_of_an_earlier_model_go_in_the_same_commit(hub, api, directory):
    api.create_repo("user/encoder")
    old = (
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "vocab.txt",
        "modeling_old.py",
        "notes.md",
    )
    operations = [huggingface_hub.CommitOperationAdd(name, b"old") for name in old]
    api.create_commit("user/encoder", operations, commit_message="old")
    publish(plan_publication(directory, "user/encoder"), api=api)
    assert len(hub.commits("user/encoder")) == 3
    assert set(old) & set(hub.files("user/encoder")) == {"notes.md"}


def test_branches_and_private_repositories(hub, api, directory):
    plan = plan_publication(directory, "user/encoder")
    publish(plan, private=True, api=api)
    assert api.model_info("user/encoder").private
    main = hub.sha("user/encoder")
    (directory / "LICENSE").write_text("MIT")
    publish(plan_publication(directory, "user/encoder"), revision="v2", private=True, api=api)
    assert hub.sha("user/encoder") == main and hub.files("user/encoder", "v2")["LICENSE"] == b"MIT"
    api.create_repo("user/public")
    with pytest.raises(ValueError, match="exists and is public: make it private"):
        publish(plan_publication(directory, "user/public"), private=True, api=api)
    assert list(hub.files("user/public")) == [".gitattributes"]


@pytest.mark.parametrize("part", ["/validate-yaml", "/preupload/", "/objects/batch", "PUT /lfs/", "/commit/"])
def test_a_push_that_fails_leaves_the_files_on_the_hub(part, hub, api, directory, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two attempts of the client
    publish(plan_publication(directory, "user/encoder"), api=api)
    before = hub.files("user/encoder")
    weights = load_file(directory / "model.safetensors")
    save_file(weights, directory / "model.safetensors", {"format": "pt", "note": "changed"})
    plan = plan_publication(directory, "user/encoder")
    for _ in range(10):  # the client repeats some requests five times
        hub.fail_next(part)
    with pytest.raises((HfHubHTTPError, RuntimeError, ValueError)):
        publish(plan, api=api)
    assert hub.files("user/encoder") == before
    hub._failures.clear()
    publish(plan, api=api)
    assert hub.files("user/encoder")["model.safetensors"] == (directory / "model.safetensors").read_bytes()


def test_a_linked_file_is_replaced_and_not_written_through(hub, api, trained, tmp_path, unloaded):
    """As in a snapshot of the Hub's cache, whose files are links."""
    directory = Path(shutil.copytree(trained, tmp_path / "models--user--encoder" / "snapshots" / "a1b2"))
    blob = tmp_path / "models--user--encoder" / "blobs" / "c3d4"
    blob.parent.mkdir()
    blob.write_text(signed("# An earlier card"))
    (directory / "README.md").symlink_to(blob)
    publish(plan_publication(directory, "user/encoder"), api=api)
    assert blob.read_text() == signed("# An earlier card")
    assert b"masked language modelling" in hub.files("user/encoder")["README.md"]


def test_pictures_of_a_card_go_with_it(hub, api, directory):
    (directory / "images").mkdir()
    (directory / "images" / "mine.png").write_bytes(b"mine")
    (directory.parent / "secret.png").write_bytes(b"not for the Hub")
    (directory / "README.md").write_text("---\nlicense: mit\n---\n![mine](images/mine.png)\n")
    publish(plan_publication(directory, "user/encoder"), api=api)
    assert hub.files("user/encoder")["images/mine.png"] == b"mine"
    (directory / "README.md").write_text("---\nlicense: mit\n---\n![no](../secret.png)\n")
    (error,) = plan_publication(directory, "user/encoder").errors
    assert "shows ../secret.png, which is not published with it: copy the picture into the directory" in error


def test_refusals(hub, api, directory):
    plan = plan_publication(directory, "user/encoder")
    with pytest.raises(HfHubHTTPError, match="this token may only read"):
        publish(plan, api=HfApi(endpoint=hub.endpoint, token=READ_ONLY))
    api.create_repo("user/encoder")
    hub.fail_next("/commit/", 412)
    with pytest.raises(HfHubHTTPError, match="412"):
        publish(plan, api=api)
    api.upload_file(path_or_fileobj=b"*.py", path_in_repo=".gitignore", repo_id="user/encoder")
    with pytest.raises(ValueError, match="has a .gitignore"):
        publish(plan, api=api)
    commit = hub.sha("user/encoder")
    with pytest.raises(ValueError, match=f"revision='{commit}' is a commit, .*: name a branch"):
        publish(plan, revision=commit, api=api)
    with pytest.raises(ValueError, match="is a commit"):
        run(str(directory), "--repo", "user/encoder", "--revision", commit, "--dry-run")
    with pytest.raises(ValueError, match="repo='encoder' is not a name of a repository: use owner/name"):
        plan_publication(directory, "encoder")


def test_a_card_the_hub_refuses_is_found_before_the_push_and_by_it(api, directory):
    plan = plan_publication(directory, "user/encoder", license_name="my own")
    assert any("license 'my own' is not an identifier of the Hub" in error for error in plan.errors)
    with pytest.raises(ValueError, match="cannot be published.*license 'my own'"):
        publish(plan, api=api)
    plan.findings.clear()
    with pytest.raises(ValueError, match="(?s)Invalid metadata.*license 'my own'"):
        publish(plan, api=api)


def test_a_card_edited_by_hand_is_published_as_it_is(hub, api, directory):
    publish(plan_publication(directory, "user/encoder"), api=api)
    edited = (directory / "README.md").read_text().replace("## Limits", "## Limits, by me")
    (directory / "README.md").write_text(edited)
    plan = plan_publication(directory, "user/encoder")
    assert "was edited by hand: published as it is" in plan.note
    publish(plan, api=api)
    assert hub.files("user/encoder")["README.md"].decode() == edited
    with pytest.raises(ValueError, match="edited by hand, so --license, --language and --base-model.*--new-card"):
        plan_publication(directory, "user/encoder", license_name="mit")
    plan = plan_publication(directory, "user/encoder", license_name="mit", new_card=True)
    publish(plan, api=api)
    assert b"by me" not in hub.files("user/encoder")["README.md"]


def test_a_card_edited_on_the_hub_is_not_replaced_by_a_generated_one(hub, api, directory):
    publish(plan_publication(directory, "user/encoder"), api=api)
    edited = hub.files("user/encoder")["README.md"].replace(b"## Limits", b"## Limits, by a colleague")
    api.upload_file(path_or_fileobj=edited, path_in_repo="README.md", repo_id="user/encoder")
    before = hub.sha("user/encoder")
    for branch in ("main", "v2"):
        with pytest.raises(ValueError, match=r"edited on the Hub.*: download it into .*/model to keep it.*--new-card"):
            publish(plan_publication(directory, "user/encoder"), revision=branch, api=api)
    assert hub.sha("user/encoder") == before and not (directory / ".cache").exists()
    # Either remedy: the file downloaded, which wins as any that was edited, or a new card.
    (directory / "README.md").write_bytes(edited)
    publish(plan_publication(directory, "user/encoder"), api=api)
    assert hub.files("user/encoder")["README.md"] == edited
    publish(plan_publication(directory, "user/encoder", new_card=True), api=api)
    assert b"colleague" not in hub.files("user/encoder")["README.md"]


def test_a_card_by_trainer_counts_as_generated(directory):
    (directory / "README.md").write_text(TrainingSummary("encoder", license="mit", tags=["x"]).to_model_card())
    assert "masked language modelling" in plan_publication(directory, "user/encoder").texts["README.md"]


def test_a_card_that_is_not_utf8_is_refused(directory):
    (directory / "README.md").write_bytes("# Modèle".encode("latin-1"))
    with pytest.raises(ValueError, match=r"README\.md is not UTF-8 .*: save it as UTF-8, or use --new-card\.$"):
        plan_publication(directory, "user/encoder")
    assert not plan_publication(directory, "user/encoder", new_card=True).errors


def test_an_encoder_without_pooler_is_published(tmp_path, unloaded):
    model = BERT.modeling.HfeBertModel(make_config(BERT), add_pooling_layer=False)
    card = plan_publication(save_checkpoint(model, BERT, tmp_path / "model"), "user/encoder").texts["README.md"]
    assert 'AutoModel.from_pretrained("user/encoder", add_pooling_layer=False, trust_remote_code=True)' in card
    assert "The weights have no pooler: without" in card


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    publish_command.add_arguments(parser)
    return publish_command.run(parser.parse_args(arguments))


def test_a_dry_run_lists_and_writes_nothing(hub, directory, capsys):
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert run(str(directory), "--repo", "user/encoder", "--license", "cc-by-4.0", "--dry-run") == 0
    printed = capsys.readouterr().out
    size = (directory / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in printed and "nothing was written or pushed" in printed
    assert "not published: .env, checkpoint-3/, notes.txt" in printed
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert hub.requests == []


def test_the_command_tells_what_is_missing_and_fails(directory, capsys):
    (directory / "training_record.json").unlink()
    assert run(str(directory), "--repo", "user/encoder", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert 'warning: the card says "not recorded" of objectives, corpus' in printed
    assert "warning: no licence is stated" in printed
    (directory / "modeling_bert.py").unlink()
    assert run(str(directory), "--repo", "user/encoder", "--dry-run") == 2
    captured = capsys.readouterr()
    assert "error: modeling_bert.py" in captured.out and "not published: 1 error" in captured.err


def test_the_command_publishes(hub, api, directory, capsys, monkeypatch):
    monkeypatch.setattr(publishing, "HfApi", lambda: api)
    huggingface_hub.utils.enable_progress_bars()
    assert run(str(directory), "--repo", "user/encoder", "--revision", "main", "--message", "By command") == 0
    printed = capsys.readouterr()
    assert f"published: {hub.endpoint}/user/encoder/commit/" in printed.out
    assert "model.safetensors: 100%" in printed.err  # the upload's bar, which may take minutes
    assert TrainingRecord.load(directory) == RECORD
    hub.fail_next("/commit/")
    (directory / "LICENSE").write_text("MIT")
    assert run(str(directory), "--repo", "user/encoder") == 1
    error = capsys.readouterr().err
    assert "hf-encoders publish: " in error and "made to fail" in error
    assert "A push is one commit: user/encoder has all of it or nothing." in error
