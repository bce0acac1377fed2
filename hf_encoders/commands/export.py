"""`hf-encoders export`: a checkpoint in a form that needs no code of this package, checked to compute the same.

  native            transformers' own class: plain transformers, sentence-transformers, embedding servers
  onnx              model.onnx for ONNX Runtime: any number of rows, any length up to the model's
  safetensors-bf16  this package's form in half the size

The checkpoint may be of this package or a published BERT, RoBERTa or ALBERT, in one safetensors file or in shards.
"""

import argparse
import sys

import transformers

from hf_encoders.publishing.export import WRITERS, export_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("directory", metavar="DIR_OR_NAME", help="folder of a checkpoint, or its name on the Hub")
    parser.add_argument("--to", required=True, choices=WRITERS, help="the form")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    parser.add_argument(
        "--head",
        metavar="AUTO_CLASS",
        help="a head whose weights are there, AutoModel for the encoder alone (default: the one that was saved)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export; 0 when the written form computes the same, 1 when it does not, 2 for weights that cannot be read.

    Unless it is 0, nothing was written.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        folder, seen = export_checkpoint(arguments.directory, arguments.to, arguments.output, arguments.head)
    except (OSError, RuntimeError) as error:  # OSError: a weight file that is missing, damaged or a pickle
        print(f"hf-encoders export: {error}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 1
    for path in sorted(folder.iterdir()):
        print(f"  {path.stat().st_size:>14,} bytes  {path.name}")
    print(f"{arguments.to}: {folder}")
    print(f"outputs differ by up to {seen.largest:.1e}, of at most {seen.scale:.2g}")
    return 0
