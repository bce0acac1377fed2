"""The command `hf-encoders`."""

import argparse
import contextlib
import importlib
import logging
import os
import re
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from hf_encoders import __version__
from hf_encoders.inputs import did_you_mean
from hf_encoders.options import closest_options, names_here


COMMANDS = {  # name, which is that of its module in `hf_encoders.commands` -> summary
    "quickstart": "train, load and fine-tune a small encoder on this machine, without a download",
    "sample": "write text and labelled passages to try the other commands on, without a download",
    "tokenizer": "train a tokenizer of a family's kind on text files or a dataset, and report on it",
    "corpus": "tokenize text files or a dataset into a corpus to train on, and report on it",
    "recipe": "list the shipped recipes, and copy one to edit",
    "pretrain": "pre-train an encoder from a recipe and a corpus: planned, resumable, in one process or many",
    "adapt": "continue the pre-training of a published encoder on text of a domain or language",
    "distil": "train a smaller encoder that learns from a larger one, initialised from its layers",
    "finetune": "fine-tune an encoder on labelled data for one task, with metrics over seeds",
    "plot": "compare the curves of runs with each other and with a reference: picture, table, verdict",
    "report": "write one HTML page on a run: before and after, plan and run, curves, predictions",
    "evaluate": "compute pseudo-perplexity and minimal-pair accuracy of a masked language model",
    "publish": "check a trained directory and push it with its card to the Hub, in one commit",
    "export": "convert to plain transformers, ONNX Runtime or half the size, and verify the outputs",
    "benchmark": "compare speed and memory with transformers' own classes on your machine and text",
}
# Loggers of libraries that warn, when they are imported, of what no command uses: kernels for another machine.
QUIET = ("torchao", "torch.utils._pytree")
RESUMED = ("quickstart", "corpus", "pretrain", "adapt", "distil")  # commands that resume where they were stopped


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns 0, 2 for wrong input, or 130 for Ctrl-C; the latter two print one line."""
    words = sys.argv[1:] if argv is None else argv
    try:
        status = run_command(words)
        sys.stdout.flush()  # here, where a pipe that is broken is known
        return status
    except KeyboardInterrupt:
        command = words[0] if words else ""
        how = "the same command starts again"
        if command in RESUMED:
            how = "the same command resumes" + ", without --overwrite" * ("--overwrite" in words)
        elif command == "finetune":
            how = "finished seeds are in --output, and --overwrite starts again"
        print(f"\nhf-encoders {command}: stopped by Ctrl-C; {how}.", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if not reader_has_ended():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def reader_has_ended() -> bool:
    """Return whether nobody reads the output any more, such as `head` after its lines."""
    output = select.poll()
    output.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def run_command(words: list[str]) -> int:
    """Parse the words of a command line, and run its command."""
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    arguments = parse(words)
    try:
        with contextlib.ExitStack() as arguments.until_end:  # released when the command ends
            arguments.check(arguments)  # before torch and transformers are imported
            return arguments.run(arguments)
    except BrokenPipeError:
        raise
    except Exception as error:
        from hf_encoders.writing import storage_problem

        if isinstance(error, ValueError | OSError) and raised_by_this_package(error):
            problem = str(error)
        elif (problem := storage_problem(error)) is not None:
            problem += ": free some space there, or name another folder or file."
        else:
            raise
        print(f"hf-encoders {arguments.command}: {problem}", file=sys.stderr)
        return 2


def parse(words: list[str]) -> argparse.Namespace:
    """Parse a command line; only the command that it names is imported."""
    parser = _Parser(prog="hf-encoders", description="Pre-train, fine-tune and publish encoder-only language models.")
    parser.add_argument("--version", action="version", version=f"hf_encoders {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == named:
            module = importlib.import_module(f"hf_encoders.commands.{name.replace('-', '_')}")
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(check=module.check, run=module.run, parser=command)
    arguments, unknown = parser.parse_known_args(with_hyphens(words))
    if unknown:
        typed = dict(zip(with_hyphens(words), words, strict=True))
        arguments.parser.words = [typed.get(word, word) for word in unknown]
        arguments.parser.error(f"unrecognized arguments: {' '.join(arguments.parser.words)}")
    arguments.typed = words
    return arguments


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole names, and answers others in one line, with the name that was meant."""

    words: list[str] = []

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_known_args(self, args=None, namespace=None):
        self.words = list(args or [])
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = did_you_mean(str(value), [str(choice) for choice in action.choices])
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({choices})")

    def error(self, message: str) -> NoReturn:
        message = "; ".join(names_here(self.words, self)) or message + closest_options(self.words, self)
        self.exit(2, f"{self.prog}: {message.removesuffix('.')}. See {self.prog} --help.\n")


def with_hyphens(words: list[str]) -> list[str]:
    """Return options and fine-tuning tasks with hyphens in their names: users of transformers type underscores.

    >>> with_hyphens(["--learning_rate=1e-4", "--data-name", "my_data", "--", "--a_file"])
    ['--learning-rate=1e-4', '--data-name', 'my_data', '--', '--a_file']
    >>> with_hyphens(["finetune", "text_classification", "--data-name", "a_b"])
    ['finetune', 'text-classification', '--data-name', 'a_b']
    """
    if words[:1] == ["finetune"]:
        words = [words[0], *(word.replace("_", "-") for word in words[1:2]), *words[2:]]
    end = words.index("--") if "--" in words else len(words)
    option = re.compile(r"^--\w[\w-]*(?==|$)")
    return [option.sub(lambda name: name[0].replace("_", "-"), word) for word in words[:end]] + words[end:]


def raised_by_this_package(error: BaseException) -> bool:
    """Return whether an error was raised by this package's own code, with a message for the user."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return Path(__file__).parent in Path(traceback.tb_frame.f_code.co_filename).parents


if __name__ == "__main__":
    sys.exit(main())
