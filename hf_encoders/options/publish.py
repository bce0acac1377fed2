"""`hf-encoders publish`: push a saved directory to the Hub, checked, with its model card, in one commit.

The directory must load in a process without this package and give the same outputs there. The card is generated from
training_record.json; a card that was edited by hand is not replaced. Weights, code, configuration, tokenizer, card,
record and loss curve are pushed; checkpoints, optimizer states and logs are not.
"""

import argparse

from hf_encoders.inputs import check_checkpoint, check_exists


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("directory", metavar="DIR", help="folder of model and tokenizer, written by save_pretrained")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help="repository, created if it does not exist")
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument(
        "--revision", metavar="BRANCH", help="branch to commit to, created if it does not exist (default: main)"
    )
    parser.add_argument("--message", default="Publish with hf_encoders", metavar="TEXT", help="commit message")
    parser.add_argument(
        "--license", metavar="ID", help="licence of the weights by the Hub's identifier, such as apache-2.0; recorded"
    )
    parser.add_argument("--language", nargs="+", metavar="CODE", help="languages of the corpus, such as en; recorded")
    parser.add_argument(
        "--base-model",
        metavar="NAME",
        help="the Hub's name of the checkpoint that training began from, where that was a folder; recorded",
    )
    parser.add_argument(
        "--new-card", action="store_true", help="generate the card even if README.md was edited, here or on the Hub"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code in DIR that is not identical to this package's, to check it; read it first",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check, and list what would be pushed; no network, nothing written"
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse a folder that does not exist."""
    check_exists(arguments.directory, "DIR")
    check_checkpoint(arguments.directory, f"DIR {arguments.directory!r}")
