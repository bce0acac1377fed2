"""The command line as a whole: spelling of options, usage of what was called, and errors in one line."""

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from safetensors import SafetensorError

from hf_encoders import cli
from hf_encoders.commands import export, finetune, pretrain
from hf_encoders.commands.finetune import add_training_arguments
from hf_encoders.options import NAMES, SET_BY_FINETUNING, SET_BY_RUN, field_options, given_fields


FINETUNE, TUNED = ["finetune", "text-classification"], ["--model", "m", "--train", "t", "--output", "o"]
PRETRAIN, TEXT = ["pretrain", "bert-minutes"], ["--corpus", "c", "--output", "o"]
EXPORT = ["export", "m", "--to", "native", "--output", "o"]


@pytest.fixture
def unchecked(monkeypatch):
    """Accept paths of nothing."""
    for module in (finetune, pretrain):
        monkeypatch.setattr(module, "check", lambda arguments: None)


@pytest.fixture
def called(monkeypatch, unchecked):
    """The arguments that the commands were run with."""
    seen = []
    for module in (finetune, export, pretrain):
        monkeypatch.setattr(module, "run", lambda arguments: seen.append(arguments) or 0)
    return seen


def test_underscores_and_hyphens_are_the_same_in_options_and_nowhere_else(called):
    words = ["--model", "a_b", "--output=c_d", "--train", "e_f.csv", "--text-column", "my_text"]
    fields = ["--learning-rate=2e-3", "--num-train-epochs", "1"]
    assert cli.main(["finetune", "text-classification", *words, *fields, "--batch-size", "7"]) == 0
    words, fields = (
        [word.replace("text-c", "text_c") for word in words],
        ["--learning_rate=2e-3", "--num_train_epochs", "1"],
    )
    assert cli.main(["finetune", "text_classification", *words, *fields, "--per_device_train_batch_size", "7"]) == 0
    for arguments in called:
        assert (arguments.task, arguments.model, arguments.output) == ("text-classification", "a_b", "c_d")
        assert (arguments.train, arguments.text_column) == ("e_f.csv", "my_text")
        assert (arguments.learning_rate, arguments.per_device_train_batch_size) == (2e-3, 7)
        assert arguments.num_train_epochs == 1.0
    assert len(called) == 2


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([*FINETUNE, *TUNED, "--nope"], "finetune text-classification"),
        ([*EXPORT, "--nope"], "export"),
        (["--nope", *EXPORT], "export"),
        (["nope"], ""),
    ],
)
def test_a_wrong_option_is_told_in_one_line_with_the_command_that_was_called(words, command, capsys, called):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2 and called == []
    said, called_as = capsys.readouterr().err, f"hf-encoders {command}".strip()
    assert said.startswith(f"{called_as}: ") and said.endswith(f"See {called_as} --help.\n") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*FINETUNE, "--model_name_or_path", "m"], "--model_name_or_path: use --model"),
        ([*FINETUNE, "--validation_file", "t", "--test_file", "t"], "use --validation; --test_file: use --test"),
        ([*FINETUNE, "--do_train", "--do_eval"], "--do_train: leave it out: the command trains; --do_eval: leave"),
        ([*FINETUNE, "--warmup_ratio", "0.1"], "--warmup_ratio: use --warmup"),
        ([*FINETUNE, "--save_steps", "9"], "--save_steps: use --eval-steps"),
        ([*PRETRAIN, "--train_file", "t"], "--train_file: use --corpus"),
        ([*PRETRAIN, *TEXT, "--mlm_probability", "0.2"], "use --set masking.mask_probability"),
        ([*PRETRAIN, *TEXT, "--model_name_or_path", "m"], "use RECIPE, whose model"),
        ([*PRETRAIN, *TEXT, "--num-train-epochs", "3"], "_epochs: use --max-steps"),
        ([*PRETRAIN, *TEXT, "--remove_unused_columns"], "leave it out: examples are not"),
        (["publish", "--model_name_or_path", "m"], "--model_name_or_path: use DIR"),
    ],
)
def test_options_of_transformers_are_answered_with_the_name_here(words, told, capsys, called):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and called == []
    assert told in said and said.startswith(f"hf-encoders {words[0]}") and said.count("\n") == 1


@pytest.mark.parametrize("words", [[*FINETUNE, *TUNED], ["sample"]])
def test_an_unknown_option_is_shown_as_it_was_typed(words, capsys, called):
    with pytest.raises(SystemExit):
        cli.main([*words, "--my_own-option", "a_b", "--x_y=1"])
    assert "unrecognized arguments: --my_own-option a_b --x_y=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            [*PRETRAIN, *TEXT, "--learning-rte", "1e-4"],
            "--learning-rte 1e-4 (--learning-rte: did you mean --learning-rate?)",
        ),
        ([*PRETRAIN, "--corpu", "c", "--output", "o"], "required: --corpus (--corpu: did you mean --corpus?)"),
        ([*FINETUNE, "--model", "m", "--output", "o", "--seed", "3"], "--seed: use --seeds"),
        (["export", "m", "--to", "onx", "--output", "o"], "'onx' (did you mean onnx? choose from native, onnx, saf"),
        (["pretrian"], "'pretrian' (did you mean pretrain? choose from quickstart, "),
    ],
)
def test_no_abbreviation_is_taken_and_a_question_names_what_was_meant(words, told, capsys, called):
    with pytest.raises(SystemExit):
        cli.main(words)
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1 and called == []


