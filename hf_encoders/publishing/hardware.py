"""Hardware and software of this machine in words, and the peak memory of a computation."""

import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile


# At this level the profiler's library prints nothing.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def describe_hardware() -> str:
    """Processor or accelerator of this machine, and on a CPU how much of it this process and those with it use."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    threads = torch.get_num_threads()
    used = f"{threads} threads" if threads > 1 else "1 thread"
    in_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    if in_parallel and (processes := torch.distributed.get_world_size()) > 1:
        used = f"{processes} processes of {used}"
    return f"CPU ({platform.machine()}), {used}"


def describe_software() -> dict[str, str]:
    """Versions of Python, torch and transformers."""
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def cpu_model() -> str:
    """The processor's name where the system reports it, otherwise its architecture."""
    file = Path("/proc/cpuinfo")  # Linux; `platform` knows the name elsewhere
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_on_cuda(run: Callable[[], Any], device: torch.device) -> int:
    """Peak bytes of torch's allocator during `run()`, above those before it."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_on_cpu(run: Callable[[], Any]) -> int:
    """Peak bytes of tensors held during `run()`, above those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    # Single allocations are only in the exported trace; the profiler's own tables hold sums.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    sizes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    held = peak = 0
    for _, size in sorted(sizes, key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak
