"""The quickstart on small and on hostile text, every family and objective; four steps, a tiny vocabulary."""

import json
import math
import re
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, pipeline

from hf_encoders import HfeBertConfig
from hf_encoders.cli import main
from hf_encoders.commands import quickstart as command
from hf_encoders.corpus.python_docs import LabelledDocument
from hf_encoders.evaluation import masked_lm
from hf_encoders.runs import quickstart as steps
from hf_encoders.runs.run import Run
from tests.corpus.corpora import NOUNS, write_corpus


def quickstart(output: Path, *arguments: str) -> list[str]:
    sizes = ["--max-steps", "4", "--vocab-size", "300", "--max-length", "32"]  # byte-level BPE begins with 261
    return ["quickstart", "--output", str(output), *sizes, *arguments]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("family", "objective"),
    [("bert", "sop"), ("roberta", "mlm"), ("albert", "sop"), ("modernbert", "mlm")],
)
def test_text_goes_in_and_a_checked_model_comes_out(family, objective, tmp_path, capsys, forked_loads):
    files = [write_corpus(tmp_path / f"{topic}.txt", 300, topic) for topic in ("alpha", "beta")]
    arguments = quickstart(tmp_path / "out", "--family", family, "--objective", objective, "--input", *map(str, files))
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for how in ("without hf_encoders, trust_remote_code=True", "without hf_encoders, plain transformers"):
        difference = re.search(rf"{re.escape(how)}: .*largest difference of logits (\S+)", printed)
        assert float(difference[1]) < 1e-5
    for row in ("MLM loss", "MLM accuracy", "fine-tuned accuracy", "majority"):
        assert row in printed
    assert ("sentence-pair accuracy" in printed) == (objective != "mlm")
    model = tmp_path / "out" / "model"
    names = {path.name for path in model.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "README.md", "loss_curve.png", f"modeling_{family}.py"} <= names
    assert (model / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((model / "config.json").read_text())["model_type"] == family
    card = (model / "README.md").read_text()
    assert "model-index" in card and "| optimizer steps | 4 |" in card
    assert re.search(r"of alpha.txt, beta.txt, seed 0; python .*, torch ", printed)
    tuned = tmp_path / "out" / "finetuned"
    assert f"classify = pipeline('text-classification', '{tuned}')" in printed
    (found,) = pipeline("text-classification", str(tuned))("The garden was near the river.")
    assert found["label"] in ("alpha.txt", "beta.txt")
    names = {path.name for path in tuned.iterdir()}
    assert {"README.md", "tokenizer.json", "training_record.json", f"modeling_{family}.py"} <= names


def test_no_long_module_and_no_rare_label_decides_what_is_measured():
    """Of each label 30 % of the documents, and at most 20 passages of any, are tested on."""
    long = [LabelledDocument("long", [[f"This is passage {i} of a long module of one library."] for i in range(300)])]
    others = [
        LabelledDocument(
            label, [[f"This is passage {i} of module {n} of library {label}."] for i in range(10)] + [["Too short."]]
        )
        for label in ("a", "b", "c")
        for n in range(20)
    ]
    for seed in range(5):
        data = steps.labelled_passages(long + others, seed)
        counts = {split: Counter(rows["label"]) for split, rows in data.items()}
        assert counts["test"] == dict.fromkeys("abc", 60)
        assert counts["train"] == {"long": 20} | dict.fromkeys("abc", 140)
        modules = [set(re.findall(r"module \d+ of library .", " ".join(rows["text"]))) for rows in data.values()]
        assert not modules[0] & modules[1]


def test_masks_are_shown_where_the_model_is_surest(monkeypatch, capsys):
    """And it is said how many it fills right, of a hundred."""
    asked = []

    class Words(SimpleNamespace):
        def __call__(self, text, **options):
            return {"input_ids": text.split()}

    tokenizer = Words(
        mask_token="[MASK]", convert_tokens_to_string="".join, num_special_tokens_to_add=lambda: 2, model_max_length=64
    )
    model = SimpleNamespace(config=HfeBertConfig())

    def fill(model, tokenizer, text, num_beams):
        words, number = text.split(), int(re.search(r"x(\d+)", text)[1])
        asked.append(number)
        # Right for even numbers; the first sentences are the surest.
        guess = "abcdefgh"[words.index("[MASK]")] if number % 2 == 0 else "wrong"
        return [SimpleNamespace(tokens=[guess], log_probability=math.log(0.9 - number / 200))]

    monkeypatch.setattr(masked_lm, "fill_masks", fill)
    sentences = [f"a b c d e f g h x{number}" for number in range(150)]
    steps.show_filled_masks(model, tokenizer, [LabelledDocument("a", [sentences[:40]])], seed=0)
    printed = capsys.readouterr().out
    assert len(asked) == 40 and "20 of 40 words are its first guess; the 5 of which it is surest:" in printed
    assert [int(number) for number in re.findall(r"x(\d+)", printed)] == [0, 1, 2, 3, 4]
    asked.clear()
    documents = [LabelledDocument("a", [sentences[i : i + 50]]) for i in (0, 50, 100)]
    steps.show_filled_masks(model, tokenizer, documents, seed=0)
    assert len(set(asked)) == 100 and " of 100 words are its first guess" in capsys.readouterr().out


def test_each_family_that_is_offered_is_tested_above():
    """Recipes for several texts, as those of XLM, cannot train on the one text of a quickstart."""
    assert command.families() == ["bert", "roberta", "albert", "modernbert"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Options of two files of text."""
    folder = tmp_path_factory.mktemp("text")
    files = [write_corpus(folder / f"{topic}.txt", 120, topic) for topic in ("alpha", "beta")]
    return ["--input", *map(str, files)]


@pytest.fixture
def without_other_processes(monkeypatch):
    """Loading in fresh processes is tested above."""
    monkeypatch.setattr("hf_encoders.publishing.verification.verify_loading", lambda *arguments: None)


@pytest.mark.slow
def test_stopped_it_goes_on_to_the_same_model_and_finished_it_becomes_longer(
    text, tmp_path, capsys, monkeypatch, without_other_processes
):
    make_trainer = Run.trainer

    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                signal.raise_signal(signal.SIGINT)

    def stopped_trainer(*arguments):
        trainer = make_trainer(*arguments)
        trainer.add_callback(Stop())
        return trainer

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(quickstart(whole, *text)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Run, "trainer", stopped_trainer)
        with pytest.raises(SystemExit) as ended:
            main(quickstart(stopped, *text))
    assert ended.value.code == 128 + signal.SIGINT
    printed = capsys.readouterr().out
    assert "nothing is lost. To resume, give the same command again." in printed
    assert [path.name for path in stopped.glob("checkpoint-*")] == ["checkpoint-3"]
    monkeypatch.setattr(steps, "load_documents", None)  # what was made of the text is there
    assert main(quickstart(stopped, *text)) == 0
    assert "Resuming from" in capsys.readouterr().out
    before = load_file(whole / "model" / "model.safetensors")
    after = load_file(stopped / "model" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)

    assert main([*quickstart(stopped, *text), "--max-steps", "6"]) == 0
    assert "This run is extended from 4 to 6 steps" in capsys.readouterr().out
    assert "| optimizer steps | 6 |" in (stopped / "model" / "README.md").read_text()


@pytest.mark.slow
def test_every_run_into_one_folder_ends_well(text, tmp_path, capsys, without_other_processes):
    """The same again; of another family only with --overwrite, and nothing of the first is left then."""
    output = tmp_path / "out"
    tables = []
    for _ in range(3):
        assert main(quickstart(output, *text)) == 0
        tables.append(capsys.readouterr().out.partition("to compare with")[2].partition("all in")[0])
    assert len(set(tables)) == 1
    for content in ("[]", "{}", '{"documents": [5]}'):
        kept = output / "_text" / steps.HELD_OUT
        whole = kept.read_text()
        kept.write_text(content)
        assert main(quickstart(output, *text)) == 2
        told = capsys.readouterr().err
        assert f"{kept} is damaged (" in told and f"remove {output / '_text'} to have it made again" in told
        assert told.count("\n") == 1
        kept.write_text(whole)
    model = output / "model"
    names = {path.name for path in model.iterdir()}
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    other = ["--family", "roberta"]
    assert main(quickstart(output, *text, *other)) == 2
    told = capsys.readouterr().err
    assert "holds a run with another recipe (family)" in told and "--overwrite" in told and told.count("\n") == 1
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert main(quickstart(output, *text, *other, "--overwrite")) == 0
    assert names - {path.name for path in model.iterdir()} == {"modeling_bert.py", "configuration_bert.py"}
    assert not list(output.glob("_model*")) and not list(output.glob("_replaced*"))


@pytest.mark.slow
def test_hostile_text_trains(tmp_path, capsys, without_other_processes):
    """Empty documents, one-sentence documents, a line of 20,000 characters, invalid UTF-8, NUL bytes, emoji, CRLF."""
    blocks = [
        b"",
        b"\n\n\n",
        b"Only one sentence here.",
        "😀😃 👩‍👩‍👧‍👦 emoji only 😀! More 😀?".encode(),
        b"A sentence with invalid \xff\xfe\x80 bytes. And \x00 a NUL byte.",
        b"x" * 20_000,
        b"word " * 20_000,
        b"Windows line one.\r\nWindows line two.",
        b"   \t  ",
    ]
    good = [f"The {noun} is document {i}. It has a second sentence.".encode() for i in range(12) for noun in NOUNS]
    path = tmp_path / "hostile.txt"
    path.write_bytes(b"\n\n".join([*blocks, *good, *blocks]))
    assert main(quickstart(tmp_path / "out", "--input", str(path))) == 0
    assert "MLM loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "roberta", "--objective", "nsp"], "roberta has no head for sentence pairs"),
        (["--input", "no/such/file.txt"], "no/such/file.txt"),
        (["--max-length", "4"], "max-length"),
        (["--max-steps", "0"], "max-steps"),
        (["--max-steps", "1"], "max_steps=1 leaves a phase of quickstart without a step"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments, message, tmp_path, capsys):
    assert main(quickstart(tmp_path / "out", *arguments)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n".join(f"Document {i} is one sentence" for i in range(50)), "several sentences"),
        ("All of it in a single document. Without a blank line.", "too few"),
        ("", "has 0 document"),
    ],
)
def test_corpora_that_cannot_be_trained_on_are_told(text, message, tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text(text)
    assert main(quickstart(tmp_path / "out", "--input", str(path))) == 2
    assert message in capsys.readouterr().err
