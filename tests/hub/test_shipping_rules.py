"""What ships to the Hub can travel: flat files that import nothing but what every reader of a checkpoint has.

Static, because a directory forgives what the Hub does not: there, transformers looks for every import of every file,
and follows relative imports by a pattern over lines, docstrings included.
"""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import transformers
from transformers.dynamic_module_utils import get_relative_import_files

import hf_encoders
from tests.hub.tiny_checkpoints import FAMILIES, Family


PACKAGE = Path(hf_encoders.__file__).parent
SHIPPED = sorted((PACKAGE / "models").glob("*.py"))
ALLOWED = {*sys.stdlib_module_names, "torch", "transformers", "huggingface_hub"}
# transformers takes each line of this form for an import, wherever it stands.
IMPORT_LINE = re.compile(r"^\s*(?:from\s+\.(\S*)\s+import|import\s+\.(\S+)\s*$)", re.MULTILINE)
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BUILT_AT_RUN_TIME = {"__import__", "import_module", "exec", "eval"}


def violations(source: str, siblings: set[str]) -> list[str]:
    """What keeps a file from travelling, one line each; `siblings` are the modules beside it."""
    tree = ast.parse(source)
    found, followed = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] not in ALLOWED]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module.split(".")[0] not in ALLOWED:
                found.append(f"from {node.module} import")
        elif isinstance(node, ast.ImportFrom):
            followed.add("." * (node.level - 1) + (node.module or ""))
            if node.level > 1 or node.module not in siblings or any(alias.name == "*" for alias in node.names):
                found.append(f"from {'.' * node.level}{node.module or ''} import {node.names[0].name}")
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            is_call_of_model = isinstance(node.func, ast.Attribute) and name == "eval"
            if name in BUILT_AT_RUN_TIME and not is_call_of_model:
                found.append(f"{name}()")
            if name == "isinstance" and "Config" in ast.unparse(node.args[1]):
                # The class of a configuration and that of its model's `config_class` differ in directories.
                found.append(f"isinstance(..., {ast.unparse(node.args[1])})")
    lines = {first or second for first, second in IMPORT_LINE.findall(source)}
    found += [f"a line reads as an import of .{name}" for name in sorted(lines - followed)]
    return found


def pickling(source: str) -> list[str]:
    """Imports and calls that read or write pickles, one line each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in PICKLES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            found.append(f"from {node.module} import")
        elif isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            allows_pickle = any(
                keyword.arg == "allow_pickle" and not is_false(keyword.value) for keyword in node.keywords
            )
            if call in ("torch.load", "torch.save") or allows_pickle:
                found.append(f"{call}()")
    return found


def private_names(source: str) -> list[str]:
    """Private names of torch that a file cannot do without: imported, or read otherwise than by `getattr`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] in ("torch", "nn"):
            names = [node.attr] if ast.unparse(node) != "torch._C" else []
        else:
            continue
        found += [name for name in names if name.startswith("_")]
    return found


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_file_can_travel(path: Path) -> None:
    siblings = {other.stem for other in SHIPPED if other.stem != "__init__"}
    assert violations(path.read_text(encoding="utf-8"), siblings) == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_file_needs_no_private_name_of_torch(path: Path) -> None:
    """The reader's torch is not this package's choice."""
    assert private_names(path.read_text(encoding="utf-8")) == []


def test_private_names_are_found() -> None:
    assert private_names("from torch.nn.modules.module import _has_any_global_hook") == ["_has_any_global_hook"]
    found = private_names("torch._softmax(x); torch._C._active(); nn.modules._x; torch.softmax(x)")
    assert sorted(found) == ["_active", "_softmax", "_x"]
    assert private_names('getattr(torch, "_softmax", None)') == []


