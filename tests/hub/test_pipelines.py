"""transformers' pipelines take our models: from a directory without this package, and as instances with it.

Each task runs one text at a time and as a padded batch; the answers are the same.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from transformers import AutoTokenizer, pipeline

from tests.hub.remote_process import run_without_package
from tests.hub.tiny_checkpoints import (
    FAMILIES,
    TEXTS,
    Family,
    assert_same_answers,
    make_config,
    make_model,
    make_tokenizer,
    save_checkpoint,
)


TASKS = {
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
}
# All answers, not the best ones: a padded batch could reorder no more than what it changes.
OPTIONS = {
    "fill-mask": {"top_k": 7},
    "text-classification": {"top_k": None},
    "token-classification": {"ignore_labels": []},
    "feature-extraction": {},
}

RUN_PIPELINES = """
import json
import transformers
from transformers import pipeline

transformers.logging.disable_progress_bar()
result = {}
for name, (task, folder, texts, options) in argument.items():
    pipe = pipeline(task, model=folder, trust_remote_code=True, device="cpu")
    answers = {
        "module": type(pipe.model).__module__,
        "tokenizer": type(pipe.tokenizer).__name__,
        "single": [pipe(text, **options) for text in texts],
        "batched": pipe(texts, batch_size=2, **options),
    }
    result[name] = json.loads(json.dumps(answers, default=float))  # some scores are numpy's
"""


def texts_for(task: str, family: Family) -> list[str]:
    """`TEXTS`, with a word of each masked where the task is to fill it in."""
    if task != "fill-mask":
        return list(TEXTS)
    return [text.replace("cat", make_tokenizer(family).mask_token) for text in TEXTS]


each_case = pytest.mark.parametrize(
    ("family", "task"),
    [(family, task) for family in FAMILIES for task, head in TASKS.items() if head in family.config_class.AUTO_MAP],
    ids=lambda one: one if isinstance(one, str) else one.name,
)


class Remote(NamedTuple):
    """Saved directories and what a process without the package answered, by `"family/task"`."""

    folders: dict[str, Path]
    answers: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Remote:
    """Save twelve models here, run twelve pipelines in one other process."""
    base = tmp_path_factory.mktemp("pipelines")
    folders, argument = {}, {}
    for family in FAMILIES:
        for task, head in TASKS.items():
            if head not in family.config_class.AUTO_MAP:  # XLNet fills no masks
                continue
            name = f"{family.name}/{task}"
            folders[name] = save_checkpoint(make_model(family, head), family, base / name)
            argument[name] = (task, str(folders[name]), texts_for(task, family), OPTIONS[task])
    return Remote(folders, run_without_package(RUN_PIPELINES, base / "home", argument))


@pytest.mark.processes
@each_case
def test_pipeline_from_a_directory_runs_our_code_and_padding_changes_no_answer(
    remote: Remote, family: Family, task: str
) -> None:
    answers = remote.answers[f"{family.name}/{task}"]
    assert answers["module"].startswith("transformers_modules.")
    assert answers["module"].endswith(f".modeling_{family.file}")
    assert answers["tokenizer"] == family.tokenizer_class.__name__
    batched, single = answers["batched"], answers["single"]
    if task == "feature-extraction":
        short, long = (len(features[0]) for features in single)
        assert short < long
        # The pipeline returns the padded rows too, and what our models return there is zero.
        [[row], other] = batched
        begin = long - short if make_tokenizer(family).padding_side == "left" else 0
        assert row[:begin] + row[begin + short :] == [[0.0] * make_config(family).hidden_size] * (long - short)
        batched = [[row[begin : begin + short]], other]
    if task == "token-classification" and make_tokenizer(family).padding_side == "left":
        # Without the column, which padding shifts.
        batched, single = (
            [[{**entity, "index": 0} for entity in entities] for entities in answers] for answers in (batched, single)
        )
    assert_same_answers(batched, single)


@pytest.mark.processes
@each_case
def test_pipeline_of_an_instance_answers_the_same(
    remote: Remote, family: Family, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the registered class is known to the pipeline, which would otherwise log that it is not supported."""
    folder = remote.folders[f"{family.name}/{task}"]
    model_class = getattr(family.modeling, family.config_class.AUTO_MAP[TASKS[task]].split(".")[1])
    model = model_class.from_pretrained(folder)
    transformers.logging.enable_propagation()
    try:
        pipe = pipeline(task, model=model, tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu")
    finally:
        transformers.logging.disable_propagation()
    assert "is not supported" not in caplog.text
    assert pipe.model is model
    found = [pipe(text, **OPTIONS[task]) for text in texts_for(task, family)]
    assert_same_answers(
        json.loads(json.dumps(found, default=float)), remote.answers[f"{family.name}/{task}"]["single"]
    )
