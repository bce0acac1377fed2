"""The Hub's rules for the metadata of a model card, so that a card is refused here and not after an upload.

Sources: the specification of the metadata, https://github.com/huggingface/hub-docs/blob/main/modelcard.md, which says
that `model-index`, `datasets` and `license` are verified on every push; the licences,
https://huggingface.co/docs/hub/repositories-licenses; the tasks, `packages/tasks/src/pipelines.ts` of
https://github.com/huggingface/huggingface.js; the languages, ISO 639-1. The Hub has the last word: three-letter
codes of languages are checked for their form alone, and a licence that is newer than this list goes as `other`.
"""

import difflib
import math
import re
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_encoders.data.language_codes import is_language_code


def _identifiers(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


LICENSES = _identifiers("""
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
    lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense
    zlib pddl lgpl-lr deepfloyd-if-license llama2 gemma unknown other
""")
TASKS = _identifiers("""
    text-classification token-classification table-question-answering question-answering zero-shot-classification
    translation summarization feature-extraction text-generation fill-mask sentence-similarity multiple-choice
    text-ranking text-retrieval table-to-text other
""")
NO_LANGUAGE = ("multilingual", "code")
DATASET_ID = re.compile(r"(?:[\w-]+/)?[\w.-]+", re.ASCII)


def metadata_problems(metadata: dict[str, Any]) -> list[str]:
    """What the Hub would refuse, or not understand, of a card's metadata; one line each, with the remedy.

    Args:
        metadata: the card's YAML block as a dictionary.

    Example: `{"license": "apache2"}` gives `["license 'apache2' is not on the Hub's list: use 'apache-2.0', ..."]`.

    >>> metadata_problems({"license": "mit", "language": "en"})
    []
    >>> metadata_problems({"language": "english"})
    ["language 'english' is no code: use ISO 639 in lower case, such as 'en', or 'multilingual'."]
    """
    problems = [*_license_problems(metadata), *_language_problems(as_list(metadata.get("language")))]
    task = metadata.get("pipeline_tag")
    if task is not None and task not in TASKS:
        problems.append(f"pipeline_tag {task!r} is no task of an encoder: use one of {', '.join(sorted(TASKS))}.")
    for dataset in as_list(metadata.get("datasets")):
        if not is_dataset_id(dataset):
            problems.append(
                f"datasets has {dataset!r}, which is no name on the Hub: use 'owner/name', or leave it out."
            )
    for model in as_list(metadata.get("base_model")):
        if not is_repo_id(model):
            problems.append(f"base_model {model!r} is no name on the Hub: use 'owner/name', or leave it out.")
    return problems + _model_index_problems(metadata.get("model-index"))


def is_dataset_id(value: Any) -> bool:
    """Whether the Hub takes a string for a data set's identifier."""
    return isinstance(value, str) and DATASET_ID.fullmatch(value) is not None


def is_repo_id(value: Any) -> bool:
    """Whether a string can name a repository on the Hub."""
    try:
        validate_repo_id(value)
    except HFValidationError:
        return False
    return True


def as_list(value: Any) -> list[Any]:
    """A value of the metadata that may be absent, single or a list, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _license_problems(metadata: dict[str, Any]) -> list[str]:
    problems = []
    for name in as_list(metadata.get("license")):
        if name not in LICENSES:
            near = difflib.get_close_matches(str(name).lower(), sorted(LICENSES), n=1)
            instead = f"use {near[0]!r}, or " if near else "use "
            problems.append(
                f"license {name!r} is not on the Hub's list: {instead}'other' with license_name and a LICENSE file."
            )
    if metadata.get("license") == "other" and not metadata.get("license_name"):
        problems.append("license 'other' needs license_name in README.md: add it, and the text as a LICENSE file.")
    return problems


def _language_problems(languages: list[Any]) -> list[str]:
    return [
        f"language {code!r} is no code: use ISO 639 in lower case, such as 'en', or 'multilingual'."
        for code in languages
        if code not in NO_LANGUAGE and not (isinstance(code, str) and is_language_code(code))
    ]


def _model_index_problems(index: Any) -> list[str]:
    problems = []
    for model in as_list(index):
        if not isinstance(model, dict) or not model.get("name"):
            problems.append("model-index has an entry without name: give the model's name.")
            continue
        for result in as_list(model.get("results")):
            problems += _result_problems(result)
    return problems


def _result_problems(result: Any) -> list[str]:
    problems = []
    result = _as_mapping(result)
    task, dataset = _as_mapping(result.get("task")), _as_mapping(result.get("dataset"))
    for part, name, value in (("task", "type", task.get("type")), ("dataset", "name", dataset.get("name"))):
        if not isinstance(value, str) or not value:
            problems.append(f"model-index: {part}.{name} is {value!r}: give it as text.")
    if not is_dataset_id(dataset.get("type")):
        problems.append(
            f"model-index: dataset.type {dataset.get('type')!r} is no identifier: letters, digits, '-', '_', '.' and "
            "one '/' at most."
        )
    if not as_list(result.get("metrics")):
        problems.append(f"model-index: no metrics for {dataset.get('name')!r}: add one, or leave the result out.")
    for metric in map(_as_mapping, as_list(result.get("metrics"))):
        if not metric.get("type"):
            problems.append(f"model-index: a metric of {dataset.get('name')!r} has no type: give its name.")
        value = metric.get("value")
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            problems.append(f"model-index: {metric.get('type')} is {value!r}: give a number, or leave it out.")
    return problems