def test_fields_are_options_of_pretrain_and_finetune_alike(called):
    fields = ["--optim", "lamb", "--lr-scheduler-type=cosine", "--adam_epsilon", "1e-7", "--bf16", "--tf32", "False"]
    given = {"optim": "lamb", "lr_scheduler_type": "cosine", "adam_epsilon": 1e-7, "bf16": True, "tf32": False}
    assert cli.main([*PRETRAIN, *TEXT, *fields]) == 0
    assert cli.main([*FINETUNE, *TUNED, *fields]) == 0
    assert [given_fields(arguments) for arguments in called] == [given, given]


def test_every_field_is_an_option_unless_the_command_sets_it():
    for add, set_by_command in ((pretrain.add_arguments, SET_BY_RUN), (add_training_arguments, SET_BY_FINETUNING)):
        parser = argparse.ArgumentParser()
        add(parser)
        assert {*parser._option_string_actions} >= {
            f"--{field.replace('_', '-')}" for field in field_options().keys() - {*NAMES, *set_by_command}
        }


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--optim", "lam", "choose from .*lamb"), ("--adam-epsilon", "x", "invalid float value"),
     ("--bf16", "perhaps", "'perhaps' must be true or false")],
)  # fmt: skip
def test_a_wrong_value_of_a_field_names_the_option(option, value, told, capsys, called):
    for words in (PRETRAIN, FINETUNE):
        with pytest.raises(SystemExit):
            cli.main([*words, option, value])
        assert re.search(f"argument .*{option}.*{told}", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/model.onnx"), "No space left on device: 'a/model.onnx'"),
        (SafetensorError("Error while serializing: I/O error: ... (os error 30)"), "Read-only file system"),
    ],
)
def test_a_disk_that_cannot_be_written_is_told_in_one_line_whoever_met_it(error, told, monkeypatch, capsys):
    def fail(arguments):
        raise RuntimeError("of a library") from error

    monkeypatch.setattr(export, "run", fail)
    assert cli.main(EXPORT) == 2
    assert (
        capsys.readouterr().err
        == f"hf-encoders export: {told}: free some space there, or name another folder or file.\n"
    )


@pytest.mark.parametrize(
    ("words", "how"),
    [
        ([*PRETRAIN, *TEXT], "the same command resumes"),
        ([*PRETRAIN, *TEXT, "--overwrite"], "the same command resumes, without --overwrite"),
        (EXPORT, "the same command starts again"),
        ([*FINETUNE, *TUNED], "finished seeds are in --output, and --overwrite starts again"),
    ],
)
def test_ctrl_c_is_told_in_one_line(words, how, monkeypatch, capsys, request, unchecked):
    # What a shell starts in the background ignores the signal.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    left = []

    def stopped(arguments):
        arguments.until_end.callback(left.append, "the folder is unlocked")
        signal.raise_signal(signal.SIGINT)

    for module in (export, finetune, pretrain):
        monkeypatch.setattr(module, "run", stopped)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == f"\nhf-encoders {words[0]}: stopped by Ctrl-C; {how}.\n"
    assert left == ["the folder is unlocked"]


def test_other_errors_keep_their_traceback(monkeypatch):
    def fail(arguments):
        raise KeyError("a fault of the program")

    monkeypatch.setattr(export, "run", fail)
    with pytest.raises(KeyError, match="a fault of the program"):
        cli.main(EXPORT)


@pytest.mark.processes
def test_help_and_version_import_neither_torch_nor_transformers():
    code = (
        "import sys, contextlib\nfrom hf_encoders import cli\n"
        "for option in ('--help', '--version'):\n"
        "    with contextlib.suppress(SystemExit):\n        cli.main([option])\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"
    assert all(f"\n    {name}" in said for name in cli.COMMANDS) and "hf_encoders " in said


def test_every_command_has_its_module_and_says_what_it_does():
    modules = {path.stem for path in Path(cli.__file__).with_name("commands").glob("[!_]*.py")}
    assert modules == {name.replace("-", "_") for name in cli.COMMANDS}


@pytest.mark.processes
def test_public_classes_are_imported_and_registered_at_their_first_use():
    code = (
        "import sys, hf_encoders\nassert 'torch' not in sys.modules\n"
        "from transformers import AutoModelForMaskedLM\n"
        "config = hf_encoders.HfeBertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)\n"
        "print(type(AutoModelForMaskedLM.from_config(config)).__name__, 'HfeAlbertModel' in dir(hf_encoders))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["HfeBertForMaskedLM", "True"]


@pytest.mark.processes
@pytest.mark.parametrize(("given", "used"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_of_a_script_sleep_while_they_wait_unless_it_says_otherwise(given, used):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
    code = "import sys, os, hf_encoders; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.split() == [used, "False"]


@pytest.mark.processes
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_ends_first_is_no_error(unbuffered, monkeypatch):
    """`hf-encoders recipe | head -1`: output stops, nothing is said."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-c", "import sys; from hf_encoders.cli import main; sys.exit(main(['recipe']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 128 + signal.SIGPIPE


def test_a_broken_pipe_elsewhere_is_an_error(monkeypatch, unchecked):
    """Of an upload or a worker, while the output is read."""

    def broken(arguments):
        raise BrokenPipeError("elsewhere")

    monkeypatch.setattr(export, "run", broken)
    monkeypatch.setattr(cli, "reader_has_ended", lambda: False)
    with pytest.raises(BrokenPipeError, match="elsewhere"):
        cli.main(EXPORT)
