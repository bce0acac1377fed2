"""Pre-train, adapt, fine-tune and publish encoder-only language models with the Hugging Face stack.

All public names are imported from here, such as `HfeBertForMaskedLM`, `DataCollatorForMaskedLM` and `encode`;
`public_names.py` lists them. They are imported, and the families registered with transformers' Auto classes, when one
is first used: `import hf_encoders` alone imports neither torch nor transformers. It sets `OMP_WAIT_POLICY=PASSIVE`
unless it is set.
"""

import os
from typing import Any

from hf_encoders.public_names import public_names, public_value


__version__ = "0.2.0"

# Waiting threads sleep instead of spinning: next to other processes, spinning threads take the core from the thread
# that they wait for. torch reads it when it is imported, also by transformers, so that this package has to come first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "__all__":
        return public_names()
    value = globals()[name] = public_value(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *public_names()})
