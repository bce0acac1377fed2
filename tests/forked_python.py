"""Runs a script as `python -c` does, in a process forked from one that has imported torch and nothing of Hugging Face.

To import torch and what transformers imports of it takes three of the five seconds before a script begins. What reads
its environment when it is imported (transformers, huggingface_hub), and this package, is imported by the script only.

    python_c("print(sys.argv[1])", ["word"], env={}, cwd=tmp_path).stdout    # "word\n"
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import NoReturn


PRELOADED = (
    "torch._dynamo", "torch._inductor.decomposition", "torch.distributed.checkpoint", "torch.distributed.fsdp",
    "torch.distributed.tensor", "torch.export", "safetensors.torch", "scipy.optimize",
)  # fmt: skip
# What must not be there before the script: it reads its environment at import, or is not to be found at all.
NOT_PRELOADED = ("accelerate", "datasets", "hf_encoders", "huggingface_hub", "peft", "tests", "transformers")


class Forked:
    """A running script; its output goes to files of `cwd`'s own, which are gone when it has ended."""

    def __init__(self, script: str, arguments: list[str], env: dict[str, str], cwd: str | Path):
        self.script = script
        self.folder = tempfile.TemporaryDirectory()
        said = [str(Path(self.folder.name, name)) for name in ("stdout", "stderr")]
        job = {"script": script, "arguments": arguments, "env": env, "cwd": str(cwd), "said": said}
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(_address())
        self.connection.sendall(json.dumps(job).encode() + b"\n")
        self.answers = self.connection.makefile(encoding="utf-8")
        self.pid = int(self.answers.readline())

    def wait(self, timeout: float | None) -> subprocess.CompletedProcess:
        """Wait for the end, for `timeout` seconds at most."""
        with self.folder as folder, self.connection, self.answers:
            self.connection.settimeout(timeout)
            try:
                status = int(self.answers.readline())
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise
            stdout, stderr = (Path(folder, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self.script, status, stdout, stderr)


def python_c(
    script: str, arguments: list[str], env: dict[str, str], cwd: str | Path, timeout: float | None = None
) -> subprocess.CompletedProcess:
    """Run `python -c script *arguments` with the variables `env` alone, in the folder `cwd`, and wait for its end."""
    return Forked(script, arguments, env, cwd).wait(timeout)


@functools.cache
def _address() -> str:
    """Where the server listens; it is started at the first call, and ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="fork-")  # removed at exit
    address = str(Path(folder.name, "socket"))
    settings = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(lambda: (server.communicate(), folder.cleanup()))
    assert server.stdout.readline() == b"listening\n"
    return address


def serve(address: str) -> None:
    """Fork for every connection until standard input is closed. Returns there, and after the script in each fork."""
    sys.path.pop(0)  # the folder of this file
    for name in PRELOADED:
        importlib.import_module(name)
    assert not set(NOT_PRELOADED).intersection(sys.modules)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("listening", flush=True)
    signal.signal(signal.SIGCHLD, _reap)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _answer(connection)
        connection.close()


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    """Tell the id of the process that runs the script, and its status when it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection, connection.makefile("rw", encoding="utf-8") as file:
        job = json.loads(file.readline())
        if pid := os.fork():
            _report(file, pid)
    _run(**job)


def _report(file, pid: int) -> NoReturn:
    print(pid, file=file, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=file, flush=True)
    os._exit(0)


def _run(script: str, arguments: list[str], env: dict[str, str], cwd: str, said: list[str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    paths = (os.devnull, *said)
    for descriptor, path in enumerate(paths):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    sys.argv = ["-c", *arguments]
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(script, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    serve(sys.argv[1])
