"""The code blocks of docs/ run, and the files they name exist."""

import re
from pathlib import Path

import pytest

from hf_encoders import HfeBertConfig
from hf_encoders.data import tokenize_documents, train_tokenizer


ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def texts():
    for i in range(40):
        yield {"text": f"This is document {i}. It has some words. The words are few.\nAnd {i + 1} is one more line."}


WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


STARTS_PROCESSES = ("publishing.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.processes] * (page.name in STARTS_PROCESSES))
        for page in WITH_CODE
    ],
)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # blocks may write files
    documents = [row["text"].replace("\n", " ").split(". ") for row in texts()]
    tokenizer = train_tokenizer((s for d in documents for s in d), HfeBertConfig, 200, 128)
    names = {"tokenizer": tokenizer, "corpus": tokenize_documents(documents, tokenizer), "texts": texts}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page):
    for name in re.findall(r"`((?:hf_encoders|examples|tests|model_cards)/[\w/.]+)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name
