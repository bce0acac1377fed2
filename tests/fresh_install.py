"""Installs the package into an empty environment, and trains, fine-tunes and loads there, in about five minutes.

    python tests/fresh_install.py                                          # the lowest versions of pyproject.toml
    python tests/fresh_install.py --python 3.13 --resolution highest
    python tests/fresh_install.py -- --torch-backend cpu                   # what follows `--` is for `uv pip install`

`uv` (`pip install uv`) resolves the versions: pip cannot look for the lowest ones.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml


ROOT = Path(__file__).parents[1]
FAMILIES = ("bert", "roberta", "albert", "electra", "xlnet")  # five objectives between them
SHORT = {"tokenizer": {"vocab_size": 2000}, "phases": [{"steps": 20, "length": 64, "examples": 16}]}
# The saved model gives the same embeddings with this package, with the code beside the weights, and in transformers.
COMPARE = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer, logging

logging.set_verbosity_error()  # heads that an encoder alone does not have
folder = sys.argv[1]
sys.modules["hf_encoders"] = None  # cannot be imported
remote = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
plain = AutoModel.from_pretrained(folder).eval()
del sys.modules["hf_encoders"]
import hf_encoders

hf_encoders.take_over_auto_classes()
ours = AutoModel.from_pretrained(folder)
modules = [type(model).__module__.partition(".")[0] for model in (remote, plain, ours)]
assert modules == ["transformers_modules", "transformers", "hf_encoders"], modules
texts = ["Return the sum of all values.", "Open a file"]
tokenizer = AutoTokenizer.from_pretrained(folder)
expected = hf_encoders.encode(ours, tokenizer, texts)
inputs = tokenizer(texts, padding=True, return_tensors="pt")
mask = inputs["attention_mask"].unsqueeze(-1)
for model in (remote, plain):
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    difference = ((states * mask).sum(1) / mask.sum(1) - expected).abs().max().item()
    assert difference < 1e-5, (type(model), difference)
print("equal embeddings: with the package, with the code beside the weights, and in transformers alone")
"""
VERSIONS = """
import sys
from importlib.metadata import version

names = "torch transformers datasets accelerate tokenizers numpy sentencex".split()
print(f"Python {sys.version.split()[0]}, " + ", ".join(f"{name} {version(name)}" for name in names), flush=True)
"""


def main() -> None:
    """Install, then run each step; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="version or path (default: this one)")
    parser.add_argument("--resolution", default="lowest-direct", choices=("lowest-direct", "highest"))
    parser.add_argument("uv", nargs="*", metavar="-- OPTION", help="options of `uv pip install`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["uv", "venv", "-q", "--python", arguments.python, folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        install = ["uv", "pip", "install", "-q", "--python", python, "--resolution", arguments.resolution]
        subprocess.run([*install, *arguments.uv, ROOT], check=True)
        run_all(folder, python)
    print("passed")


def run_all(folder: Path, python: Path) -> None:
    """Train, fine-tune, export and load an encoder of each objective."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OMP_WAIT_POLICY": "PASSIVE"}

    def run(*words: str | Path) -> None:
        subprocess.run([str(word) for word in words], cwd=folder, env=environment, check=True)

    def hf_encoders(command: str) -> None:
        print(f"\n$ hf-encoders {command}", flush=True)
        run(python.with_name("hf-encoders"), *command.split())

    run(python, "-c", VERSIONS)
    hf_encoders("sample --output sample")
    for family in FAMILIES:
        recipe = yaml.safe_load((ROOT / f"hf_encoders/runs/{family}-minutes.yaml").read_text(encoding="utf-8"))
        (folder / f"{family}.yaml").write_text(yaml.safe_dump(recipe | SHORT), encoding="utf-8")
        hf_encoders(f"pretrain {family}.yaml --corpus sample/text/numpy.txt --output {family}")
        run(python, "-c", COMPARE, f"{family}/model")
    hf_encoders("adapt bert/model --corpus sample/text/accelerate.txt --output adapted --max-steps 4")
    hf_encoders("finetune text-classification --model adapted/model --train sample/train.csv --test sample/test.csv "
                "--output topics --max-steps 4 --seeds 0")  # fmt: skip
    hf_encoders("evaluate --model adapted/model --text sample/text/accelerate.txt --limit 20 --skip-long")
    hf_encoders("export adapted/model --to native --output exported")
    hf_encoders("publish adapted/model --repo me/adapted --license apache-2.0 --dry-run")


if __name__ == "__main__":
    main()
