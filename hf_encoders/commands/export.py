"""`hf-encoders export`: convert a checkpoint to another format and verify that the outputs are the same.

  native            transformers' own class: plain transformers, sentence-transformers, embedding servers
  onnx              model.onnx for ONNX Runtime: any batch size, any length up to the model's
  safetensors-bf16  this package's format in half the size

The checkpoint may be this package's or transformers' own, in one safetensors file or in shards.
"""

import argparse
import sys

from hf_encoders.inputs import check_model, check_packages
from hf_encoders.source_literals import constant
from hf_encoders.writing import check_new_folder


FORMS = constant("publishing.export", "FORMS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("directory", metavar="DIR_OR_NAME", help="folder of a checkpoint, or its name on the Hub")
    parser.add_argument("--to", required=True, choices=list(FORMS), help="format")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--head",
        metavar="AUTO_CLASS",
        help="a head in the weights, AutoModel for the encoder alone (default: the one that was saved)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and a format whose packages are missing."""
    check_model(arguments.directory, f"DIR_OR_NAME {arguments.directory!r}")
    check_new_folder(arguments.output, "--output")
    check_packages(FORMS[arguments.to], f"--to {arguments.to}", arguments.to)


def run(arguments: argparse.Namespace) -> int:
    """Export; writes nothing unless the outputs are the same.

    Returns:
        `int`: 0 on success, 1 if the outputs differ, 2 if the weights cannot be read.
    """
    import transformers

    from hf_encoders.loading import hide_bars_of_weights
    from hf_encoders.publishing.export import export_checkpoint

    transformers.logging.set_verbosity_error()
    hide_bars_of_weights()
    print(f"Converting {arguments.directory}, and comparing the outputs. It may take minutes.", flush=True)
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
