"""Publishing runs no code but the package's own, gives it no tokens, and follows no name out of the directory."""

import json
import os
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_encoders.publishing.export import export_checkpoint
from hf_encoders.publishing.files import foreign_code, save_tokenizer
from hf_encoders.publishing.publish import check_files, check_loading, plan_publication
from hf_encoders.publishing.verification import environment_without_secrets
from hf_encoders.tokenizer_loading import load_tokenizer
from tests.hub.tiny_checkpoints import BERT
from tests.publishing.findings import edit_config, errors
from tests.publishing.saved import save


MLM = "AutoModelForMaskedLM"
# What people have in their environment.
SECRET_VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID",
    "AWS_SESSION", "CLIENT_SECRET", "PGPASSWORD", "DATABASE_URL", "SSH_AUTH_SOCK", "MY_PAT", "PYTHON_KEYRING_PASSWORD",
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(BERT, MLM, tmp_path_factory.mktemp("good") / "model")


@pytest.fixture
def directory(good: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def run_on_import(path: Path, code: str) -> None:
    """Put a line into a module that is run when it is imported."""
    path.write_text(f"{code}\n{path.read_text() if path.exists() else ''}")


@pytest.mark.parametrize("name", ["modeling_bert.py", "encoder_kernels.py", "question_answering_pipeline.py"])
def test_code_that_is_not_the_package_s_own_is_not_run(directory, name):
    """Publishing runs `check_directory`, which runs `check_loading`."""
    trace = directory.parent / "trace"
    run_on_import(directory / name, f"open({str(trace)!r}, 'w')")
    if name == "question_answering_pipeline.py":
        edit_config(directory, custom_pipelines={"x": {"impl": "question_answering_pipeline.X", "pt": [MLM]}})
    (text,) = plan_publication(directory, "me/encoder").errors
    assert name in text and "was not run" in text and "--trust-remote-code" in text and not trace.exists()


def test_code_of_another_repository_is_not_run(directory):
    edit_config(directory, custom_pipelines={"x": {"impl": "other/repo--pipeline.X", "pt": [MLM]}})
    assert foreign_code(directory) == ["other/repo--pipeline.X"]
    edit_config(directory, auto_map={"AutoModelForMaskedLM": "other/repo--modeling.Model"})
    assert foreign_code(directory) == ["other/repo--modeling.Model", "other/repo--pipeline.X"]


CODE_OF_TOKENIZERS = [["tokenization_mine.Mine", None], [None, "other/repo--tokenization.Mine"], "other/repo--t.Mine"]


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("code", CODE_OF_TOKENIZERS)
def test_code_of_a_tokenizer_is_refused(directory, file, code):
    """Also where it is trusted: it is not published."""
    path = directory / file
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "auto_map": {**fields.get("auto_map", {}), "AutoTokenizer": code}}))
    expected = f"auto_map names code of a tokenizer, which needs none, in {file} ({code}): remove it there."
    assert plan_publication(directory, "me/encoder", trust_remote_code=True).errors == [expected]
    if file == "tokenizer_config.json":  # earlier versions of transformers wrote a list
        path.write_text(json.dumps({**fields, "auto_map": ["tokenization_mine.Mine", None]}))
        (text,) = errors(check_files(directory, directory))
        assert "auto_map names code of a tokenizer" in text


def test_code_that_a_tokenizer_names_is_not_carried_into_what_is_saved(directory, tmp_path):
    path = directory / "tokenizer_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoTokenizer": [None, "other/repo--t.Mine"]}})
    )
    export_checkpoint(directory, "safetensors-bf16", tmp_path / "exported")
    load_tokenizer(directory).save_pretrained(tmp_path / "loaded")  # as Trainer does
    stock = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    save_tokenizer(stock, tmp_path / "saved")
    stock.save_pretrained(tmp_path / "stock")
    for name, names_code in (("exported", False), ("loaded", False), ("saved", False), ("stock", True)):
        assert ("auto_map" in (tmp_path / name / "tokenizer_config.json").read_text()) == names_code


