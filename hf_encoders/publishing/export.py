"""Export a checkpoint to other formats and verify that the outputs are the same.

The export is written to a temporary folder, loaded and compared before it is renamed to the output.
"""

import copy
import dataclasses
import inspect
import json
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import PreTrainedConfig, PreTrainedModel

from hf_encoders.inputs import check_packages
from hf_encoders.loading import read_config
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import (
    copy_modules,
    load_source,
    native_class,
    pooler_arguments,
    save_tokenizer,
    saved_head,
)
from hf_encoders.publishing.verification import (
    CHOICES,
    FP32_TOLERANCE,
    Difference,
    difference,
    outputs_of,
    probe_batch,
)
from hf_encoders.tokenizer_loading import load_tokenizer
from hf_encoders.writing import check_new_folder


# Packages that writing a format needs; docs/publishing.md names the extra that installs them.
FORMS = {"native": (), "onnx": ("onnx", "onnxscript", "onnxruntime"), "safetensors-bf16": ()}
ONNX_FILE = "model.onnx"
# Batches that the export did not see: other sizes and lengths, a single token, the longest row.
PROBED_LENGTHS = ((13, 5, 8), (1,), (3, 11), (7, 7, 2, 1, 4), (sys.maxsize, 2))
# Fields of config.json that name code, or are set when it is saved.
OF_CODE = {"architectures", "auto_map", "custom_pipelines", "dtype", "model_type", "transformers_version"}
PROTOBUF_LIMIT = 2_000_000_000  # bytes; larger ONNX models have external weights


def export_checkpoint(
    source: str | Path, form: str, output: str | Path, head: str | None = None
) -> tuple[Path, Difference]:
    """Export a checkpoint with its tokenizer.

    Args:
        source (`str` or `Path`): Directory or name on the Hub, of this package or of transformers' own classes.
        form (`str`): `native`, transformers' own class without code and `auto_map`; `onnx`, one graph for any batch
            size and length; `safetensors-bf16`, this package's format with weights in bfloat16.
        output (`str` or `Path`): Directory to create.
        head (`str`, *optional*): Auto class of a head in the weights; None means the one that was saved.

    Returns:
        `tuple[Path, Difference]`: The directory, and the largest difference between outputs.

    Raises:
        ValueError: If the checkpoint does not have the form or head, the output exists, or a package is missing.
        RuntimeError: If the outputs of the export differ; it is removed.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r}: choose one of {', '.join(FORMS)}.")
    check_new_folder(output, "output")
    check_packages(FORMS[form], f"form={form!r}", form)
    output, config = Path(output), read_config(source)
    if form == "native" and not config.is_native:
        beyond = config.fields_beyond_native or {"model_type": config.model_type}
        fields = ", ".join(f"{name}={value!r}" for name, value in beyond.items())
        remedy = "Export it to onnx, or use it with trust_remote_code=True."
        raise ValueError(f"transformers itself does not have {fields} of {config.model_type}. {remedy}")
    head = saved_head(config, head)
    # In float32 also for weights in bfloat16.
    model = load_source(source, head)
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        WRITERS[form](model, head, folder)
        save_tokenizer(load_tokenizer(source, config=config), folder)
        if form != "onnx":
            copy_modules(source, folder)
        largest = check_export(model, head, folder, form)
        folder.chmod(0o755)  # mkdtemp's folders are closed to others
        if output.exists():
            output.rmdir()
        folder.rename(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return output, largest


def write_native(model: PreTrainedModel, head: str, folder: Path) -> None:
    """Save as transformers' own class, without code."""
    native = native_class(model.config, head)(native_config(model.config), **pooler_arguments(model, head))
    native.load_state_dict(model.state_dict())
    native.save_pretrained(folder)


def native_config(config: EncoderConfig) -> PreTrainedConfig:
    """Return a native configuration as transformers' own class, without references to code."""
    native = native_class(config, "AutoModel").config_class
    fields = config.to_dict()
    known = {field.name for field in dataclasses.fields(native)}.union(config.UNDECLARED)
    left_out = {f.name for f in dataclasses.fields(config) if f.name not in known and fields.get(f.name) == f.default}
    return native(**{name: value for name, value in fields.items() if name not in left_out | OF_CODE})


