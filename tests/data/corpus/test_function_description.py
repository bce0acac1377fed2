"""A function is the same in every run, and another one when what it does was changed."""

import functools
import re
import subprocess
import sys
from functools import partial
from types import ModuleType

import pytest

from hf_encoders.data.corpus.function_description import describe_function
from hf_encoders.data.corpus.segmentation import split_sentences


MODULE = """
import re
import my_helpers
from functools import lru_cache, partial

MARKS = {"a", "b", "c"}
_END = re.compile("[.!?]")

def strip(text):
    return text.strip()

def again(text, times=2):
    return again(text, times - 1) if times else text

@lru_cache
def kept(text):
    return strip(text)

class Splitter:
    def __init__(self, mark):
        self.mark = mark
    def __call__(self, text):
        return self.method(text)
    def method(self, text):
        return text.split(self.mark)

def made(mark):
    def split(text):
        return [part for part in text.split(mark) if part in MARKS]
    return split

def split(text, mark="."):
    "What it does."
    parts = [strip(part) for part in _END.split(text) if part not in ("x", "y")]
    return my_helpers.clean(again(parts)) + list(map(lambda part: part + mark, kept(parts)))

of_class = Splitter(",")
method = of_class.method
local = made(";")
in_part = partial(map, split)
decorated = lru_cache(split)
"""
HELPERS = "def clean(parts):\n    return parts[0]\n"
NAMES = ("split", "of_class", "method", "local", "in_part", "decorated")


def described(monkeypatch, old="", new="", helpers=HELPERS) -> list[str]:
    """All functions of the module after a change."""
    assert old in MODULE
    for name, text in (("my_helpers", helpers), ("my_module", MODULE.replace(old, new, 1))):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return [describe_function(getattr(module, name)) for name in NAMES]


@pytest.mark.processes
def test_every_process_says_the_same(tmp_path, monkeypatch):
    """Also one that reads the byte code that the first one left."""
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "my_helpers.py").write_text(HELPERS)
    program = f"""
import sys
sys.path.insert(0, ".")
sys.dont_write_bytecode = False
import my_module
from hf_encoders.data.corpus.function_description import describe_function
for name in {NAMES}:
    print(describe_function(getattr(my_module, name)))
"""
    expected = described(monkeypatch)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == expected
        assert list(tmp_path.rglob("my_module*.pyc"))


def test_an_edited_function_is_another_one(monkeypatch):
    before = described(monkeypatch)
    assert described(monkeypatch, "import re\n", "import re  # needed\n\n\n") == before, "a comment and lines"
    assert before[0].startswith("my_module.split#")
    for old, new, changed in (
        ("[.!?]", "[.!]", "split in_part decorated"),
        ("text.strip()", "text.lstrip()", "split in_part decorated"),
        ("times=2", "times=3", "split in_part decorated"),
        ("times - 1", "times - 2", "split in_part decorated"),
        ('"y"', '"z"', "split in_part decorated"),
        ("part + mark", "mark + part", "split in_part decorated"),
        ("text.split(self.mark)", "text.rsplit(self.mark)", "of_class method"),
        ('Splitter(",")', 'Splitter(";")', "of_class method"),
        ('made(";")', 'made(",")', "local"),
        ('"c"}', '"d"}', "local"),
    ):
        after = described(monkeypatch, old, new)
        assert {name for name, one, two in zip(NAMES, before, after, strict=True) if one != two} == {*changed.split()}
    helpers = described(monkeypatch, helpers=HELPERS.replace("[0]", "[1]"))
    assert [one != two for one, two in zip(before, helpers, strict=True)] == [True, False, False, False, True, True]


def test_what_is_installed_is_told_by_its_version():
    assert describe_function(None) is None
    assert describe_function(split_sentences) == "hf_encoders.data.corpus.segmentation.split_sentences"
    assert describe_function(re.escape) == "re.escape"
    assert re.fullmatch(r"_pytest\.\S*raises==\d\S+", describe_function(pytest.raises))
    assert describe_function(str.split) == describe_function(str.split) != describe_function(str.rsplit)


def test_arguments_of_a_partial_are_told():
    with_function = partial(functools.reduce, split_sentences, key=describe_function)
    assert describe_function(with_function) == (
        "_functools.reduce(hf_encoders.data.corpus.segmentation.split_sentences, "
        "key=hf_encoders.data.corpus.function_description.describe_function)"
    )
    assert describe_function(partial(split_sentences, language="de")).endswith("(language='de')")


def test_lambdas_are_told_apart():
    first, second, third = (lambda text: [text]), (lambda text: [text]), (lambda text: [text, text])
    assert describe_function(first) == describe_function(second) != describe_function(third)