@pytest.mark.processes
def test_the_remedy_for_a_tokenizer_that_reads_otherwise_elsewhere_works(directory, forked_loads):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": False}))
    texts = errors(check_loading([directory]))
    assert texts and all("its tokenizer gives the ids [" in text for text in texts)
    assert all("save_tokenizer(hf_encoders.load_tokenizer(folder), folder)" in text for text in texts)
    save_tokenizer(load_tokenizer(directory), directory)
    assert errors(check_loading([directory])) == []


@pytest.mark.processes
def test_trusted_code_gets_no_token_and_nothing_of_the_current_directory(directory, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("a token")
    monkeypatch.setenv("HOME", str(home))
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "a token")
    monkeypatch.setenv("PYTHON_NOTE", "https://bob:password@host")
    folder = tmp_path / "current"
    folder.mkdir()
    for name in ("transformers", "torch", "safetensors", "kernels", "json"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    monkeypatch.chdir(folder)
    seen = tmp_path / "seen"
    run_on_import(
        directory / "modeling_bert.py",
        "import huggingface_hub, json, os, sys; "
        f"json.dump([dict(os.environ), huggingface_hub.get_token(), os.getcwd(), sys.path], open({str(seen)!r}, 'w'))",
    )
    assert errors(check_loading([Path("..") / directory.name], trust_remote_code=True)) == []
    environment, token, current, path = json.loads(seen.read_text())
    assert token is None and not set(SECRET_VARIABLES) & set(environment) and "PYTHON_NOTE" not in environment
    assert Path(current) != folder and str(folder) not in path
    assert environment["PATH"] == os.environ["PATH"] and environment["HOME"] != str(home)
    assert not (tmp_path / "trace").exists()


def test_the_environment_keeps_what_a_process_needs(monkeypatch):
    for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH"):
        monkeypatch.setenv(name, "kept")
    environment = environment_without_secrets("/home")
    assert [environment[name] for name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PYTHONPATH")] == ["kept"] * 3
    assert environment["HF_TOKEN_PATH"].startswith("/home")


@pytest.mark.parametrize("name", ["{outside}/secret.safetensors", "../secret.safetensors", "a/../../s.safetensors", 3])
def test_shards_lie_in_the_directory(directory, tmp_path, name):
    shutil.copy(directory / "model.safetensors", tmp_path / "secret.safetensors")
    (directory / "model.safetensors").unlink()
    name = name if isinstance(name, int) else name.format(outside=tmp_path)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    (text,) = errors(check_files(directory, directory))
    assert "model.safetensors.index.json" in text and str(name) in text
    with pytest.raises((ValueError, OSError), match="model.safetensors.index.json"):
        export_checkpoint(directory, "native", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_code_lies_in_the_directory(directory, tmp_path):
    (tmp_path / "secret.py").write_text("X = 1")
    auto_map = json.loads((directory / "config.json").read_text())["auto_map"]
    for reference in (f"{tmp_path}/secret.X", "../secret.X", "a.b.X", "secret", 3):
        for fields in (
            {"auto_map": {**auto_map, "AutoMine": reference}},
            {"auto_map": {**auto_map, "AutoMine": [None, reference]}},
            {"auto_map": auto_map, "custom_pipelines": {"x": {"impl": reference}}},
        ):
            edit_config(directory, **fields)
            (text,) = errors(check_files(directory, directory))
            assert "is not a module.Class of a file in" in text and repr(reference) in text


def test_links_out_of_the_directory_are_refused(directory, tmp_path):
    (tmp_path / "secret").write_text("{}")
    names = ["LICENSE", "README.md", "modeling_bert.py", "tokenizer.json", "training_record.json"]
    for name in names:
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(tmp_path / "secret")
    expected = f"{', '.join(names)}: links out of {directory}: put the files themselves there."
    assert errors(check_files(directory, directory)) == [expected]


def test_the_hub_s_cache_is_made_of_links(directory, tmp_path):
    snapshot, blobs = tmp_path / "models--me--x" / "snapshots" / "a1", tmp_path / "models--me--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in directory.iterdir():
        shutil.move(path, blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert list(check_files(snapshot, snapshot)) == []
