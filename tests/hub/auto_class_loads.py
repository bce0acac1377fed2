"""Loads saved checkpoints through every Auto class in one other process, and writes down what came.

The snippets are text because they run where this package, tests included, cannot be imported.
"""

from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from tests.hub.remote_process import run_without_package
from tests.hub.tiny_checkpoints import TEXTS, Family, auto_classes, batch_for, make_batch


# Every (way, source, Auto class, arguments): class, what the loader reports, and the outputs if nothing was left out.
LOAD = """
import logging
import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity(logging.CRITICAL)  # the reports on new heads are long, and returned below
transformers.logging.disable_progress_bar()
batches = load_file(argument["batches"])
result, tensors = {}, {}


def batch_of(auto_class):
    return {name.split("/")[1]: value for name, value in batches.items() if name.split("/")[0] == auto_class}


def outputs_of(model, auto_class):
    with torch.no_grad():
        outputs = model(**batch_of(auto_class))
    return {name: value.clone() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def load(source, auto_class, arguments):
    # Heads with a classifier of another width are as new as heads that the checkpoint does not have.
    if auto_class == "AutoModelForQuestionAnswering":
        arguments = {**arguments, "num_labels": 2}  # transformers' DistilBERT refuses another number
    return getattr(transformers, auto_class).from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
    )


def describe(model, info):
    return {
        "class": type(model).__name__,
        "module": type(model).__module__,
        "config": [type(model.config).__name__, type(model.config).__module__],
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "mismatched": sorted(mismatch[0] for mismatch in info["mismatched_keys"]),
        "eval": not model.training,
    }


for way, source, auto_class, arguments in argument["loads"]:
    model, info = load(source, auto_class, arguments)
    result[f"{way}/{auto_class}"] = describe(model, info)
    if not any(info.values()):  # the head of the checkpoint; others are random
        tensors |= {f"{way}/{auto_class}/{name}": value for name, value in outputs_of(model, auto_class).items()}
"""

SAVE_TENSORS = """
save_file(tensors, argument["outputs"])
"""

EACH_JOB = """
jobs, results = argument, []
for argument in jobs:
{}
    results.append(result)
result = results
"""

# The same once for each way: tokenizer and configuration.
TOKENIZERS = """
from transformers import AutoConfig, AutoTokenizer

ways = {way: (source, arguments) for way, source, auto_class, arguments in argument["loads"]}
for way, (source, arguments) in ways.items():
    tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
    config = AutoConfig.from_pretrained(source, **arguments)
    result[f"{way}/tokenizer"] = {
        "class": type(tokenizer).__name__,
        "ids": tokenizer(argument["texts"])["input_ids"],
        "mask_token": tokenizer.mask_token,
        "config": [type(config).__name__, type(config).__module__],
        "model_type": config.model_type,
        "architectures": config.architectures,
    }
"""

# Two optimiser steps with labels for each saved head, then saved again with its tokenizer.
FINE_TUNE = """
torch.manual_seed(0)
for head, source, target, labels in argument["fine_tunes"]:
    model = getattr(transformers, head).from_pretrained(source, trust_remote_code=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for step in range(2):
        outputs = model(**batch_of(head), **{name: torch.tensor(value) for name, value in labels.items()})
        pooled = None if labels else outputs.pooler_output
        if not labels and pooled is None:  # XLM has no pooler; a sum of what LayerNorm gives would have no gradient
            pooled = outputs.last_hidden_state**3
        (outputs.loss if labels else pooled.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval().save_pretrained(target)
    AutoTokenizer.from_pretrained(source, trust_remote_code=True).save_pretrained(target)
    way = f"tuned/{target}"
    unmoved = [name for name, value in model.state_dict().items() if torch.equal(value, before[name])]
    result[f"{way}/{head}"] = {"unmoved": unmoved, "module": type(model).__module__}
    tensors |= {f"{way}/{head}/{name}": value for name, value in outputs_of(model, head).items()}
"""


class Answers(NamedTuple):
    """What another process saw, by `"way/Auto class"`, and outputs by `"way/Auto class/field"`; see the snippets."""

    seen: dict[str, Any]
    outputs: dict[str, torch.Tensor]

    def outputs_of(self, way: str, auto_class: str) -> dict[str, torch.Tensor]:
        """Output tensors of one loaded model, by field."""
        prefix = f"{way}/{auto_class}/"
        return {name.removeprefix(prefix): value for name, value in self.outputs.items() if name.startswith(prefix)}


class SavedFamily(NamedTuple):
    """All checkpoints of a family, and what other processes made of them.

    Folders and expected outputs are by key: the saved head (an Auto class) or the type of relative positions. Ways of
    the processes are `trusted/<key>`, `plain/<key>` (no flag) and `tuned/<folder>`. The first one saves what it tuned,
    and the second loads that.
    """

    family: Family
    folders: dict[str, Path]
    outputs: dict[str, dict[str, torch.Tensor]]
    first: Answers
    tuned_folders: dict[str, Path]
    second: Answers


class Job(NamedTuple):
    """What another process is to do with checkpoints of a family; `argument` is what the snippets read."""

    family: Family
    argument: dict[str, Any]


def ask_other_process(
    snippets: list[str], home: Path, jobs: list[Job], environment: dict[str, str] | None = None
) -> list[Answers]:
    """Run snippets of this file, in order and for each job, in one process where the package cannot be imported.

    `environment` is that of the process if it is not to be offline.
    """
    home.mkdir(parents=True)
    arguments = []
    for number, (family, argument) in enumerate(jobs):
        named = {
            f"{auto_class}/{name}": value.clone()
            for auto_class in auto_classes(family)
            for name, value in batch_for(auto_class, make_batch(family)).items()
        }
        files = {name: str(home / f"{name}-{number}.safetensors") for name in ("batches", "outputs")}
        save_file(named, files["batches"])
        arguments.append(argument | files | {"texts": list(TEXTS)})
    script = EACH_JOB.format(indent("\n".join([*snippets, SAVE_TENSORS]), "    "))
    seen = run_without_package(script, home, arguments, environment, timeout=500)
    return [Answers(*one) for one in zip(seen, (load_file(a["outputs"]) for a in arguments), strict=True)]
