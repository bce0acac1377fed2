"""Say where the public names of `hf_encoders.data` are now; this file goes with the next release."""

from typing import Any

from hf_encoders.public_names import MODULES


def __getattr__(name: str) -> Any:
    if name in MODULES or name == "presets":
        raise ImportError(f"hf_encoders.data is gone: use `from hf_encoders import {name}`.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
