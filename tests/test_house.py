"""The house is cheap to grow: only its own files name a family or an objective, or know what is special about one."""

import ast
import importlib
import os
import sys
from pathlib import Path

import pytest

import hf_encoders
from hf_encoders.objectives.objective import objectives
from hf_encoders.registration import FAMILIES, family_names
from tests.forked_python import python_c


PACKAGE = Path(hf_encoders.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
OF_FAMILIES = ("models/configuration_", "models/modeling_")
# Models, arguments and fields that only some family or objective has; a generator is otherwise one of random numbers.
SPECIAL = {"discriminator", "student", "teacher", "lang2id", "langs", "perm_mask", "target_mapping", "inner_group_num"}
ALLOWED = {
    "registration.py": {*FAMILIES},  # the line of each family
    "commands/adapt.py": {"mlm"},  # what it falls back on
    "commands/benchmark.py": {"bert", "modernbert"},  # default of an option, and what everything is compared with
    "commands/quickstart.py": {"bert", "mlm"},  # defaults of two options
    "commands/distil.py": {"teacher"},  # the command's argument
    "evaluation/embeddings.py": {"langs"},  # argument of every model with `languages`
    "models/encoder_configuration.py": {"mlm"},  # the loss term of masked tokens, which has the objective's name
    "models/encoder_heads.py": {"mlm"},  # likewise
    "models/encoder_detection.py": {"rtd"},  # likewise
    "objectives/dataset.py": {"mlm"},  # an argument of transformers' collator, for which there is a hint
    "objectives/distillation.py": {"mlm", "student", "teacher"},  # likewise; and its own models
    "objectives/mlm.py": {"lang2id", "langs"},  # arguments of its collator, and of every model with `languages`
    "benchmark.py": {"modernbert"},  # transformers' class, which everything is compared with
    "objectives/plm.py": {"perm_mask", "target_mapping"},  # arguments of its models
    "objectives/rtd.py": {"mlm", "discriminator", "generator"},  # the loss term, and its own models
    "objectives/student.py": {"student", "teacher"},  # how students of distillation begin
    "publishing/record.py": {"inner_group_num"},  # the fields of all configurations, in order
    "runs/initial.py": {"teacher"},  # what `distil` begins with
    "runs/options.py": {"teacher"},  # a value of a recipe's `begins_from`
    "runs/run.py": {"lang2id"},  # argument of collators, for every model with `languages`
}
COLLATOR_FILES = 12  # in four rooms, without `__init__.py` and the table of public names


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(OF_FAMILIES)])
def test_nothing_else_names_a_family_or_an_objective(name):
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings, identifiers, attributes = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            strings.add(node.value)
        identifiers |= {getattr(node, field, None) for field in ("id", "arg", "attr")}
        attributes.add(getattr(node, "attr", None))
    defined = {kind: Path(sys.modules[type(one).__module__].__file__) for kind, one in objectives().items()}
    others = {*FAMILIES, *family_names(), *(kind for kind, path in defined.items() if path != FILES[name])}
    named = (strings & others) | ((strings | identifiers) & SPECIAL) | ((strings | attributes) & {"generator"})
    assert named == ALLOWED.get(name, set()), "ask the configuration or the objective instead"
    assert ALLOWED.keys() <= FILES.keys()


@pytest.mark.processes
def test_masking_tokens_needs_few_files(tmp_path):
    code = "import sys; from hf_encoders import DataCollatorForMaskedLM; print(*sys.modules)"
    modules = python_c(code, [], dict(os.environ), tmp_path).stdout.split()
    files = {module for module in modules if module.startswith("hf_encoders.") and not is_room(module)}
    assert 1 < len(files - {"hf_encoders.public_names"}) <= COLLATOR_FILES, sorted(files)


def is_room(module: str) -> bool:
    return hasattr(importlib.import_module(module), "__path__")


def test_the_package_itself_names_no_room():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    tree = ast.parse(FILES["__init__.py"].read_text(encoding="utf-8"))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not rooms & {part for module in imported for part in module.split(".")}
