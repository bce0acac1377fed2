"""The loopback hub takes what the real clients push and gives the same bytes to other processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.hub.loopback_hub import HubError, LoopbackHub


# Uneven sizes, so that swapped axes cannot hide; the vocabulary makes the weights file about 3 MB.
MODEL = dedent("""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    torch.manual_seed(11)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )
    model = BertForMaskedLM(BertConfig(
        vocab_size=30011, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=37,
        max_position_embeddings=19,
    )).eval()
    batch = tokenizer(["The cat sat on the [MASK]", "a mat"], padding=True, return_tensors="pt")
""")

PUSH = MODEL + dedent("""
    import json
    import sys
    from pathlib import Path
    from huggingface_hub import ModelCard, upload_folder
    from safetensors.torch import save_file

    folder = Path(sys.argv[1])
    first = model.push_to_hub("user/tiny").oid
    first_logits = model(**batch).logits
    with torch.no_grad():
        model.cls.predictions.bias.add_(torch.arange(30011) / 7)
    second = model.push_to_hub("user/tiny", private=True).oid
    save_file({"first": first_logits, "second": model(**batch).logits}, folder / "logits.safetensors")
    tokenizer.push_to_hub("user/tiny")
    model.config.push_to_hub("user/only-config")
    ModelCard("---\\nlicense: mit\\n---\\n# Tiny\\n\\nCats sit on mats.\\n").push_to_hub("user/tiny")

    sys.path.insert(0, str(folder))
    from modeling_scaled import ScaledConfig, ScaledModel
    ScaledConfig.register_for_auto_class()
    ScaledModel.register_for_auto_class("AutoModel")
    plain_code = ScaledModel(ScaledConfig(vocab_size=11, hidden_size=5)).push_to_hub("user/scaled").oid
    source = (folder / "modeling_scaled.py").read_text()
    (folder / "edited" / "notes").mkdir(parents=True)
    (folder / "edited" / "modeling_scaled.py").write_text(source.replace("SCALE = 1.0", "SCALE = 2.0"))
    (folder / "edited" / "notes" / "why.txt").write_text("twice as large")
    upload_folder(repo_id="user/scaled", folder_path=folder / "edited", commit_message="scale by two")
    print(json.dumps({"first": first, "second": second, "plain_code": plain_code}))
""")

REMOTE_CODE = """
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

SCALE = 1.0


class ScaledConfig(PreTrainedConfig):
    model_type = "scaled"
    vocab_size: int = 3
    hidden_size: int = 2


class ScaledModel(PreTrainedModel):
    config_class = ScaledConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def forward(self, input_ids):
        return self.embedding(input_ids) * SCALE
