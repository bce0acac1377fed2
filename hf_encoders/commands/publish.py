"""Run `hf-encoders publish`; its options are in `hf_encoders/options/publish.py`."""

import argparse
import sys

import transformers
from huggingface_hub.errors import HTTPError

from hf_encoders.publishing.publish import Plan, check_branch, plan_publication, publish


def run(arguments: argparse.Namespace) -> int:
    """Publish, or list what would be published.

    Returns:
        `int`: 0 on success, 1 if the push failed, 2 if a check failed.
    """
    check_branch(arguments.revision)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    what = "its files, and whether it loads without hf_encoders. A large model takes minutes."
    print(f"Checking {arguments.directory}: {what}", flush=True)
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


def print_plan(plan: Plan) -> None:
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
