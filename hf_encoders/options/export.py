"""`hf-encoders export`: convert a checkpoint to another format and verify that the outputs are the same.

  native            transformers' own class: plain transformers, sentence-transformers, embedding servers
  onnx              model.onnx for ONNX Runtime: any batch size, any length up to the model's
  safetensors-bf16  this package's format in half the size

The checkpoint may be this package's or transformers' own, in one safetensors file or in shards.
"""

import argparse
from pathlib import Path

from hf_encoders.inputs import check_model, check_packages
from hf_encoders.options.names import EXPORTS
from hf_encoders.writing import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("directory", metavar="DIR_OR_NAME", help="folder of a checkpoint, or its name on the Hub")
    parser.add_argument("--to", required=True, choices=EXPORTS, help="format")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--head",
        metavar="AUTO_CLASS",
        help="a head in the weights, AutoModel for the encoder alone (default: the one that was saved)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse paths that are wrong, and a format whose packages are missing."""
    check_model(arguments.directory, f"DIR_OR_NAME {arguments.directory!r}")
    check_form(arguments.to, arguments.output)


def check_form(form: str, output: str | Path) -> None:
    """Refuse a folder that is not empty or cannot be written, and a format whose packages are missing."""
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"output={str(output)!r} exists and is not empty: remove it, or name another folder.")
    check_folder(output, "output")
    if form == "onnx":
        check_packages(("onnx", "onnxscript", "onnxruntime"), f"form={form!r}", "onnx")