def write_bf16(model: PreTrainedModel, head: str, folder: Path) -> None:
    """Save in this package's format, with code, with all floating-point weights in bfloat16."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)


def write_onnx(model: PreTrainedModel, head: str, folder: Path) -> None:
    """Export a graph with dynamic batch size and length, and the configuration.

    Inputs are `input_ids`, `attention_mask` and, for more than one segment, `token_type_ids`; outputs have the model's
    names. Padding is computed, and its outputs are meaningless.
    """
    batch = probe_batch(model, head)
    sizes: dict[int, Any] = {0: "batch", 1: "length"}
    if head == CHOICES:
        sizes = {0: "batch", 1: "choices", 2: "length"}
        batch = {name: value.repeat(2, 1, 1) for name, value in batch.items()}
    names = list(outputs_of(model, batch))
    is_large = sum(p.numel() * p.element_size() for p in model.parameters()) > PROTOBUF_LIMIT
    arguments: dict[str, Any] = {"output_names": names, "verbose": False, "external_data": is_large}
    logger = logging.getLogger("torch.onnx")
    level, return_dict = logger.level, model.config.return_dict
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # About repeated axis names, traced constants, missing torchvision operators and deprecations inside torch.
            warnings.simplefilter("ignore")
            if model.config.is_native:
                axes = {axis: Dim(name) for axis, name in sizes.items()}
                axes[max(axes)] = Dim("length", max=model.base_model.longest_row())
                arguments |= {"kwargs": batch, "dynamic_shapes": dict.fromkeys(batch, axes), "dynamo": True}
                values: tuple[torch.Tensor, ...] = ()
            else:
                # The TorchScript exporter: torch.export fails on a view of a transposed tensor in relative positions.
                model.config.return_dict = False  # traces return tuples
                inputs = [name for name in inspect.signature(model.forward).parameters if name in batch]
                arguments |= {"input_names": inputs, "dynamic_axes": dict.fromkeys(batch, sizes), "dynamo": False}
                values = tuple(batch[name] for name in inputs)
            torch.onnx.export(model, values, folder / ONNX_FILE, **arguments)
    finally:
        logger.setLevel(level)
        model.config.return_dict = return_dict
    config = copy.copy(model.config)
    config.architectures = [type(model).__name__]
    left_out = ("auto_map", "custom_pipelines", "_name_or_path")  # code, and where the model was on this machine
    fields = {name: value for name, value in config.to_dict().items() if name not in left_out}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


WRITERS: dict[str, Callable[[PreTrainedModel, str, Path], None]] = dict(
    zip(FORMS, (write_native, write_onnx, write_bf16), strict=True)
)


def check_export(model: PreTrainedModel, head: str, folder: Path, form: str) -> Difference:
    """Compare the outputs of an export and its model on rows of several lengths; RuntimeError if they differ.

    In bfloat16 every weight has to be exactly the rounded original.
    """
    if form == "onnx":
        run = _onnx_reader(folder)
    elif form == "native":
        # Not through an Auto class, which `take_over_auto_classes` may have changed.
        written = native_class(model.config, head).from_pretrained(folder, **pooler_arguments(model, head))
        run = partial(outputs_of, written.eval())
    else:
        written = load_source(folder, head)
        rounded = written.state_dict()
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not torch.equal(rounded[name], value.bfloat16().float()):
                raise RuntimeError(f"{name} is not the original rounded to bfloat16. Nothing was written.")
        run = partial(outputs_of, written)
    worst = Difference(0.0, 1.0)
    for lengths in PROBED_LENGTHS:
        batch = probe_batch(model, head, lengths)
        measured = difference(run(batch), outputs_of(model, batch), batch["attention_mask"])
        if form != "safetensors-bf16" and not measured.is_rounding:
            allowed = f"{FP32_TOLERANCE * measured.scale:.2g} is allowed. Nothing was written."
            raise RuntimeError(
                f"the outputs of the {form} export differ by up to {measured.largest:.3g}, and {allowed}"
            )
        worst = max(worst, measured, key=lambda difference: difference.largest / difference.scale)
    return worst


def _onnx_reader(folder: Path) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX_FILE, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = session.run(None, {name: value.numpy() for name, value in batch.items()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return run
