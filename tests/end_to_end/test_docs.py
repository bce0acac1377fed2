"""The code blocks of docs/ run, and the files they name exist."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from hf_encoders import HfeBertConfig
from hf_encoders.cli import main
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


SHORT = ("--max_steps", "4", "--use_cpu", "--disable_tqdm", "True", "--validation-share", "0.2")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["macbert.md", "ernie.md"])
def test_commands_run_in_order(page, tmp_path, monkeypatch):
    """On made-up Chinese text in `text`, and on dialogues like those of the page; runs are of a few steps."""
    monkeypatch.chdir(tmp_path)
    documents = runpy.run_path(str(ROOT / "examples" / "pretrain_macbert.py"))["make_documents"](300)
    Path("text").mkdir()
    Path("text", "stories.txt").write_text("\n\n".join("\n".join(one) for one in documents), encoding="utf-8")
    text, commands = (ROOT / "docs" / page).read_text(encoding="utf-8"), set()
    for language, block in re.findall(r"```(bash|json|yaml)\n(.*?)```", text, re.S):
        if language == "json":
            lines = [line.replace("?", sentence) for (sentence, *_) in documents for line in block.splitlines()]
            Path("dialogues.jsonl").write_text("\n".join(lines), encoding="utf-8")
        elif language == "yaml":
            Path(block.split()[1]).write_text(block, encoding="utf-8")  # "# name.yaml"
        for line in block.splitlines() if language == "bash" else ():
            program, *words = shlex.split(line, comments=True)
            commands.add(words[0])
            assert program == "hf-encoders"
            assert main([*words, *(SHORT if words[0] == "pretrain" else ())]) == 0, line
    assert commands == {"tokenizer", "corpus", "pretrain", "plot"}


@pytest.mark.slow
def test_commands_of_two_languages_run_in_order(tmp_path, monkeypatch):
    """On made-up text in `text/en` and `text/zh`, and `pairs.en` and `pairs.zh`."""
    monkeypatch.chdir(tmp_path)
    pairs = [(f"Line {i} is in front of line {i + 1}.", f"第{i}行在第{i + 1}行前面。") for i in range(200)]
    for name, lines in zip(("en", "zh"), zip(*pairs, strict=True), strict=True):
        Path("text", name).mkdir(parents=True)
        Path("text", name, "lines.txt").write_text("\n\n".join(lines), encoding="utf-8")
        Path(f"pairs.{name}").write_text("\n".join(lines), encoding="utf-8")
    page = (ROOT / "docs" / "multilingual.md").read_text(encoding="utf-8")
    lines = re.search(r"```bash\n(.*?)```", page, re.S)[1].splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    assert [words[1] for words in commands] == ["pretrain", "tokenizer", "corpus", "pretrain"]
    for program, *words in commands:
        assert program == "hf-encoders"
        assert main([*words, *(SHORT if words[0] == "pretrain" else ())]) == 0, words
