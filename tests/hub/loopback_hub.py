"""A Hugging Face Hub for tests: model repositories in memory, behind HTTP on the loopback interface.

It serves the calls that huggingface_hub 2.4 makes to push and to load models; every commit is kept. `huggingface_hub`
reads its settings when it is imported, so clients are other processes with `LoopbackHub.environment`, or `online()`:

    with LoopbackHub() as hub:
        subprocess.run([sys.executable, "push.py"], env=hub.environment(tmp_path / "home"), check=True)
        assert "config.json" in hub.files("user/name")

`hub.fail_next("/commit/")` makes a request fail, and the token `hf_without_rights` may only read. Nobody else is
refused; files are regular unless their suffix is in `lfs_suffixes`, never through xet; model cards are checked by
`metadata_problems` of `hf_encoders.publishing.publish`. What is left out is answered with an error.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest

from tests.hub.hub_storage import (
    Answer,
    HubError,
    Repository,
    apply_operation,
    branch_answer,
    card_answer,
    file_answer,
    info_answer,
    json_answer,
    lfs_answer,
    parse,
    preupload_answer,
    tree_answer,
)


# Settings of the parent that would lead a child away from this hub, or to a cache outside its HF_HOME.
_OFFLINE_SETTINGS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
READ_ONLY = "hf_without_rights"
OWNER = "user"  # of repositories created without a namespace
_CACHE_SETTINGS = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_MODULES_CACHE")


@contextmanager
def online() -> Iterator[None]:
    """Let clients of this process ask a loopback hub, whose endpoint they are given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield


class LoopbackHub:
    """A Hub server on 127.0.0.1, on a port the system chooses; use it as a context manager."""

    def __init__(self) -> None:
        """Start without repositories; the port is bound on entering the context."""
        self.lfs_suffixes: tuple[str, ...] = ()  # of files that clients must upload through LFS
        self.requests: list[str] = []  # "METHOD /path status"
        self._large_files: dict[str, bytes] = {}
        self._failures: list[tuple[str, int]] = []
        self._repositories: dict[str, Repository] = {}
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

    def fail_next(self, part: str, status: int = 500) -> None:
        """Answer the next request whose "METHOD /path" holds `part` with `status`, and do nothing."""
        self._failures.append((part, status))

    def answer(self, method: str, target: str, body: bytes, token: str = "") -> Answer:
        """Answer one HTTP request; `target` is the quoted path with its query."""
        url = urlsplit(target)
        # Split before unquoting: a branch name or a folder may hold a quoted slash.
        segments = [unquote(segment) for segment in url.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        with self._lock:
            failure = next((one for one in self._failures if one[0] in f"{method} {url.path}"), None)
            try:
                if failure:
                    self._failures.remove(failure)
                    raise HubError(failure[1], "made to fail by fail_next")
                if token == READ_ONLY and method not in ("GET", "HEAD"):
                    raise HubError(403, "this token may only read")
                answer = self._route(method, segments, query, body)
            except HubError as error:
                answer = json_answer({"error": str(error)}, error.status, error.headers)
            self.requests.append(f"{method} {url.path} {answer.status}")
        return answer

    def _route(self, method: str, segments: list[str], query: dict[str, str], body: bytes) -> Answer:
        match method, segments:
            case "GET", ["api", "whoami-v2"]:
                return json_answer({"type": "user", "name": OWNER, "fullname": OWNER, "orgs": []})
            case "POST", ["api", "validate-yaml"]:
                return card_answer(parse(body)["content"])
            case "POST", ["api", "repos", "create"]:
                return self._create(parse(body))
            case "GET", ["api", "models", owner, name]:
                return info_answer(self._repository(f"{owner}/{name}"), "main")
            case "GET", ["api", "models", owner, name, "revision", revision]:
                return info_answer(self._repository(f"{owner}/{name}"), revision)
            case "GET", ["api", "models", owner, name, "tree", revision, *path]:
                commit = self._repository(f"{owner}/{name}").resolve(revision)
                return tree_answer(commit, "/".join(path), recursive=query.get("recursive", "").lower() == "true")
            case "GET" | "HEAD", [owner, name, "resolve", revision, *path]:
                return file_answer(self._repository(f"{owner}/{name}").resolve(revision), "/".join(path))
            case "POST", ["api", "models", owner, name, "branch", branch]:
                return branch_answer(self._repository(f"{owner}/{name}"), branch, parse(body))
            case "POST", ["api", "models", owner, name, "preupload", revision]:
                commit = self._repository(f"{owner}/{name}").resolve(revision)
                return preupload_answer(commit, parse(body), self.lfs_suffixes)
            case "POST", [owner, repository, "info", "lfs", "objects", "batch"]:
                self._repository(f"{owner}/{repository.removesuffix('.git')}")
                return lfs_answer(parse(body), self.endpoint)
            case "PUT", ["lfs", oid]:
                self._large_files[oid] = body
                return json_answer({})
            case "POST", ["api", "models", owner, name, "commit", branch]:
                return self._commit(self._repository(f"{owner}/{name}"), branch, query, body)
            case _, ["api", "models", name] | ["api", "models", name, "revision", _] | [name, "resolve", *_]:
                self._repository(name)
        raise HubError(404, f"this test hub has no {method} /{'/'.join(segments)}; add it to LoopbackHub._route")

    def _repository(self, repo_id: str) -> Repository:
        if repo_id not in self._repositories:
            known = ", ".join(self._repositories) or "none yet"
            raise HubError(404, f"repo_id {repo_id!r} does not exist; repositories: {known}", code="RepoNotFound")
        return self._repositories[repo_id]

    def _create(self, request: dict[str, Any]) -> Answer:
        if request.get("type", "model") != "model":
            raise HubError(400, f"type {request['type']!r} is not served by this test hub; create a model repository")
        repo_id = f"{request.get('organization') or OWNER}/{request['name']}"
        # An existing repository is a conflict, and yet the client reads the url out of that answer.
        if repo_id in self._repositories:
            return json_answer({"error": f"{repo_id} already exists", "url": f"{self.endpoint}/{repo_id}"}, 409)
        private = request.get("visibility") == "private" or request.get("private") is True
        self._repositories[repo_id] = Repository(repo_id, private)
        return json_answer({"url": f"{self.endpoint}/{repo_id}", "name": repo_id, "private": private})

    def _commit(self, repository: Repository, branch: str, query: dict[str, str], body: bytes) -> Answer:
        if query.get("create_pr"):
            raise HubError(400, "create_pr is not served by this test hub; commit to a branch")
        head = repository.resolve(branch)
        if branch not in repository.branches:
            raise HubError(400, f"revision {branch!r} is a commit, and commits only go on top of a branch; name one")
        header, *operations = [parse(line) for line in body.splitlines() if line]
        if header["value"].get("parentCommit", head.sha) != head.sha:
            raise HubError(412, f"parentCommit is not the head of {branch!r}, {head.sha}; fetch it and try again")
        # Nothing is stored before every operation has been applied, so a commit is whole or absent.
        files = dict(head.files)
        for operation in operations:
            apply_operation(operation["key"], operation["value"], files, self._large_files)
        sha = repository.add(branch, header["value"]["summary"], files)
        url = f"{self.endpoint}/{repository.repo_id}/commit/{sha}"
        return json_answer({"success": True, "commitOid": sha, "commitUrl": url})


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
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        answer = self.hub.answer(self.command, self.path, body, token)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the hub keeps `requests`."""
