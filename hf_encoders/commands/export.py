"""Run `hf-encoders export`; its options are in `hf_encoders/options/export.py`."""

import argparse
import sys

import transformers

from hf_encoders.publishing.export import export_checkpoint


def run(arguments: argparse.Namespace) -> int:
    """Export; writes nothing unless the outputs are the same.

    Returns:
        `int`: 0 on success, 1 if the outputs differ, 2 if the weights cannot be read.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        folder, seen = export_checkpoint(arguments.directory, arguments.to, arguments.output, arguments.head)
    except (OSError, RuntimeError) as error:  # OSError: weights are missing, damaged or a pickle
        print(f"hf-encoders export: {error}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 1
    for path in sorted(folder.iterdir()):
        print(f"  {path.stat().st_size:>14,} bytes  {path.name}")
    print(f"{arguments.to}: {folder}")
    print(f"outputs differ by up to {seen.largest:.1e}, of at most {seen.scale:.2g}")
    return 0