def test_shipped_files_are_flat_and_have_public_names() -> None:
    found = {path.relative_to(PACKAGE / "models") for path in (PACKAGE / "models").rglob("*.py")}
    assert {len(path.parts) for path in found} == {1}
    assert [path.name for path in found if path.name.startswith("_")] == ["__init__.py"]
    # `Trainer` leaves out what begins with an underscore, and `__init__.py` is not needed.
    assert ast.parse((PACKAGE / "models" / "__init__.py").read_text(encoding="utf-8")).body[1:] == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_head_is_in_auto_map_and_in_one_file(family: Family) -> None:
    """A head left out of AUTO_MAP could be saved and not be loaded; one modeling file is copied beside the weights."""
    file_name = family.name.replace("-", "_")
    module = ast.parse((PACKAGE / "models" / f"modeling_{file_name}.py").read_text(encoding="utf-8"))
    classes = [node.name for node in module.body if isinstance(node, ast.ClassDef) and node.name.startswith("Hfe")]
    heads = {name for name in classes if not name.endswith(("PreTrainedModel", "Output"))}
    references = {name: reference.split(".") for name, reference in family.config_class.AUTO_MAP.items()}
    assert references.pop("AutoConfig") == [f"configuration_{file_name}", family.config_class.__name__]
    assert {module for module, _ in references.values()} == {f"modeling_{file_name}"}
    assert {name for _, name in references.values()} == heads


def test_transformers_finds_every_shipped_file() -> None:
    """Its own reading of the imports reaches all files from those that config.json names, and there are no others."""
    names = [family.name.replace("-", "_") for family in FAMILIES]
    named = [f"{kind}_{name}" for name in names for kind in ("configuration", "modeling")]
    found = set()
    for path in (PACKAGE / "models" / f"{name}.py" for name in [*named, "question_answering_pipeline"]):
        found |= {path.name, *(Path(needed).name for needed in get_relative_import_files(path))}
    assert found == {path.name for path in SHIPPED} - {"__init__.py"}


def test_an_older_transformers_is_refused_before_its_lack_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/other_versions.py` tries it where an older version is installed."""
    models = PACKAGE / "models"
    for path in models.glob("configuration_*.py"):  # what a checkpoint's code begins with
        modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not any(module.startswith(("transformers", "huggingface_hub")) for module in modules), path.name
    monkeypatch.setattr(transformers, "__version__", "4.57.6")
    monkeypatch.delattr(transformers, "PreTrainedConfig")
    monkeypatch.setitem(sys.modules, "huggingface_hub.dataclasses", None)  # 0.27 has none
    with pytest.raises(ImportError, match=r"needs transformers 5\.14 or later, and this is 4\.57\.6: upgrade"):
        runpy.run_path(str(models / "encoder_configuration.py"))


def test_a_bert_checkpoint_carries_at_most_3086_lines() -> None:
    """What a security reviewer has to read before `trust_remote_code=True`."""
    modeling = PACKAGE / "models" / "modeling_bert.py"
    files = {modeling.name, *(Path(path).name for path in get_relative_import_files(modeling))}
    assert "configuration_bert.py" in files and len(files) <= 12
    assert sum(len((PACKAGE / "models" / name).read_text(encoding="utf-8").splitlines()) for name in files) <= 3086


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pickle_is_read_or_written(path: Path) -> None:
    assert pickling(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "import math\nfrom .encoder_tokens import a, b\ndef f():\n    from .encoder_tokens import c\nmodel.eval()",
            [],
        ),
        ("try:\n    import flash_attn\nexcept ImportError:\n    pass", ["import flash_attn"]),
        ("from hf_encoders.models.encoder_tokens import a", ["from hf_encoders.models.encoder_tokens import"]),
        ("from . import encoder_tokens", ["from . import encoder_tokens"]),
        ("from ..data import masking", ["from ..data import masking"]),
        ("from .absent import a", ["from .absent import a"]),
        ("from .encoder_tokens import *", ["from .encoder_tokens import *"]),
        ('"""Use:\n    from .absent import a\n"""', ["a line reads as an import of .absent"]),
        ("importlib.import_module('numpy')", ["import_module()"]),
        ("isinstance(config, HfeBertConfig)", ["isinstance(..., HfeBertConfig)"]),
    ],
)
def test_violations_are_found(source: str, expected: list[str]) -> None:
    assert violations(source, {"encoder_tokens"}) == expected


def test_pickling_is_found() -> None:
    source = "import pickle\ntorch.load(path)\nnp.load(path, allow_pickle=True)\nnp.load(path, allow_pickle=False)"
    assert sorted(pickling(source)) == ["import pickle", "np.load()", "torch.load()"]
