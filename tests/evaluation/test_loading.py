"""Every metric file is an `evaluate` module: loaded by its path, offline, it gives the same as the class."""

import shutil
from pathlib import Path

import evaluate
import pytest

import hf_encoders
from hf_encoders.public_names import PUBLIC_NAMES
from tests.hub.remote_process import run_with_package, run_without_package
from tests.hub.tiny_checkpoints import BERT, TEXTS, make_model, make_tokenizer, save_checkpoint


FOLDER = Path(hf_encoders.__file__).parent / "evaluation" / "metrics"
METRICS = {path.stem: PUBLIC_NAMES[f"evaluation.metrics.{path.stem}"][0] for path in FOLDER.glob("[!_]*.py")}
ANSWER = {"id": "1", "prediction_text": "a cat"}
GOLD = {"text": ["cat"], "answer_start": [0]}
QUESTION = {"id": "1", "answers": {"text": [], "answer_start": []}}
# File, configuration, input.
CASES = [
    ("accuracy", None, {"predictions": [0, 1, 1], "references": [0, 1, 0]}),
    ("f1", "multilabel", {"predictions": [[0, 1]], "references": [[0, 1]], "average": "macro"}),
    ("correlation", None, {"predictions": [0.1, 0.2, 0.4], "references": [1, 3, 2]}),
    ("correlation", "classes", {"predictions": [0, 1, 1], "references": [0, 1, 0]}),
    ("seqeval", None, {"predictions": [["B-X", "O"]], "references": [["B-X", "B-Y"]]}),
    ("squad", None, {"predictions": [ANSWER], "references": [{"id": "1", "answers": GOLD}]}),
    ("squad", "v2", {"predictions": [{**ANSWER, "no_answer_probability": 0.25}], "references": [QUESTION]}),
]
LOAD_ALL = """
import evaluate

folder, cases = argument[:2]
result = []
for name, config, inputs in cases:
    metric = evaluate.load(f"{folder}/{name}.py", config)
    result.append([metric.name, metric.compute(**inputs)])
"""
LOAD_MASKED = """
from transformers import AutoModelForMaskedLM, AutoTokenizer

checkpoint, inputs = argument[2:]
model, tokenizer = (auto.from_pretrained(checkpoint) for auto in (AutoModelForMaskedLM, AutoTokenizer))
masked = [
    evaluate.load(f"{folder}/{name}.py").compute(**given, model=model, tokenizer=tokenizer)
    for name, given in inputs.items()
]
result = [result, masked]
"""
MASKED_INPUTS = {
    "pseudo_perplexity": {"predictions": list(TEXTS)},
    "minimal_pair_accuracy": {"sentence_good": [TEXTS[0]], "sentence_bad": [TEXTS[1]]},
}


def class_of(name: str) -> type[evaluate.Metric]:
    return getattr(hf_encoders, METRICS[name])


def check_same_as_classes(loaded: list, folder: Path) -> None:
    for (name, config, inputs), (loaded_name, metrics) in zip(CASES, loaded, strict=True):
        assert loaded_name == name
        assert metrics == class_of(name)(config, cache_dir=str(folder)).compute(**inputs), name


@pytest.mark.processes
def test_files_load_by_path_without_the_package_each_copied_alone(tmp_path):
    for name, _, _ in CASES:
        (tmp_path / name).mkdir(exist_ok=True)
        shutil.copy(FOLDER / f"{name}.py", tmp_path / name)
    load_all = LOAD_ALL.replace("{folder}/{name}.py", "{folder}/{name}/{name}.py")
    loaded = run_without_package(load_all, tmp_path / "home", argument=[str(tmp_path), CASES])
    check_same_as_classes(loaded, tmp_path)


@pytest.mark.processes
def test_all_files_load_by_path_with_the_package(tmp_path):
    checkpoint = save_checkpoint(make_model(BERT, "AutoModelForMaskedLM"), BERT, tmp_path / "model")
    argument = [str(FOLDER), CASES, str(checkpoint), MASKED_INPUTS]
    loaded, masked = run_with_package(LOAD_ALL + LOAD_MASKED, tmp_path / "home", argument=argument)
    check_same_as_classes(loaded, tmp_path)
    model, tokenizer = make_model(BERT, "AutoModelForMaskedLM"), make_tokenizer(BERT)
    for (name, given), metrics in zip(MASKED_INPUTS.items(), masked, strict=True):
        expected = class_of(name)(cache_dir=str(tmp_path)).compute(**given, model=model, tokenizer=tokenizer)
        assert metrics == pytest.approx(expected, rel=1e-5)


def test_every_metric_is_among_the_cases_and_gives_flat_numbers(tmp_path):
    assert {name for name, _, _ in CASES} | set(MASKED_INPUTS) == METRICS.keys()
    for name, config, inputs in CASES:
        metrics = class_of(name)(config, cache_dir=str(tmp_path)).compute(**inputs)
        assert metrics and all(type(value) in (int, float) for value in metrics.values()), name
