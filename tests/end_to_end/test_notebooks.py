"""The notebooks run from their first cell to their last, with small settings and a small encoder."""

import json
from pathlib import Path

import pytest

from tests.hub.remote_process import run_with_package


NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
SMALL = {
    "adapt": {"CHECKPOINT": "checkpoint", "STEPS": 4, "MAX_LENGTH": 32, "LABELS": 60},
    "entities": {"CHECKPOINT": "checkpoint", "STEPS": 10, "SENTENCES": 60},
    "pretrain": {"STEPS": 15, "HIDDEN_SIZE": 64},
}
# In a process of its own, because a notebook may take over transformers' Auto classes.
RUN = """
import shlex, sys, types
from pathlib import Path
import matplotlib
matplotlib.use("Agg")
from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, train_tokenizer
from hf_encoders.cli import main
from hf_encoders.corpus import python_docs

def command(line):
    program, *words = shlex.split(line)
    assert program == "hf-encoders" and main(words) == 0, line

cells, small = argument
sys.modules["IPython.display"] = types.SimpleNamespace(Image=lambda path: Path(path).stat())
# The documentation of all libraries that are installed takes a minute to read; these are among them.
sources = [(library, source) for library, source in python_docs._sources() if library in ("python", "numpy", "torch")]
python_docs._sources = lambda: sources
lines = ["The list of strings is sorted, and a ValueError is raised.", "Return an empty dictionary of the module."]
tokenizer = train_tokenizer(5 * lines, HfeBertConfig, 120, 64)
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
config = HfeBertConfig(vocab_size=128, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id, **sizes)
HfeBertForMaskedLM(config).save_pretrained("checkpoint")
tokenizer.save_pretrained("checkpoint")
names = {"command": command}
for source, sets_parameters in cells:
    lines = [f"command(f{line[1:]!r})" if line.startswith("!") else line for line in source.splitlines()]
    exec(compile("\\n".join(lines), "cell", "exec"), names)
    if sets_parameters:
        assert small.keys() <= names.keys()
        names |= small
result = sorted(path.as_posix() for path in Path("runs").glob("*"))
"""
RUNS = {"adapt": ["runs/adapted", "runs/topics"], "entities": ["runs/tagger"], "pretrain": ["runs/small"]}


def code_cells(name):
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.processes
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs(name, tmp_path):
    cells = [("".join(cell["source"]), "parameters" in cell["metadata"].get("tags", ())) for cell in code_cells(name)]
    assert run_with_package(RUN, tmp_path, [cells, SMALL[name]], timeout=300) == RUNS[name]


def test_notebooks_hold_what_they_printed_and_their_pictures():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == SMALL.keys()
    for name in SMALL:
        outputs = [output for cell in code_cells(name) for output in cell["outputs"]]
        assert any("image/png" in output.get("data", {}) for output in outputs), name
        assert not any(output["output_type"] == "error" for output in outputs)
