import functools
import os
import re
from pathlib import Path

import pytest

import hf_encoders
from hf_encoders.corpus.segmentation import split_sentences
from hf_encoders.corpus.settings import describe_function
from tests.forked_python import python_c


ROOT = str(Path(hf_encoders.__file__).parents[1])
SCRIPT = """
from functools import partial
from hf_encoders.corpus.settings import describe_function

LIMIT = {limit}

def cut(text, least=LIMIT):
    return [text[:LIMIT]]

print(describe_function(cut), describe_function(lambda text: cut(text)), describe_function(partial(cut, least=1)))
"""


def test_importable_functions_are_named():
    assert describe_function(None) is None
    assert describe_function(split_sentences) == "hf_encoders.corpus.segmentation.split_sentences"
    assert describe_function(re.escape) == "re.escape"
    assert describe_function(str.split) == describe_function(str.split) != describe_function(str.rsplit)


def test_partials_name_what_is_not_a_default():
    assert describe_function(functools.partial(split_sentences, language="en")) == describe_function(split_sentences)
    assert describe_function(functools.partial(split_sentences, language="de")).endswith("(language='de')")
    assert describe_function(functools.partial(functools.reduce, re.escape)) == "_functools.reduce(re.escape)"


@pytest.mark.processes
def test_the_code_of_a_script_decides_and_the_process_does_not(tmp_path):
    def described(limit: int) -> list[str]:
        (tmp_path / "script.py").write_text(SCRIPT.format(limit=limit))
        run = "import runpy; runpy.run_path('script.py', run_name='__main__')"
        done = python_c(run, [], {**os.environ, "PYTHONPATH": ROOT}, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first = described(2)
    assert first == described(2)
    for one, other in zip(first, described(3), strict=True):
        assert one.startswith("__main__.") and one != other
