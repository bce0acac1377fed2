"""Pre-train, adapt, fine-tune and publish encoder-only language models with the Hugging Face stack.

The public names are the configuration and model classes of every family, such as `HfeBertForMaskedLM`, `encode`, and
`take_over_auto_classes`. They are imported, and registered with transformers' Auto classes, when one is first used:
`import hf_encoders` alone imports neither torch nor transformers. It sets `OMP_WAIT_POLICY=PASSIVE` unless it is set.
"""

import importlib
import os
from typing import Any


__version__ = "0.1.0"

# Waiting threads sleep instead of spinning: next to other processes, spinning threads take the core from the thread
# that they wait for. torch reads it when it is imported, also by transformers, so that this package has to come first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "encode":
        return importlib.import_module("hf_encoders.inference").encode
    if name == "__all__" or name == "take_over_auto_classes" or name.startswith("Hfe"):
        registration = importlib.import_module("hf_encoders.registration")
        values = registration.public_names()
        if name == "__all__":
            return ["__version__", "encode", *values]
        if name in values:
            globals().update(values)
            return values[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
