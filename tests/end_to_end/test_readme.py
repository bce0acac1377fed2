"""The README can be followed: its blocks run in the order they stand, and its files exist; in Chinese too."""

import json
import re
from pathlib import Path

import pytest

from tests.hub.loopback_hub import LoopbackHub
from tests.hub.remote_process import run_with_package


ROOT = Path(__file__).parents[2]
README, IN_CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README_zh.md"))
NAMES = re.compile(r"\]\(((?!http)[^)#]+)\)|`((?:hf_encoders|examples|tests|docs|model_cards)/[\w/.]*)`")
# What is cut so that the test takes seconds. Steps do not change what a block needs and leaves.
SHORTER = {
    "max_steps=50": "max_steps=2",
    "max_steps=200": "max_steps=2",
    "--max-steps 200": "--max-steps 4",
    # A token of the stand-in is a letter.
    "--output runs/domain": "--output runs/domain --max-steps 4 --max-length 128",
    "hf-encoders quickstart": "hf-encoders quickstart --max-steps 4 --vocab-size 400 --input sample/text",
}

# Of one process: the repository that the README loads, and then every block.
FOLLOW = """
import contextlib, io, shlex
from pathlib import Path
import transformers
from hf_encoders.cli import main
from hf_encoders.corpus import python_docs
from hf_encoders.runs import quickstart as quickstart_text

# The documentation of all libraries that are installed takes a minute to read; these are among them.
sources, kept = python_docs._sources(), ("python", "numpy", "pandas", "torch")
sources = [(library, source) for library, source in sources if library in kept]
python_docs._sources = lambda: sources
quickstart_text.CHARACTERS_PER_LIBRARY = 60_000
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = special + [chr(i) for i in range(97, 123)] + ["##" + chr(i) for i in range(97, 123)] + ["hello", "model", "."]
tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=128)
config = transformers.BertConfig(
    vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=128,
)
transformers.BertForPreTraining(config).push_to_hub("google-bert/bert-base-uncased")
tokenizer.push_to_hub("google-bert/bert-base-uncased")

names, result = {}, []
for kind, block in argument:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if kind == "python":
            exec(compile(block, "README.md", "exec"), names)
        else:
            for line in block.splitlines():
                program, *words = shlex.split(line, comments=True)
                assert program == "hf-encoders", line
                assert main(words) == 0, line
                for path in Path("sample").rglob("*.*") if words[0] == "sample" else ():  # enough to run on
                    first, *others = path.read_text().splitlines(keepends=True)
                    is_table = path.suffix == ".csv"
                    path.write_text(first + "".join(others[:: len(others) // 400 + 1] if is_table else others[:400]))
    result.append(said.getvalue())
"""


def blocks() -> list[list[str]]:
    """`[language, code]` of the blocks in order, shortened, without those that set up an environment."""
    found = [list(match) for match in re.findall(r"```(bash|python)\n(.*?)```", README, re.S)]
    found = [[language, code] for language, code in found if "python3 -m venv" not in code]
    for long, short in SHORTER.items():
        assert any(long in code for _, code in found), long
        found = [[language, code.replace(long, short)] for language, code in found]
    return found


def files_named(text: str) -> set[str]:
    """Files of the repository in links and code."""
    return {link or name for link, name in NAMES.findall(text)}


def test_a_model_is_loaded_early_and_the_page_is_short():
    lines = README.splitlines()
    assert lines.index("```bash") < 10 and lines.index("```python") < 24
    assert len(lines) <= 170  # a row of a table for each family


def test_every_file_it_names_exists():
    names = files_named(README)
    assert len(names) > 10
    for name in names:
        assert (ROOT / name).exists(), name


def test_in_chinese_it_says_the_same():
    """Blocks are equal, so what runs below runs for both; headings, rows of tables, links, names and figures too."""
    block = re.compile(r"^```.*?^```$", re.S | re.M)
    assert block.findall(README) == block.findall(IN_CHINESE) != []
    prose = [block.sub("", text) for text in (README, IN_CHINESE)]
    for line in (r"^#+ ", r"^\|", r"^- \*\*"):
        english, chinese = (re.findall(line, text, re.M) for text in prose)
        assert english == chinese, line
    for what in (r"https?://[\w./-]+", r"`[^`]+`", r"\d+(?:\.\d+)+|\d\d+|1e-5"):
        english, chinese = (sorted(set(re.findall(what, text))) for text in prose)
        assert english == chinese, what
    assert files_named(README) - {"README_zh.md"} == files_named(IN_CHINESE) - {"README.md"}


@pytest.mark.processes
def test_its_blocks_run_in_order_in_an_empty_folder(tmp_path):
    with LoopbackHub() as hub:
        environment = hub.environment(tmp_path / "home") | {"CUDA_VISIBLE_DEVICES": ""}
        said = run_with_package(FOLLOW, tmp_path, blocks(), environment, timeout=500)
    assert len(re.findall(r"^0\.\d{4} hello", said[0], re.M)) == 3
    assert "eval_accuracy" in said[2] or "eval_loss" in said[2]
    assert (tmp_path / "runs" / "adapted" / "model.safetensors").exists()
    record = json.loads((tmp_path / "runs" / "domain" / "model" / "training_record.json").read_text())
    assert record["base_model"] == "google-bert/bert-base-uncased"
    assert (tmp_path / "exported" / "model.safetensors").exists()
