"""The test sources of transformers: where they come from and how they are imported without the folders they lack."""

import importlib
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from unittest import mock

import transformers


PACKAGE = "transformers_common_tests"
VERSION = transformers.__version__

# Generic configuration fields, each with a value other than its default: the configuration test wants every one of
# them kept. The table that transformers uses is in a folder its source distribution leaves out.
CONFIG_KWARGS = {
    "architectures": ["BertModel"],
    "chunk_size_feed_forward": 5,
    "dtype": "float16",
    "id2label": {0: "label"},
    "label2id": {"label": "0"},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}


def fetch() -> Path:
    """Download and unpack the source distribution of the installed transformers, once.

    Returns:
        The unpacked folder, inside the user's temporary directory.

    Raises:
        subprocess.CalledProcessError: When pip finds no such source distribution.
    """
    cache = Path(tempfile.gettempdir()) / f"transformers-sources-{VERSION}"
    source = cache / f"transformers-{VERSION}"
    if (source / "tests").is_dir():
        return source
    cache.mkdir(exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    download += ["--no-build-isolation", "--dest", str(cache), f"transformers=={VERSION}"]
    subprocess.run(download, check=True)
    with tarfile.open(cache / f"transformers-{VERSION}.tar.gz") as archive:
        archive.extractall(cache, filter="data")
    return source


def check(source: Path) -> None:
    """Refuse a folder that does not hold the test sources of the installed transformers.

    Args:
        source: An unpacked source distribution.

    Raises:
        ValueError: When the common model tests are missing, or belong to another version.
    """
    if not (source / "tests" / "test_modeling_common.py").is_file():
        raise ValueError(f"source={source} has no tests/test_modeling_common.py: give an unpacked source distribution")
    lines = (source / "PKG-INFO").read_text(encoding="utf-8").splitlines()
    found = next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    if found != VERSION:
        raise ValueError(f"source={source} is transformers {found}, installed is {VERSION}: they must be the same")


def _stub(name: str, **contents: object) -> None:
    """Put a module that holds nothing but `contents` where the sources will look for `name`."""
    module = types.ModuleType(f"{PACKAGE}.{name}")
    module.__path__ = []
    vars(module).update(contents)
    sys.modules[module.__name__] = module


def load(source: Path) -> tuple[types.ModuleType, types.ModuleType]:
    """Import the common model and configuration tests.

    Args:
        source: An unpacked source distribution of the installed transformers.

    Returns:
        The modules `test_modeling_common` and `test_configuration_common`.
    """
    # A package of another name: `tests` is also the folder this file is in.
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(source / "tests")]
    sys.modules[PACKAGE] = package
    for folder in ("exporters", "generation", "utils"):
        _stub(folder)
    _stub("exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    _stub("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    _stub("utils.test_configuration_utils", config_common_kwargs=CONFIG_KWARGS)
    # The configuration tests run the `__init__.py` of their own folder under the name `transformers`; it has none.
    with mock.patch("transformers.utils.direct_transformers_import", return_value=transformers):
        configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")
    return importlib.import_module(f"{PACKAGE}.test_modeling_common"), configuration


def admit(common: types.ModuleType, prefix: str, families: tuple[str, ...]) -> None:
    """Let the tests see `prefix + X` wherever they look for the class name `X` of a family.

    The tests decide by class *name*, in tables that `AutoModel.register` does not touch, which class is a base
    model and which labels a head takes. Only the tests' own view of those tables is changed.

    Args:
        common: The module `test_modeling_common`.
        prefix: What our class names begin with.
        families: The `model_type`s to extend.
    """
    for table in [name for name in vars(common) if name.endswith("_MAPPING_NAMES")]:
        names = dict(getattr(common, table))
        for family in set(families).intersection(names):
            stock = names[family] if isinstance(names[family], tuple) else (names[family],)
            names[family] = (*stock, *(prefix + name for name in stock))
        setattr(common, table, names)
    # Heads whose labels are not shifted, such as XLM's.
    common.UNSHIFTED_LM_HEADS |= {prefix + name for name in common.UNSHIFTED_LM_HEADS}
