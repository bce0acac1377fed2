"""The loopback hub answers the real client as the Hub does, where the tests of pushes and loads depend on it."""

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tests.hub.loopback_hub import HubError


def test_each_revision_keeps_its_files(hub, api, tmp_path):
    api.create_repo("user/name")
    put = {"a b/é.txt": b"1", "model.safetensors": b"w" * 2_000_000}
    operations = [CommitOperationAdd(name, content) for name, content in put.items()]
    first = api.create_commit("user/name", operations, commit_message="first").oid
    api.create_branch("user/name", branch="release/1", exist_ok=True)
    api.upload_file(path_or_fileobj=b"2", path_in_repo="a b/é.txt", repo_id="user/name")
    assert api.model_info("user/name").sha == hub.sha("user/name") == hub.commits("user/name")[-1]
    for revision, content in ((first, "1"), ("release/1", "1"), ("main", "2")):
        path = api.hf_hub_download("user/name", "a b/é.txt", revision=revision, local_dir=tmp_path / revision)
        assert Path(path).read_text() == content
    assert hub.files("user/name")["model.safetensors"] == put["model.safetensors"]
    assert "PUT /lfs/" in " ".join(hub.requests)


def test_a_commit_is_whole_or_absent(hub, api):
    api.create_repo("user/name")
    before = hub.files("user/name")
    good, bad = CommitOperationAdd("a.txt", b"a"), CommitOperationDelete("absent.txt")
    with pytest.raises(EntryNotFoundError):
        api.create_commit("user/name", [good, bad], commit_message="half good")
    hub.fail_next("/commit/")
    with pytest.raises(HfHubHTTPError, match="made to fail"):
        api.create_commit("user/name", [CommitOperationAdd("a.txt", b"a")], commit_message="add")
    assert hub.files("user/name") == before


def test_unchanged_files_and_stale_parents_make_no_commit(hub, api):
    api.create_repo("user/name")
    start = api.model_info("user/name").sha

    def put(content: bytes, **options: str) -> str:
        return api.create_commit(
            "user/name", [CommitOperationAdd("a.txt", content)], commit_message="put", **options
        ).oid

    assert put(b"a") == put(b"a") == hub.sha("user/name")
    with pytest.raises(HfHubHTTPError, match="412"):
        put(b"b", parent_commit=start)


def test_files_and_folders_are_deleted(hub, api):
    api.create_repo("user/name")
    paths = ["a.txt", "folder/b.txt", "folder/deep/c.txt", "folder2/d.txt"]
    api.create_commit("user/name", [CommitOperationAdd(p, p.encode()) for p in paths], commit_message="add")
    assert sorted(api.list_repo_files("user/name")) == sorted([".gitattributes", *paths])
    api.delete_file("a.txt", "user/name")
    api.delete_folder("folder", "user/name")
    assert list(hub.files("user/name")) == [".gitattributes", "folder2/d.txt"]


def test_missing_and_unsupported_things_raise_the_errors_of_the_client(hub, api):
    api.create_repo("user/name", private=True)
    assert api.model_info("user/name").private
    for error, call in (
        (RepositoryNotFoundError, lambda: api.hf_hub_download("user/absent", "config.json")),
        (RevisionNotFoundError, lambda: api.hf_hub_download("user/name", "config.json", revision="absent")),
        (EntryNotFoundError, lambda: api.hf_hub_download("user/name", "config.json")),
        (HfHubHTTPError, lambda: api.create_repo("user/data", repo_type="dataset")),
        (HfHubHTTPError, lambda: api.create_tag("user/name", tag="v1")),
    ):
        with pytest.raises(error):
            call()
    with pytest.raises(HubError, match="'user/absent' does not exist"):
        hub.files("user/absent")
