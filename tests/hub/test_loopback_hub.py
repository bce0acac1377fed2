"""The loopback hub answers the real client as the Hub does.

That models, tokenizers and code come back from it as they were pushed, at any revision, is in
`test_remote_code_hub.py` and `test_publish.py`.
"""

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

from tests.hub.loopback_hub import HubError, LoopbackHub


REPO = "user/name"


@pytest.fixture
def hub():
    with LoopbackHub() as server:
        yield server


@pytest.fixture
def api(hub) -> HfApi:
    api = HfApi(endpoint=hub.endpoint, token="hf_loopback")
    api.create_repo(REPO)
    return api


def commit(api: HfApi, *operations, **options) -> str:
    return api.create_commit(REPO, list(operations), commit_message="upload", **options).oid


def test_a_failed_commit_changes_nothing(hub, api):
    """Status 500 leaves files and head as they were; the same commit then goes through."""
    commit(api, CommitOperationAdd("a.txt", b"old"))
    files, sha = hub.files(REPO), hub.sha(REPO)
    contents = {"a.txt": b"new", "b.txt": b"b" * 2_000_000}
    hub.fail_next_commit = True
    with pytest.raises(HfHubHTTPError) as error:
        commit(api, *(CommitOperationAdd(*item) for item in contents.items()))
    assert error.value.response.status_code == 500 and not hub.fail_next_commit
    assert (hub.files(REPO), hub.sha(REPO)) == (files, sha)
    assert commit(api, *(CommitOperationAdd(*item) for item in contents.items())) == hub.sha(REPO)
    assert hub.files(REPO) == files | contents and hub.files(REPO, sha)["a.txt"] == b"old"


def test_a_commit_with_one_bad_operation_changes_nothing(hub, api):
    with pytest.raises(EntryNotFoundError):
        commit(api, CommitOperationAdd("a.txt", b"a"), CommitOperationDelete("absent.txt"))
    assert list(hub.files(REPO)) == [".gitattributes"]


def test_files_and_folders_are_deleted(hub, api):
    """Deleting `folder` leaves `folder2` alone."""
    paths = ["a.txt", "folder/b.txt", "folder/deep/c.txt", "folder2/d.txt"]
    commit(api, *(CommitOperationAdd(path, path.encode()) for path in paths))
    assert sorted(entry.path for entry in api.list_repo_tree(REPO, "folder")) == ["folder/b.txt", "folder/deep"]
    api.delete_file("a.txt", REPO)
    api.delete_folder("folder", REPO)
    assert sorted(api.list_repo_files(REPO)) == [".gitattributes", "folder2/d.txt"] == sorted(hub.files(REPO))


def test_unchanged_files_and_stale_parents_make_no_commit(hub, api):
    """Clients skip what the hub already holds, and `parent_commit` guards against a lost update."""
    start = api.model_info(REPO).sha
    assert commit(api, CommitOperationAdd("a.txt", b"a")) == commit(api, CommitOperationAdd("a.txt", b"a"))
    assert hub.commits(REPO) == [start, hub.sha(REPO)]
    with pytest.raises(HfHubHTTPError) as error:
        commit(api, CommitOperationAdd("a.txt", b"b"), parent_commit=start)
    assert error.value.response.status_code == 412 and hub.files(REPO)["a.txt"] == b"a"


def test_branches_hold_their_own_files(hub, api, tmp_path):
    """Branch and file names are quoted in URLs."""
    for _ in range(2):
        api.create_branch(REPO, branch="release/1", exist_ok=True)
    commit(api, CommitOperationAdd("a b/é.txt", b"1"), revision="release/1")
    path = api.hf_hub_download(REPO, "a b/é.txt", revision="release/1", cache_dir=tmp_path)
    assert Path(path).read_bytes() == b"1" == hub.files(REPO, "release/1")["a b/é.txt"]
    assert "a b/é.txt" not in hub.files(REPO)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda api, **cache: api.hf_hub_download("user/absent", "config.json", **cache), "RepositoryNotFoundError"),
        (lambda api, **cache: api.hf_hub_download("absent", "config.json", **cache), "RepositoryNotFoundError"),
        (
            lambda api, **cache: api.hf_hub_download(REPO, "config.json", revision="absent", **cache),
            "RevisionNotFoundError",
        ),
        (lambda api, **cache: api.hf_hub_download(REPO, "config.json", **cache), "RemoteEntryNotFoundError"),
        (lambda api, **cache: api.create_repo(REPO), "HfHubHTTPError"),
        (lambda api, **cache: api.create_repo("user/data", repo_type="dataset"), "BadRequestError"),
        (lambda api, **cache: commit(api, CommitOperationAdd("a.txt", b"a"), create_pr=True), "BadRequestError"),
        (lambda api, **cache: api.create_tag(REPO, tag="v1"), "HfHubHTTPError"),
    ],
)
def test_what_is_missing_or_not_supported_raises_the_clients_own_errors(hub, api, tmp_path, call, error):
    with pytest.raises(HfHubHTTPError) as raised:
        call(api, cache_dir=tmp_path)
    assert type(raised.value).__name__ == error
    assert list(hub.files(REPO)) == [".gitattributes"]


def test_what_a_test_asks_for_and_is_not_there(hub, api):
    with pytest.raises(HubError, match="'user/absent' does not exist"):
        hub.files("user/absent")
    with pytest.raises(HubError, match="revision 'absent' does not exist in user/name"):
        hub.files(REPO, "absent")


def test_the_environment_leads_only_to_this_hub(hub, tmp_path, monkeypatch):
    """Offline mode and caches of the parent would otherwise reach the child."""
    foreign = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_MODULES_CACHE")
    for name in foreign:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("UNRELATED", "kept")
    found = hub.environment(tmp_path)
    assert found["UNRELATED"] == "kept" and not found.keys() & set(foreign)
    assert found["HF_ENDPOINT"] == hub.endpoint and found["HF_HOME"] == str(tmp_path)
    assert found["no_proxy"].endswith("127.0.0.1") and found["NO_PROXY"] == found["no_proxy"]
