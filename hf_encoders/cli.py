"""The command `hf-encoders`."""

import argparse
import contextlib
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

from hf_encoders import __version__
from hf_encoders.option_names import names_here
from hf_encoders.writing import storage_problem


RESUMED = ("quickstart", "corpus", "pretrain")  # commands that go on where they were stopped


def main(argv: list[str] | None = None) -> int:
    """Run a command; 2 for wrong input and 130 for Ctrl-C, each told in one line."""
    words = sys.argv[1:] if argv is None else argv
    try:
        return run_command(words)
    except KeyboardInterrupt:
        command = words[0] if words else ""
        how = "the same command begins again"
        if command in RESUMED:
            how = "the same command goes on" + ", without --overwrite" * ("--overwrite" in words)
        print(f"\nhf-encoders {command}: stopped by Ctrl-C; {how}.", file=sys.stderr)
        return 128 + signal.SIGINT


def run_command(words: list[str]) -> int:
    """Parse the words of a command line, and run its command."""
    from hf_encoders.commands import (
        benchmark,
        corpus,
        evaluate,
        export,
        finetune,
        plot,
        pretrain,
        publish,
        quickstart,
        sample,
        tokenizer,
    )

    parser = _Parser(prog="hf-encoders", description="Pre-train, fine-tune and publish BERT-family encoders.")
    parser.add_argument("--version", action="version", version=f"hf_encoders {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module, summary in (
        (
            "quickstart",
            quickstart,
            "from text to a fine-tuned encoder in minutes, here, without a download",
        ),
        ("sample", sample, "text and labelled passages to try the other commands on, without a download"),
        ("tokenizer", tokenizer, "text files or a data set to a tokenizer of a family's own kind, with a report"),
        ("corpus", corpus, "text files or a data set to a tokenised corpus to train from, with a report"),
        ("pretrain", pretrain, "a recipe and a corpus to an encoder: planned, resumable, in one process or many"),
        ("finetune", finetune, "an encoder and labelled data to a model for one task, with figures over seeds"),
        ("plot", plot, "curves of runs over each other and over a reference, as picture, table and verdict"),
        ("evaluate", evaluate, "pseudo-perplexity and minimal pairs of a masked language model"),
        ("publish", publish, "a trained directory to the Hub: checked, with its card, in one commit"),
        ("export", export, "to plain transformers, ONNX Runtime or half the size, checked to compute the same"),
        ("benchmark", benchmark, "this package beside transformers' own classes, on your machine, text and settings"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    arguments, unknown = parser.parse_known_args(with_hyphens(words))
    if unknown:
        typed = dict(zip(with_hyphens(words), words, strict=True))
        arguments.parser.given = [typed.get(word, word) for word in unknown]
        arguments.parser.error(f"unrecognized arguments: {' '.join(arguments.parser.given)}")
    arguments.typed = words
    try:
        with contextlib.ExitStack() as arguments.until_end:  # what a command enters, and leaves at its end
            return arguments.run(arguments)
    except Exception as error:
        if isinstance(error, ValueError | OSError) and raised_by_this_package(error):
            problem = str(error)
        elif (problem := storage_problem(error)) is not None:
            problem += ": free some space there, or name another folder or file."
        else:
            raise
        print(f"hf-encoders {arguments.command}: {problem}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Says what options are called here that users of transformers know by another name."""

    given: list[str] = []

    def parse_known_args(self, args=None, namespace=None):
        self.given = list(args or [])
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if told := names_here(self.given, self):
            self.exit(2, f"{self.prog}: {'; '.join(told)}. See {self.prog} --help.\n")
        super().error(message)


def with_hyphens(words: list[str]) -> list[str]:
    """Options and fine-tuning tasks with hyphens in their names, as all are defined here.

    Users of transformers type underscores.

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
    """Whether an error was written for the user, here, or came up somewhere below."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return Path(__file__).parent in Path(traceback.tb_frame.f_code.co_filename).parents


if __name__ == "__main__":
    sys.exit(main())
