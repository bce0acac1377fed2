"""The storage of the loopback Hub, and its answers about one repository: what `LoopbackHub` serves over HTTP."""

import base64
import hashlib
import json
import re
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import yaml

from hf_encoders.publishing.publish import metadata_problems


class HubError(ValueError):
    """A request that the hub refuses."""

    def __init__(self, status: int, message: str, code: str = "", sha: str = "") -> None:
        """Refuse with an HTTP status, a message, the `X-Error-Code` of an exception, and the commit looked into."""
        super().__init__(message)
        self.status = status
        headers = {"X-Error-Code": code, "X-Repo-Commit": sha}
        self.headers = {name: value for name, value in headers.items() if value}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Commit(NamedTuple):
    sha: str
    files: dict[str, bytes]


class Repository:
    """Commits of one model repository, by hash, and the branches that point at them."""

    def __init__(self, repo_id: str, private: bool) -> None:
        self.repo_id = repo_id
        self.private = private
        self.commits: dict[str, Commit] = {}
        self.branches: dict[str, str] = {}
        # The real Hub begins a repository with a commit of this file, so `main` exists before the first push.
        self.add("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})

    def add(self, branch: str, summary: str, files: dict[str, bytes]) -> str:
        """Append a commit whose whole tree is `files` to `branch`; returns its hash."""
        parent = self.branches.get(branch)
        tree = sorted((path, blob_oid(content)) for path, content in files.items())
        sha = hashlib.sha1(json.dumps([self.repo_id, parent, summary, tree]).encode()).hexdigest()
        self.commits[sha] = Commit(sha, files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> Commit:
        """Return the commit that a branch name or a full commit hash stands for."""
        commit = self.commits.get(self.branches.get(revision, revision))
        if commit is None:
            known = ", ".join(self.branches)
            raise HubError(
                404,
                f"revision {revision!r} does not exist in {self.repo_id}; use a full commit hash or one of: {known}",
                code="RevisionNotFound",
            )
        return commit


def blob_oid(content: bytes) -> str:
    """Return the git object id of a file, by which clients tell which files a push would leave unchanged."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def json_answer(payload: object, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(payload).encode())


def parse(body: bytes) -> dict[str, Any]:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise HubError(400, f"body is not JSON ({error}); send one JSON object") from error


def info_answer(repository: Repository, revision: str) -> Answer:
    commit = repository.resolve(revision)
    siblings = [{"rfilename": path} for path in sorted(commit.files)]
    info = {"id": repository.repo_id, "modelId": repository.repo_id, "sha": commit.sha, "tags": []}
    return json_answer({**info, "private": repository.private, "siblings": siblings})


def tree_answer(commit: Commit, folder: str, recursive: bool) -> Answer:
    prefix = f"{folder}/" if folder else ""
    inside = {path: content for path, content in commit.files.items() if path.startswith(prefix)}
    folders = {str(parent) for path in inside for parent in PurePosixPath(path).parents[:-1]}
    entries = [
        {"type": "directory", "path": path, "size": 0, "oid": blob_oid(f"{commit.sha} {path}".encode())}
        for path in sorted(folders)
        if path.startswith(prefix)
    ]
    for path, content in sorted(inside.items()):
        entries.append({"type": "file", "path": path, "size": len(content), "oid": blob_oid(content)})
    if not recursive:
        entries = [entry for entry in entries if "/" not in entry["path"].removeprefix(prefix)]
    if folder and not entries:
        raise HubError(404, f"{folder} does not exist at {commit.sha}", code="EntryNotFound", sha=commit.sha)
    return json_answer(entries)


def file_answer(commit: Commit, path: str) -> Answer:
    if path not in commit.files:
        raise HubError(404, f"{path} does not exist at {commit.sha}", code="EntryNotFound", sha=commit.sha)
    content = commit.files[path]
    headers = {"Content-Type": "application/octet-stream", "ETag": f'"{blob_oid(content)}"'}
    return Answer(200, {**headers, "X-Repo-Commit": commit.sha}, content)


def branch_answer(repository: Repository, branch: str, request: dict[str, Any]) -> Answer:
    if branch in repository.branches:
        raise HubError(409, f"branch {branch!r} already exists; commit to it")
    repository.branches[branch] = repository.resolve(request.get("startingPoint", "main")).sha
    return json_answer({"success": True})


def preupload_answer(commit: Commit, request: dict[str, Any], lfs_suffixes: tuple[str, ...] = ()) -> Answer:
    # "regular" has the client send the content inside the commit, whatever the size: no LFS, no xet.
    oids = {path: blob_oid(content) for path, content in commit.files.items()}
    files = []
    for path in (file["path"] for file in request["files"]):
        is_lfs = path.endswith(lfs_suffixes)
        # The Hub knows a file in LFS by its pointer, which clients have no hash of.
        mode = {"uploadMode": "lfs", "oid": None} if is_lfs else {"uploadMode": "regular", "oid": oids.get(path)}
        files.append({"path": path, "shouldIgnore": False, **mode})
    return json_answer({"files": files})


def lfs_answer(request: dict[str, Any], endpoint: str) -> Answer:
    """Where to put large files."""
    objects = [
        {**wanted, "actions": {"upload": {"href": f"{endpoint}/lfs/{wanted['oid']}"}}} for wanted in request["objects"]
    ]
    return json_answer({"transfer": "basic", "objects": objects})


def card_answer(content: str) -> Answer:
    """What is wrong with a card's metadata."""
    block = re.match(r"---\n(.*?)\n---", content, re.DOTALL)
    metadata = yaml.safe_load(block.group(1)) if block else {}
    errors = [{"message": problem} for problem in metadata_problems(metadata or {})]
    return json_answer({"errors": errors, "warnings": []}, 400 if errors else 200)


def apply_operation(key: str, value: dict[str, Any], files: dict[str, bytes], large_files: dict[str, bytes]) -> None:
    path = value["path"].rstrip("/")
    if key == "file":
        files[path] = base64.b64decode(value["content"], validate=True)
    elif key == "lfsFile":
        if value["oid"] not in large_files:
            raise HubError(400, f"{path} was not uploaded before the commit; PUT it to /lfs/{value['oid']}")
        files[path] = large_files[value["oid"]]
    elif key == "deletedFile":
        if path not in files:
            raise HubError(404, f"A file with this name doesn't exist: {path}", code="EntryNotFound")
        del files[path]
    else:
        raise HubError(400, f"operation {key!r} is not served by this test hub; it stores files and deletes them")
