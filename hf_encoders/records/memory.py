"""Most bytes of tensors that a piece of work holds at a time."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


# The profiler's library writes lines of its own to the terminal, at this level none.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def peak_on_cuda(run: Callable[[], Any], device: torch.device) -> int:
    """Most bytes that torch's allocator held during `run()`, over those before it."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_on_cpu(run: Callable[[], Any]) -> int:
    """Most bytes of tensors that `run()` held at a time, over those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    # The events of single allocations are in the exported trace only; the profiler's own tables sum them up.
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
