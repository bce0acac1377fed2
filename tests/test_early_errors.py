"""Help and mistakes of every command, told where torch, transformers, datasets and accelerate cannot be imported."""

import json
import os
import re
import subprocess
import sys

import pytest

from hf_encoders.cli import COMMANDS


# Importing one of them ends the command; finding it, as for the source of TrainingArguments, does not.
SCRIPT = """
import contextlib, importlib.machinery, io, json, sys

class Imported(BaseException):
    pass

class Refusing:
    def create_module(self, spec):
        raise Imported(f"{spec.name} is imported")

    def exec_module(self, module):
        pass

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("torch", "transformers", "datasets", "accelerate", "numpy"):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.loader = Refusing()
            return spec

sys.meta_path.insert(0, Finder)
import importlib.util
installed = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("onnx", "onnxscript", "jieba") else installed(name)
from hf_encoders import cli

told = []
for words in json.load(sys.stdin):
    out, code = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code
        except Imported as error:
            code = str(error)
    told.append([code, out.getvalue()])
print(json.dumps(told))
"""
# A right command line of each command, whose files are written below.
RIGHT = {
    "quickstart": [],
    "sample": ["--output", "new"],
    "tokenizer": ["--input", "text.txt", "--kind", "bpe", "--output", "new"],
    "corpus": ["--input", "text.txt", "--tokenizer", "model", "--output", "new"],
    "recipe": ["bert-minutes", "--output", "new.yaml"],
    "pretrain": ["bert-minutes", "--corpus", "text.txt", "--output", "new"],
    "adapt": ["model", "--corpus", "text.txt", "--output", "new"],
    "distil": ["model", "--corpus", "text.txt", "--output", "new"],
    "finetune": ["text-classification", "--model", "model", "--train", "rows.csv", "--output", "new"],
    "plot": ["model"],
    "report": ["run"],
    "evaluate": ["--model", "model", "--text", "text.txt"],
    "publish": ["model", "--repo", "o/n"],
    "export": ["model", "--to", "native", "--output", "new"],
    "benchmark": [],
}
NOT_THERE = "does not exist: check the spelling"
# Command, words that are added or, in pairs, replaced, and what is told.
MISTAKES = [
    ("quickstart", ["--max-steps", "0"], "--max-steps 0: must be at least 1"),
    ("quickstart", ["--family", "brt"], "'brt' (did you mean bert? choose from bert, roberta, albert, modernbert)"),
    ("quickstart", ["--objective", "nps"], "did you mean nsp?"),
    ("report", {"run": "no"}, f"RUN 'no' {NOT_THERE}"),
    ("report", {"run": "model"}, "model holds no run, no run.json and no results.json"),
    ("sample", ["--seed", "x"], "argument --seed: invalid int value"),
    ("sample", {"new": "model"}, "holds files already"),
    ("tokenizer", {"bpe": "bp"}, "did you mean bpe?"),
    ("tokenizer", {"text.txt": "no.txt"}, f"--input: 'no.txt' {NOT_THERE}"),
    ("tokenizer", {"text.txt": "book.epub"}, "--input: 'book.epub' is a ZIP archive, EPUB"),
    ("tokenizer", {"--kind": "--extend", "bpe": "./no"}, f"--extend './no' {NOT_THERE}"),
    ("tokenizer", {"--input": "--dataset", "text.txt": "./no"}, f"--dataset './no' {NOT_THERE}"),
    ("corpus", {"model": "./no"}, f"--tokenizer './no' {NOT_THERE}"),
    ("corpus", ["--word-segmenter", "jeiba"], "did you mean jieba?"),
    ("corpus", ["--word-segmenter", "jieba"], "not installed (jieba): pip install 'hf_encoders[chinese]'"),
    ("recipe", {"bert-minutes": "bert-minute"}, "shipped recipes: did you mean bert-minutes?"),
    ("recipe", {"new.yaml": "text.txt"}, "--output text.txt exists"),
    ("pretrain", ["--set", "masking"], "--set masking: give KEY=VALUE"),
    ("pretrain", {"bert-minutes": "bert-minute"}, "shipped recipes: did you mean bert-minutes?"),
    ("pretrain", {"text.txt": "no.txt"}, f"--corpus: 'no.txt' {NOT_THERE}"),
    ("pretrain", {"text.txt": "en=no.txt"}, f"--corpus en=...: 'no.txt' {NOT_THERE}"),
    ("pretrain", {"new": "text.txt"}, "text.txt is a file: name a folder"),
    ("pretrain", ["--tokenizer", "./no"], f"--tokenizer './no' {NOT_THERE}"),
    ("pretrain", ["--from", "./no"], f"--from './no' {NOT_THERE}"),
    ("pretrain", ["--learning-rate", "fast"], "argument --learning-rate: invalid float value: 'fast'"),
    ("pretrain", ["--optim", "adafctor"], "did you mean adafactor?"),
    ("pretrain", ["--validation-share", "2"], "--validation-share 2.0: must be above 0 and below 1"),
    ("pretrain", ["--measure"], "--measure is for --plan"),
    ("adapt", ["--replay", "1"], "--replay 1.0: it is a share in [0, 1)"),
    ("adapt", {"model": "run"}, "CHECKPOINT 'run' has no config.json: give 'run/model', which has one"),
    ("adapt", {"model": "./no"}, f"CHECKPOINT './no' {NOT_THERE}"),
    ("adapt", ["--recipe", "adapt-minute"], "did you mean adapt-minutes?"),
    ("adapt", ["--keep", "no.txt"], f"--keep: 'no.txt' {NOT_THERE}"),
    ("adapt", ["--positions", "copies"], "did you mean copy?"),
    ("distil", {"model": "./no"}, f"TEACHER './no' {NOT_THERE}"),
    ("distil", ["--recipe", "distilbert"], "did you mean distilbert-base?"),
    ("finetune", {"text-classification": "text-clasification"}, "did you mean text-classification?"),
    ("finetune", {"rows.csv": "no.csv"}, f"--train 'no.csv' {NOT_THERE}"),
    ("finetune", {"model": "tokens"}, "--model 'tokens' has no config.json: give a folder that save_pretrained wrote"),
    ("finetune", ["--seeds", "1", "1"], "--seeds [1, 1]: a seed occurs twice"),
    ("finetune", {"model": "./no"}, f"--model './no' {NOT_THERE}"),
    ("finetune", ["--epochs", "x"], "argument --epochs/--num-train-epochs: invalid float value"),
    ("finetune", ["--format", "cvs"], "did you mean csv?"),
    ("plot", {"model": "no"}, f"RUN 'no' {NOT_THERE}"),
    ("plot", ["--against", "step"], "did you mean steps?"),
    ("plot", ["--output", "no/picture.png"], "its folder does not exist"),
    ("evaluate", {"model": "./no"}, f"--model './no' {NOT_THERE}"),
    ("evaluate", {"text.txt": "no.txt"}, f"--text: 'no.txt' {NOT_THERE}"),
    ("evaluate", ["--pairs", "no.jsonl"], f"--pairs 'no.jsonl' {NOT_THERE}"),
    ("evaluate", ["--classes", "transformer"], "did you mean transformers?"),
    ("publish", {"model": "text.txt"}, "DIR 'text.txt' is a file"),
    ("export", {"model": "./no"}, f"DIR_OR_NAME './no' {NOT_THERE}"),
    ("export", {"native": "onx"}, "did you mean onnx?"),
    ("export", {"native": "onnx"}, "not installed (onnx, onnxscript): pip install 'hf_encoders[onnx]'"),
    ("export", {"new": "text.txt"}, "exists and is not empty"),
    ("benchmark", ["--family", "brt"], "did you mean bert?"),
    ("benchmark", ["--rounds", "0"], "--rounds 0: must be at least 1"),
    ("benchmark", ["--text", "no.txt"], f"--text: 'no.txt' {NOT_THERE}"),
    *((name, ["--no-such-option"], "unrecognized arguments: --no-such-option") for name in COMMANDS),
]  # fmt: skip


