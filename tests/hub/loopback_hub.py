"""A Hugging Face Hub for tests: model repositories in memory, behind HTTP on the loopback interface.

It serves the calls that huggingface_hub 2.4 makes for `push_to_hub`, `upload_folder`, `Trainer(push_to_hub=True)`,
`from_pretrained`, `pipeline`, `list_repo_files`, `snapshot_download` and `ModelCard.load`. Every commit is kept, so
a commit hash resolves to its own tree for as long as the hub lives. `huggingface_hub` reads its settings when it is
imported, so clients are other processes, started with `LoopbackHub.environment`:

    with LoopbackHub() as hub:
        subprocess.run([sys.executable, "push.py"], env=hub.environment(tmp_path / "home"), check=True)
        assert "config.json" in hub.files("user/name")

Differs from the real Hub in: nobody is refused (any token will do, private repositories are served to all); every
file is stored as a regular file, never through LFS or xet; model cards are not checked.
Leaves out: datasets and spaces, pull requests, tags, discussions, the inferred `pipeline_tag` (so `pipeline` needs
its task named). What is left out is answered with an error, never with success.
"""

import base64
import hashlib
import json
import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit


# Settings of the parent that would lead a child away from this hub, or to a cache outside its HF_HOME.
_OFFLINE_SETTINGS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_CACHE_SETTINGS = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_MODULES_CACHE")


class HubError(ValueError):
    """A request that the hub refuses."""

    def __init__(self, status: int, message: str, code: str = "", sha: str = "") -> None:
        """Refuse with an HTTP status and a message that the client prints.

        `code` is the `X-Error-Code` by which huggingface_hub picks its exception: `RepoNotFound`, `RevisionNotFound`
        or `EntryNotFound`. `sha` is the commit looked into, so that the client remembers that a file is not there.
        """
        super().__init__(message)
        self.status = status
        headers = {"X-Error-Code": code, "X-Repo-Commit": sha}
        self.headers = {name: value for name, value in headers.items() if value}


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class _Commit(NamedTuple):
    sha: str
    files: dict[str, bytes]


