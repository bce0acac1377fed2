"""The formats of an export, and what can be refused before torch is imported."""

from pathlib import Path

from hf_encoders.inputs import check_packages
from hf_encoders.writing import check_folder


FORMS = ("native", "onnx", "safetensors-bf16")


def check_form(form: str, output: str | Path) -> None:
    """Refuse a format that is none, a folder that is not empty or cannot be written, and packages that are missing."""
    if form not in FORMS:
        raise ValueError(f"form={form!r}: choose one of {', '.join(FORMS)}.")
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"output={str(output)!r} exists and is not empty: remove it, or name another folder.")
    check_folder(output, "output")
    if form == "onnx":
        check_packages(("onnx", "onnxscript", "onnxruntime"), f"form={form!r}", "onnx")
