"""`hf-encoders publish`: a saved directory to the Hub, checked, with its model card, in one commit.

The directory is loaded where this package cannot be imported and must compute the same there. The card is made of
training_record.json; one that was edited by hand is left as it is. What is pushed: weights, code, configuration,
tokenizer, card, record and loss curve; checkpoints, optimizer states and logs stay here. If the push fails, nothing
of it is on the Hub.
"""

import argparse
import sys

import transformers

from hf_encoders.publishing.publish import Plan, PublishError, check_branch, plan_publication, publish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("directory", metavar="DIR", help="folder of model and tokenizer, as saved by save_pretrained")
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help="repository, made if it is not there")
    parser.add_argument("--private", action="store_true", help="make the new repository private")
    parser.add_argument(
        "--revision", metavar="BRANCH", help="branch to commit to, made if it is not there (default: main)"
    )
    parser.add_argument("--message", metavar="TEXT", help="message of the commit")
    parser.add_argument(
        "--license", metavar="ID", help="licence of the weights by the Hub's identifier, such as apache-2.0; recorded"
    )
    parser.add_argument("--language", nargs="+", metavar="CODE", help="languages of the corpus, such as en; recorded")
    parser.add_argument(
        "--new-card", action="store_true", help="generate the card also where README.md was edited, here or on the Hub"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the code in DIR, to check it, also where it is not this package's own; read it first",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check, and list what would be pushed; no network, nothing written"
    )


def run(arguments: argparse.Namespace) -> int:
    """Publish, or show what would be; 0 when it could be done, 1 when the Hub refused, 2 when a check did."""
    check_branch(arguments.revision)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan = plan_publication(
        arguments.directory,
        arguments.repo,
        license_name=arguments.license,
        language=arguments.language,
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
    except PublishError as error:
        print(f"hf-encoders publish: {error}", file=sys.stderr)
        return 1
    print(f"\npublished: {url}")
    return 0


def print_plan(plan: Plan) -> None:
    """What goes, what stays, what is missing."""
    print(f"{plan.directory} -> {plan.repo_id}")
    for name, size in plan.files.items():
        print(f"  {size:>14,} bytes  {name}")
    if plan.files:
        print(f"  {sum(plan.files.values()):>14,} bytes  in {len(plan.files)} files")
    if plan.left:
        print(f"stays here: {', '.join(plan.left)}")
    for note in plan.notes:
        print(note)
    for finding in plan.findings:
        print(finding)