class _Repository:
    """Commits of one model repository, by hash, and the branches that point at them."""

    def __init__(self, repo_id: str, private: bool) -> None:
        self.repo_id = repo_id
        self.private = private
        self.commits: dict[str, _Commit] = {}
        self.branches: dict[str, str] = {}
        # The real Hub begins a repository with a commit of this file, so `main` exists before the first push.
        self.add("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})

    def add(self, branch: str, summary: str, files: dict[str, bytes]) -> str:
        """Append a commit whose whole tree is `files` to `branch`; returns its hash."""
        parent = self.branches.get(branch)
        tree = sorted((path, blob_oid(content)) for path, content in files.items())
        sha = hashlib.sha1(json.dumps([self.repo_id, parent, summary, tree]).encode()).hexdigest()
        self.commits[sha] = _Commit(sha, files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> _Commit:
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


class LoopbackHub:
    """A Hub server on 127.0.0.1, on a port the system chooses; use it as a context manager.

    Args:
        owner (`str`, *optional*, defaults to `"user"`): Account that owns repositories created without a namespace.

    Attributes:
        fail_next_commit (`bool`): Set to True to have the next commit answered with status 500 and changing nothing;
            the hub sets it back to False when it does so.
        requests (`list[str]`): `"METHOD /path status"` of every request answered so far.
    """

    def __init__(self, owner: str = "user") -> None:
        """Start without repositories; the port is bound on entering the context."""
        self.owner = owner
        self.fail_next_commit = False
        self.requests: list[str] = []
        self._repositories: dict[str, _Repository] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "LoopbackHub":
        """Bind the port and serve in a background thread."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop serving and free the port; the repositories stay readable through `files`."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """URL of the running server, without a trailing slash."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """Return `os.environ` changed so that a child process uses this hub and caches only under `home`."""
        foreign = _OFFLINE_SETTINGS + _CACHE_SETTINGS
        inherited = {name: value for name, value in os.environ.items() if name not in foreign}
        no_proxy = ",".join(filter(None, (os.environ.get("no_proxy", os.environ.get("NO_PROXY")), "127.0.0.1")))
        return inherited | {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_loopback",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return path -> content at a branch or commit hash; `HubError`, a `ValueError`, if there is none."""
        with self._lock:
            return dict(self._repository(repo_id).resolve(revision).files)

    def sha(self, repo_id: str, revision: str = "main") -> str:
        """Return the 40-digit hash of the commit that a branch points at; `HubError` if there is none."""
        with self._lock:
            return self._repository(repo_id).resolve(revision).sha

    def commits(self, repo_id: str) -> list[str]:
        """Return the hashes of all commits to a repository, oldest first, whatever branch they went to."""
        with self._lock:
            return list(self._repository(repo_id).commits)

    def answer(self, method: str, target: str, body: bytes) -> _Answer:
        """Answer one HTTP request; `target` is the quoted path with its query."""
        url = urlsplit(target)
        # Split before unquoting: a branch name or a folder may hold a quoted slash.
        segments = [unquote(segment) for segment in url.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        with self._lock:
            try:
                answer = self._route(method, segments, query, body)
            except HubError as error:
                answer = _json({"error": str(error)}, error.status, error.headers)
            self.requests.append(f"{method} {url.path} {answer.status}")
        return answer

    def _route(self, method: str, segments: list[str], query: dict[str, str], body: bytes) -> _Answer:
        match method, segments:
            case "GET", ["api", "whoami-v2"]:
                return _json({"type": "user", "name": self.owner, "fullname": self.owner, "orgs": []})
            case "POST", ["api", "validate-yaml"]:
                return _json({"errors": [], "warnings": []})
            case "POST", ["api", "repos", "create"]:
                return self._create(_parse(body))
            case "GET", ["api", "models", owner, name]:
                return _info(self._repository(f"{owner}/{name}"), "main")
            case "GET", ["api", "models", owner, name, "revision", revision]:
                return _info(self._repository(f"{owner}/{name}"), revision)
            case "GET", ["api", "models", owner, name, "tree", revision, *path]:
                commit = self._repository(f"{owner}/{name}").resolve(revision)
                return _tree(commit, "/".join(path), recursive=query.get("recursive", "").lower() == "true")
            case "GET" | "HEAD", [owner, name, "resolve", revision, *path]:
                return _file(self._repository(f"{owner}/{name}").resolve(revision), "/".join(path))
            case "POST", ["api", "models", owner, name, "branch", branch]:
                return _branch(self._repository(f"{owner}/{name}"), branch, _parse(body))
            case "POST", ["api", "models", owner, name, "preupload", revision]:
                return _preupload(self._repository(f"{owner}/{name}").resolve(revision), _parse(body))
            case "POST", ["api", "models", owner, name, "commit", branch]:
                return self._commit(self._repository(f"{owner}/{name}"), branch, query, body)
            case _, ["api", "models", name] | ["api", "models", name, "revision", _] | [name, "resolve", *_]:
                self._repository(name)
        raise HubError(404, f"this test hub has no {method} /{'/'.join(segments)}; add it to LoopbackHub._route")

    def _repository(self, repo_id: str) -> _Repository:
        if repo_id not in self._repositories:
            known = ", ".join(self._repositories) or "none yet"
            raise HubError(404, f"repo_id {repo_id!r} does not exist; repositories: {known}", code="RepoNotFound")
        return self._repositories[repo_id]

    def _create(self, request: dict[str, Any]) -> _Answer:
        if request.get("type", "model") != "model":
            raise HubError(400, f"type {request['type']!r} is not served by this test hub; create a model repository")
        repo_id = f"{request.get('organization') or self.owner}/{request['name']}"
        # An existing repository is a conflict, and yet the client reads the url out of that answer.
        if repo_id in self._repositories:
            return _json({"error": f"{repo_id} already exists", "url": f"{self.endpoint}/{repo_id}"}, 409)
        private = request.get("visibility") == "private" or request.get("private") is True
        self._repositories[repo_id] = _Repository(repo_id, private)
        return _json({"url": f"{self.endpoint}/{repo_id}", "name": repo_id, "private": private})

    def _commit(self, repository: _Repository, branch: str, query: dict[str, str], body: bytes) -> _Answer:
        if self.fail_next_commit:
            self.fail_next_commit = False
            raise HubError(500, "this commit was made to fail by fail_next_commit")
        if query.get("create_pr"):
            raise HubError(400, "create_pr is not served by this test hub; commit to a branch")
        head = repository.resolve(branch)
        if branch not in repository.branches:
            raise HubError(400, f"revision {branch!r} is a commit, and commits only go on top of a branch; name one")
        header, *operations = [_parse(line) for line in body.splitlines() if line]
        if header["value"].get("parentCommit", head.sha) != head.sha:
            raise HubError(412, f"parentCommit is not the head of {branch!r}, {head.sha}; fetch it and try again")
        # Nothing is stored before every operation has been applied, so a commit is whole or absent.
        files = dict(head.files)
        for operation in operations:
            _apply(operation["key"], operation["value"], files)
        sha = repository.add(branch, header["value"]["summary"], files)
        url = f"{self.endpoint}/{repository.repo_id}/commit/{sha}"
        return _json({"success": True, "commitOid": sha, "commitUrl": url})


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, passes it to the hub and writes the answer."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; with Nagle's algorithm each answer would wait for a delayed acknowledgement.
    disable_nagle_algorithm = True

    def __init__(self, hub: LoopbackHub, *connection: Any) -> None:
        self.hub = hub
        super().__init__(*connection)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.hub.answer(self.command, self.path, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the hub keeps `requests`."""


def blob_oid(content: bytes) -> str:
    """Return the git object id of a file, by which clients tell which files a push would leave unchanged."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _json(payload: object, status: int = 200, headers: dict[str, str] | None = None) -> _Answer:
    return _Answer(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(payload).encode())


def _parse(body: bytes) -> dict[str, Any]:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise HubError(400, f"body is not JSON ({error}); send one JSON object") from error


def _info(repository: _Repository, revision: str) -> _Answer:
    commit = repository.resolve(revision)
    siblings = [{"rfilename": path} for path in sorted(commit.files)]
    info = {"id": repository.repo_id, "modelId": repository.repo_id, "sha": commit.sha, "tags": []}
    return _json({**info, "private": repository.private, "siblings": siblings})


def _tree(commit: _Commit, folder: str, recursive: bool) -> _Answer:
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
    return _json(entries)


def _file(commit: _Commit, path: str) -> _Answer:
    if path not in commit.files:
        raise HubError(404, f"{path} does not exist at {commit.sha}", code="EntryNotFound", sha=commit.sha)
    content = commit.files[path]
    headers = {"Content-Type": "application/octet-stream", "ETag": f'"{blob_oid(content)}"'}
    return _Answer(200, {**headers, "X-Repo-Commit": commit.sha}, content)


def _branch(repository: _Repository, branch: str, request: dict[str, Any]) -> _Answer:
    if branch in repository.branches:
        raise HubError(409, f"branch {branch!r} already exists; commit to it")
    repository.branches[branch] = repository.resolve(request.get("startingPoint", "main")).sha
    return _json({"success": True})


def _preupload(commit: _Commit, request: dict[str, Any]) -> _Answer:
    oids = {path: blob_oid(content) for path, content in commit.files.items()}
    # "regular" has the client send the content inside the commit, whatever the size: no LFS, no xet.
    mode = {"uploadMode": "regular", "shouldIgnore": False}
    paths = [file["path"] for file in request["files"]]
    return _json({"files": [{"path": path, "oid": oids.get(path), **mode} for path in paths]})


def _apply(key: str, value: dict[str, Any], files: dict[str, bytes]) -> None:
    path = value["path"].rstrip("/")
    if key == "file":
        files[path] = base64.b64decode(value["content"], validate=True)
    elif key in ("deletedFile", "deletedFolder"):
        doomed = [p for p in files if (p == path if key == "deletedFile" else p.startswith(f"{path}/"))]
        if not doomed:
            raise HubError(404, f"A file with this name doesn't exist: {path}", code="EntryNotFound")
        for name in doomed:
            del files[name]
    else:
        raise HubError(400, f"operation {key!r} is not served by this test hub; it stores regular files only")
