"""`hf-encoders publish`: push a saved directory to the Hub, checked, with its model card, in one commit.

The directory must load in a process without this package and give the same outputs there. The card is generated from
training_record.json; a card that was edited by hand is not replaced. Weights, code, configuration, tokenizer, card,
record and loss curve are pushed; checkpoints, optimizer states and logs are not.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from hf_encoders.inputs import check_checkpoint, check_exists


if TYPE_CHECKING:
    from hf_encoders.publishing.publish import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="folder of model and tokenizer, written by save_pretrained")
    add("--repo", required=True, metavar="OWNER/NAME", help="repository, created if it does not exist")
    add("--private", action="store_true", help="create a private repository")
    add("--revision", metavar="BRANCH", help="branch to commit to, created if it does not exist (default: main)")
    add("--message", default="Publish with hf_encoders", metavar="TEXT", help="commit message")
    add("--license", metavar="ID", help="the Hub's identifier of the weights' licence, such as apache-2.0; recorded")
    add("--language", nargs="+", metavar="CODE", help="languages of the corpus, such as en; recorded")
    add(
        "--base-model", metavar="NAME", help="the Hub's name of the initial checkpoint, if that was a folder; recorded"
    )
    add("--new-card", action="store_true", help="generate the card even if README.md was edited, here or on the Hub")
    trust = "run code in DIR that is not identical to this package's, to check it; read it first"
    add("--trust-remote-code", action="store_true", help=trust)
    add("--dry-run", action="store_true", help="check, and list what would be pushed; no network, nothing written")


def check(arguments: argparse.Namespace) -> None:
    """Refuse a folder that does not exist."""
    check_exists(arguments.directory, "DIR")
    check_checkpoint(arguments.directory, f"DIR {arguments.directory!r}")


def run(arguments: argparse.Namespace) -> int:
    """Publish, or list what would be published.

    Returns:
        `int`: 0 on success, 1 if the push failed, 2 if a check failed.
    """
    import transformers
    from huggingface_hub.errors import HTTPError

    from hf_encoders.loading import hide_bars_of_weights
    from hf_encoders.publishing.publish import check_branch, plan_publication, publish

    check_branch(arguments.revision)
    transformers.logging.set_verbosity_error()
    hide_bars_of_weights()
    print(f"Checking {arguments.directory}: its files, and whether it loads without hf_encoders. It may take minutes.")
    sys.stdout.flush()
    plan = plan_publication(
        arguments.directory,
        arguments.repo,
        license_name=arguments.license,
        language=arguments.language,
        base_model=arguments.base_model,
        new_card=arguments.new_card,
        trust_remote_code=arguments.trust_remote_code,
    )
    print_plan(plan)
    if plan.errors:
        print(f"\nnot published: {len(plan.errors)} error(s) above", file=sys.stderr)
        return 2
    if arguments.dry_run:
        print("\ndry run: nothing was written or pushed")
        return 0
    try:
        url = publish(plan, private=arguments.private, revision=arguments.revision, message=arguments.message)
    # The Hub's refusals and network errors, failed uploads (RuntimeError), and a card that the Hub refuses.
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        print(f"hf-encoders publish: {problem}", file=sys.stderr)
        print(f"A push is one commit: {plan.repo_id} has all of it or nothing.", file=sys.stderr)
        return 1
    print(f"\npublished: {url}")
    return 0


def print_plan(plan: "Plan") -> None:
    """Print what is published, what is not, and the findings."""
    print(f"{plan.directory} -> {plan.repo_id}")
    for name, size in plan.files.items():
        print(f"  {size:>14,} bytes  {name}")
    if plan.files:
        print(f"  {sum(plan.files.values()):>14,} bytes  in {len(plan.files)} files")
    if plan.left:
        print(f"not published: {', '.join(plan.left)}")
    if plan.note:
        print(plan.note)
    for finding in plan.findings:
        print(finding)