def with_mistake(command, mistake):
    words = [command, *RIGHT[command]]
    return [mistake.get(word, word) for word in words] if isinstance(mistake, dict) else [*words, *mistake]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Exit status and output of each mistake, and of each help, by their words."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "text.txt").write_text("A sentence.\n")
    (folder / "rows.csv").write_text("text,label\ngood,1\nbad,0\n")
    (folder / "book.epub").write_bytes(b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/epub+zip" + b"text " * 500)
    for name in ("model/config.json", "run/model/config.json", "tokens/tokenizer.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("{}")
    (folder / "run" / "run.json").write_text("{}")
    before = sorted(folder.rglob("*"))
    lines = [with_mistake(command, mistake) for command, mistake, _ in MISTAKES]
    lines += [[name, "--help"] for name in COMMANDS] + [["finetune", "question-answering", "--help"]]
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(lines), capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(folder.rglob("*")) == before
    return {tuple(words): found for words, found in zip(lines, json.loads(done.stdout), strict=True)}


@pytest.mark.processes
@pytest.mark.parametrize(("command", "mistake", "message"), MISTAKES)
def test_a_mistake_is_told_in_one_line_before_anything_is_imported(told, command, mistake, message):
    code, said = told[tuple(with_mistake(command, mistake))]
    assert code == 2 and message in said
    assert said.startswith(f"hf-encoders {command}") and said.count("\n") == 1


@pytest.mark.processes
@pytest.mark.parametrize("command", [*COMMANDS, "finetune question-answering"])
def test_help_is_told_before_anything_is_imported(told, command):
    code, said = told[(*command.split(), "--help")]
    assert code == 0 and said.startswith(f"usage: hf-encoders {command} ")
    assert "Extractive question answering" in said or command != "finetune question-answering"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "recipes"),
    [
        (
            "pretrain",
            {"bert-base": "BERT base as Devlin et al. 2018 trained it", "xlnet-minutes": "An XLNet for a laptop"},
        ),
        ("adapt", {"adapt-minutes": "`adapt` for a small encoder on a laptop's CPU in minutes"}),
        ("distil", {"distilbert-base": "DistilBERT as Sanh et al. 2019 distilled it"}),
    ],
)
def test_help_lists_the_options_of_training_and_says_what_each_recipe_is(told, command, recipes):
    said = told[(command, "--help")][1]
    for option in ("--max-steps N", "--learning-rate RATE", "--per-device-train-batch-size ROWS"):
        assert f"\n  {option}" in said.partition("\ntraining:\n")[2]
    for name, phrase in recipes.items():
        assert re.search(rf"\n  {name} +{re.escape(phrase)}", said)
