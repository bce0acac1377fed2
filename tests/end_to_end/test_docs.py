"""The code blocks of docs/ run, and the files they name exist."""

import re
import runpy
import shlex
from pathlib import Path

import datasets
import pytest

import hf_encoders
from benchmarks.tables import with_tables
from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, tokenize_documents, train_tokenizer
from hf_encoders.cli import main
from hf_encoders.commands.finetune import TASKS
from hf_encoders.objectives import objective
from hf_encoders.runs.recipe import recipe_names


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
def test_code_blocks_run(page, tmp_path, monkeypatch, forked_loads):
    monkeypatch.chdir(tmp_path)  # blocks may write files
    load, features = datasets.load_dataset, datasets.Features({"text": datasets.Value("string")})
    stream = datasets.IterableDataset.from_generator(texts, features=features)  # for one of the Hub
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *a, **k: stream if "/" in name else load(name, *a, **k))
    monkeypatch.setattr(objective, "_registered", dict(objective.objectives()))  # a page registers one
    documents = [row["text"].replace("\n", " ").split(". ") for row in texts()]
    tokenizer = train_tokenizer((s for d in documents for s in d), HfeBertConfig, 200, 128)
    names = {"tokenizer": tokenizer, "corpus": tokenize_documents(documents, tokenizer), "texts": texts}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


def test_the_tables_of_measurements_are_those_of_the_results():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum("<!-- table " in text for text in texts) > 1
    assert texts == [with_tables(text) for text in texts], "run python benchmarks/tables.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page):
    for name in re.findall(r"`((?:hf_encoders|examples|tests|model_cards)/[\w/.]+)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_places_of_the_architecture_exist():
    folders = ROOT, ROOT / "hf_encoders", ROOT / "hf_encoders" / "models"
    places = re.findall(r"`([\w/]+\.(?:py|md))`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(places) > 50
    for place in places:
        assert any((folder / place).exists() for folder in folders), place


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tasks_and_recipes_of_commands_exist(page):
    known = {"finetune": {name for name, *_ in TASKS}, "pretrain": set(recipe_names())}
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        for command, name in re.findall(r"^hf-encoders (finetune|pretrain) ([\w-]+)(?= )", block, re.M):
            assert name in known[command], f"hf-encoders {command} {name}"


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


@pytest.mark.slow
def test_commands_of_adapting_run_in_order(tmp_path, monkeypatch):
    """On a small BERT in `checkpoint`, and made-up text in `domain` and `general`."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("domain", "cardiomyopathy"), ("general", "words")):
        documents = [row["text"].replace("words", text) for row in texts()]
        Path(name).mkdir()
        Path(name, "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    lines = [*(row["text"] for row in texts()), "cardiomyopathy"]
    tokenizer = train_tokenizer(lines, HfeBertConfig, 120, 64)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = HfeBertConfig(vocab_size=128, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id, **sizes)
    HfeBertForMaskedLM(config).save_pretrained("checkpoint")
    tokenizer.save_pretrained("checkpoint")
    page = (ROOT / "docs" / "adapting.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line, comments=True) for line in re.search(r"```bash\n(.*?)```", page, re.S)[1].splitlines()
    ]
    assert [words[1] for words in commands] == ["tokenizer", "adapt", "finetune"]
    for name in ("train.csv", "test.csv"):
        datasets.Dataset.from_list([{**row, "label": i % 3} for i, row in enumerate(texts())]).to_csv(name)
    shorter = {"tokenizer": (), "adapt": SHORT, "finetune": SHORT[:-2]}
    for program, *words in commands:
        assert program == "hf-encoders"
        assert main([*words, *shorter[words[0]]]) == 0, words
    assert HfeBertForMaskedLM.from_pretrained("adapted/model").config.vocab_size == 128


def test_every_public_name_has_a_page():
    """`mkdocs build --strict` of `.ci/run` makes them."""
    pytest.importorskip("mkdocs", reason="of the extra docs, which .ci/run installs after the tests")
    pages = {name for _, name, _ in runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))["public_objects"]()}
    assert pages == {*hf_encoders.__all__} - {"__version__"}