"""

LOAD = dedent("""
    import json
    import sys
    from pathlib import Path
    import torch
    from huggingface_hub import ModelCard, list_repo_files, list_repo_tree, model_info, snapshot_download, whoami
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

    folder, shas = Path(sys.argv[1]), json.loads(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained("user/tiny")
    batch = tokenizer(["The cat sat on the [MASK]", "a mat"], padding=True, return_tensors="pt")
    tensors = {}
    for key, revision in {"main": None, "first": shas["first"], "second": shas["second"]}.items():
        model = AutoModelForMaskedLM.from_pretrained("user/tiny", **({"revision": revision} if revision else {}))
        tensors[key] = model.eval()(**batch).logits
    ids = torch.tensor([[1, 7, 2]])
    for key, revision in {"code_main": "main", "code_first": shas["plain_code"]}.items():
        model = AutoModel.from_pretrained("user/scaled", trust_remote_code=True, revision=revision)
        tensors[key] = model(ids)
    save_file(tensors, folder / "loaded.safetensors")
    card = ModelCard.load("user/tiny")
    snapshot = Path(snapshot_download("user/scaled"))
    print(json.dumps({
        "config_class": type(AutoConfig.from_pretrained("user/only-config")).__name__,
        "mask_token": tokenizer.mask_token,
        "fill_mask": pipeline("fill-mask", "user/tiny")("The cat sat on the [MASK]")[0]["token"],
        "files": list_repo_files("user/tiny"),
        "first_files": list_repo_files("user/tiny", revision=shas["first"]),
        "tree": [entry.path for entry in list_repo_tree("user/scaled", recursive=True)],
        "top": [entry.path for entry in list_repo_tree("user/scaled")],
        "notes": [entry.path for entry in list_repo_tree("user/scaled", "notes")],
        "snapshot": {str(p.relative_to(snapshot)): p.read_bytes().hex() for p in snapshot.rglob("*") if p.is_file()},
        "card": [card.data.license, card.text],
        "sha": model_info("user/tiny").sha,
        "whoami": whoami()["name"],
    }))
""")

TRAIN = MODEL + dedent("""
    import json
    import sys
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        sys.argv[1], push_to_hub=True, hub_model_id="user/trained", hub_strategy="every_save", hub_always_push=True,
        hub_private_repo=True, max_steps=4, save_steps=2, per_device_train_batch_size=2, use_cpu=True,
        report_to="none", disable_tqdm=True,
    )
    row = {"input_ids": [2, 5, 4, 7, 3], "labels": [-100, -100, 6, -100, -100]}
    trainer = Trainer(model, arguments, train_dataset=[row] * 8, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    print(json.dumps({}))
""")


def run_client(hub: LoopbackHub, home: Path, script: str, *arguments: str) -> dict[str, Any]:
    """Run a Python script against the hub in a process of its own; returns the JSON of its last printed line."""
    environment = hub.environment(home) | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def call_api(hub: LoopbackHub, home: Path, body: str) -> dict[str, Any]:
    """Run `body`, which fills the dictionary `found` by way of `api`, an `HfApi`, in a process of its own."""
    imports = "import json\nfrom huggingface_hub import *\nfrom huggingface_hub.errors import *"
    script = f"{imports}\napi, found = HfApi(), {{}}\n{dedent(body)}\nprint(json.dumps(found))"
    return run_client(hub, home, script)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    """Serve an empty hub."""
    with LoopbackHub() as server:
        yield server


class RoundTrip(NamedTuple):
    """What one process pushed and another, with an empty cache, loaded."""

    hub: LoopbackHub
    shas: dict[str, str]
    pushed: dict[str, torch.Tensor]
    loaded: dict[str, torch.Tensor]
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoundTrip]:
    """Push a model, a tokenizer, a card and remote code in one process; load all of it in a second one."""
    folder = tmp_path_factory.mktemp("round_trip")
    (folder / "modeling_scaled.py").write_text(REMOTE_CODE)
    with LoopbackHub() as server:
        shas = run_client(server, folder / "home_of_pusher", PUSH, str(folder))
        seen = run_client(server, folder / "home_of_loader", LOAD, str(folder), json.dumps(shas))
        pushed, loaded = load_file(folder / "logits.safetensors"), load_file(folder / "loaded.safetensors")
        yield RoundTrip(server, shas, pushed, loaded, seen)


def test_pushed_model_and_tokenizer_load_with_equal_logits(round_trip: RoundTrip) -> None:
    """Bit for bit: the two processes share nothing but the hub, and it moves megabytes."""
    assert round_trip.seen["mask_token"] == "[MASK]"
    torch.testing.assert_close(round_trip.loaded["main"], round_trip.pushed["second"], rtol=0, atol=0)
    assert len(round_trip.hub.files("user/tiny")["model.safetensors"]) > 2_500_000


def test_old_revision_resolves_to_the_weights_of_that_commit(round_trip: RoundTrip) -> None:
    """A pinned `revision` is what cards tell readers to use, so later pushes must not move it."""
    assert round_trip.shas["first"] != round_trip.shas["second"]
    assert not torch.equal(round_trip.pushed["first"], round_trip.pushed["second"])
    torch.testing.assert_close(round_trip.loaded["first"], round_trip.pushed["first"], rtol=0, atol=0)
    torch.testing.assert_close(round_trip.loaded["second"], round_trip.pushed["second"], rtol=0, atol=0)


def test_remote_code_is_the_code_of_the_revision(round_trip: RoundTrip) -> None:
    """`trust_remote_code=True` runs the .py files of the commit asked for; the edit doubled the output."""
    assert round_trip.loaded["code_first"].abs().min() > 0
    torch.testing.assert_close(round_trip.loaded["code_main"], 2 * round_trip.loaded["code_first"], rtol=0, atol=0)


def test_pipeline_and_config_load_from_the_hub(round_trip: RoundTrip) -> None:
    """The entry points above `from_pretrained` need no endpoint of their own."""
    assert round_trip.seen["config_class"] == "BertConfig"
    # The second push added a bias that grows with the token id, by far the largest term of the logits.
    assert round_trip.seen["fill_mask"] == 30010


def test_files_are_listed_at_each_revision(round_trip: RoundTrip) -> None:
    """`list_repo_files` sees the tree of one commit, and `model_info` names that commit."""
    # transformers writes a model card of its own with the first push of a model.
    first = [".gitattributes", "README.md", "config.json", "model.safetensors"]
    assert sorted(round_trip.seen["first_files"]) == first
    assert sorted(round_trip.seen["files"]) == [*first, "tokenizer.json", "tokenizer_config.json"]
    assert round_trip.seen["sha"] == round_trip.hub.sha("user/tiny")
    assert round_trip.seen["whoami"] == "user"


def test_folders_are_listed_and_snapshots_hold_the_same_bytes(round_trip: RoundTrip) -> None:
    """Listings are recursive or not, and `snapshot_download` fetches exactly what is stored."""
    top = [".gitattributes", "README.md", "config.json", "model.safetensors", "modeling_scaled.py", "notes"]
    assert sorted(round_trip.seen["top"]) == top
    assert sorted(round_trip.seen["tree"]) == [*top, "notes/why.txt"]
    assert round_trip.seen["notes"] == ["notes/why.txt"]
    stored = {path: content.hex() for path, content in round_trip.hub.files("user/scaled").items()}
    assert round_trip.seen["snapshot"] == stored


def test_model_card_is_pushed_and_loaded(round_trip: RoundTrip) -> None:
    """The card pushed last replaces the one that transformers wrote."""
    assert round_trip.seen["card"] == ["mit", "# Tiny\n\nCats sit on mats.\n"]


def test_every_request_of_the_round_trip_is_served(round_trip: RoundTrip) -> None:
    """A route that the hub does not know would be answered 404 and could pass for a missing file."""
    # Clients ask for files that need not exist; what must not happen is a route that the hub does not know.
    known = ("/resolve/", "/tree/", "/api/repos/create", "/api/agent-harnesses")
    failed = [line for line in round_trip.hub.requests if not line.endswith(" 200")]
    assert [line for line in failed if not any(part in line for part in known)] == []


def test_trainer_pushes_every_save_and_the_final_model(hub: LoopbackHub, tmp_path: Path) -> None:
    """Pushes from the background thread of `Trainer` arrive whole and in order."""
    output = tmp_path / "trained"
    run_client(hub, tmp_path / "home", TRAIN, str(output))
    files = hub.files("user/trained")
    assert {"config.json", "tokenizer.json", "training_args.bin", "README.md"} <= files.keys()
    assert files["model.safetensors"] == (output / "model.safetensors").read_bytes()
    # Steps 2 and 4 while training, and the push after it.
    assert hub.requests.count("POST /api/models/user/trained/commit/main 200") == 3


def test_commits_are_listed_from_the_first_to_the_head(round_trip: RoundTrip) -> None:
    """The empty repository, then model and tokenizer of either push, in the order of their hashes' making."""
    shas = round_trip.hub.commits("user/tiny")
    assert list(round_trip.hub.files("user/tiny", shas[0])) == [".gitattributes"]
    assert shas.index(round_trip.shas["first"]) < shas.index(round_trip.shas["second"])
    assert shas[-1] == round_trip.hub.sha("user/tiny")


def test_failed_commit_changes_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    """Status 500 leaves files and head as they were; the same commit then goes through."""
    upload = """
        api.create_repo("user/name", exist_ok=True)
        operations = [CommitOperationAdd("a.txt", b"new"), CommitOperationAdd("b.txt", b"b" * 2_000_000)]
        try:
            found["oid"] = api.create_commit("user/name", operations, commit_message="upload").oid
        except HfHubHTTPError as error:
            found["status"] = error.response.status_code
    """
    home = tmp_path / "home"
    start = """
        api.create_repo("user/name")
        api.upload_file(path_or_fileobj=b"old", path_in_repo="a.txt", repo_id="user/name")
    """
    call_api(hub, home, start)
    files, sha = hub.files("user/name"), hub.sha("user/name")
    hub.fail_next_commit = True
    assert call_api(hub, home, upload) == {"status": 500}
    assert not hub.fail_next_commit
    assert (hub.files("user/name"), hub.sha("user/name")) == (files, sha)

    assert call_api(hub, home, upload) == {"oid": hub.sha("user/name")}
    assert hub.files("user/name") == files | {"a.txt": b"new", "b.txt": b"b" * 2_000_000}
    assert hub.files("user/name", sha)["a.txt"] == b"old"


def test_commit_with_one_bad_operation_changes_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    """The good operation before the bad one is not kept either."""
    body = """
        api.create_repo("user/name")
        try:
            api.create_commit("user/name", [CommitOperationAdd("a.txt", b"a"), CommitOperationDelete("absent.txt")],
                              commit_message="half good")
        except EntryNotFoundError as error:
            found["status"] = error.response.status_code
    """
    assert call_api(hub, tmp_path / "home", body) == {"status": 404}
    assert list(hub.files("user/name")) == [".gitattributes"]


def test_files_and_folders_are_deleted(hub: LoopbackHub, tmp_path: Path) -> None:
    """Deleting `folder` leaves `folder2` alone."""
    body = """
        api.create_repo("user/name")
        paths = ["a.txt", "folder/b.txt", "folder/deep/c.txt", "folder2/d.txt"]
        api.create_commit("user/name", [CommitOperationAdd(p, p.encode()) for p in paths], commit_message="add")
        api.delete_file("a.txt", "user/name")
        api.delete_folder("folder", "user/name")
    """
    call_api(hub, tmp_path / "home", body)
    assert list(hub.files("user/name")) == [".gitattributes", "folder2/d.txt"]


def test_unchanged_files_and_stale_parents_make_no_commit(hub: LoopbackHub, tmp_path: Path) -> None:
    """Clients skip what the hub already holds, and `parent_commit` guards against a lost update."""
    body = """
        api.create_repo("user/name")
        start = api.model_info("user/name").sha
        put = lambda content, **kw: api.create_commit(
            "user/name", [CommitOperationAdd("a.txt", content)], commit_message="put", **kw
        ).oid
        found["oids"] = [put(b"a"), put(b"a")]
        try:
            put(b"b", parent_commit=start)
        except HfHubHTTPError as error:
            found["status"] = error.response.status_code
    """
    assert call_api(hub, tmp_path / "home", body) == {"oids": [hub.sha("user/name")] * 2, "status": 412}
    assert hub.files("user/name")["a.txt"] == b"a"


def test_branches_hold_their_own_files(hub: LoopbackHub, tmp_path: Path) -> None:
    """Branch and file names travel quoted; `push_to_hub(revision=...)` creates the branch first."""
    body = """
        api.create_repo("user/name")
        api.create_branch("user/name", branch="release/1")
        api.create_branch("user/name", branch="release/1", exist_ok=True)
        api.upload_file(path_or_fileobj=b"1", path_in_repo="a b/é.txt", repo_id="user/name", revision="release/1")
        path = api.hf_hub_download("user/name", "a b/é.txt", revision="release/1")
        found["content"] = open(path).read()
    """
    assert call_api(hub, tmp_path / "home", body) == {"content": "1"}
    assert "a b/é.txt" in hub.files("user/name", "release/1")
    assert "a b/é.txt" not in hub.files("user/name")


def test_what_is_missing_raises_the_clients_own_errors(hub: LoopbackHub, tmp_path: Path) -> None:
    """The error codes select the client's exception; what the hub leaves out is refused, not ignored."""
    body = """
        api.create_repo("user/name", private=True)
        found["private"] = api.model_info("user/name").private
        found["url"] = str(api.create_repo("no-namespace").repo_id)
        calls = {
            "repo": lambda: api.hf_hub_download("user/absent", "config.json"),
            "stock": lambda: api.hf_hub_download("absent", "config.json"),
            "revision": lambda: api.hf_hub_download("user/name", "config.json", revision="absent"),
            "entry": lambda: api.hf_hub_download("user/name", "config.json"),
            "exists": lambda: api.create_repo("user/name"),
            "dataset": lambda: api.create_repo("user/data", repo_type="dataset"),
            "pull": lambda: api.upload_file(
                path_or_fileobj=b"a", path_in_repo="a.txt", repo_id="user/name", create_pr=True
            ),
            "tag": lambda: api.create_tag("user/name", tag="v1"),
        }
        for name, call in calls.items():
            try:
                call()
            except HfHubHTTPError as error:
                found[name] = type(error).__name__
    """
    assert call_api(hub, tmp_path / "home", body) == {
        "private": True,
        "url": "user/no-namespace",
        "repo": "RepositoryNotFoundError",
        "stock": "RepositoryNotFoundError",
        "revision": "RevisionNotFoundError",
        "entry": "RemoteEntryNotFoundError",
        "exists": "HfHubHTTPError",
        "dataset": "BadRequestError",
        "pull": "BadRequestError",
        "tag": "HfHubHTTPError",
    }
    assert list(hub.files("user/name")) == [".gitattributes"]
    with pytest.raises(HubError, match="'user/absent' does not exist"):
        hub.files("user/absent")
    with pytest.raises(HubError, match="revision 'absent' does not exist in user/name"):
        hub.files("user/name", "absent")


def test_environment_leads_only_to_this_hub(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline mode, caches and proxies of the parent would otherwise reach the child."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_MODULES_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("UNRELATED", "kept")
    assert hub.environment(tmp_path)["UNRELATED"] == "kept"
    body = """
        api.create_repo("user/name")
        found["path"] = api.hf_hub_download("user/name", ".gitattributes")
    """
    assert call_api(hub, tmp_path / "home", body)["path"].startswith(str(tmp_path / "home"))
    assert not (tmp_path / "elsewhere").exists()
