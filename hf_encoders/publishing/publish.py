"""Publishes a saved directory on the Hub: checks, card, and one commit that arrives whole or not at all."""

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from hf_encoders.errors import first_line
from hf_encoders.loading import read_config
from hf_encoders.publishing.card_metadata import is_repo_id
from hf_encoders.publishing.checks import Finding, check_card, check_directory, check_secrets, shown_files
from hf_encoders.publishing.hub_errors import PublishError, one_line
from hf_encoders.publishing.model_card import make_model_card, was_edited
from hf_encoders.publishing.saved_model import load_source, saved_head
from hf_encoders.records.run_files import RECORD_FILE
from hf_encoders.records.training_record import TrainingRecord
from hf_encoders.saved_files import (
    CARD_FILE,
    CURVE_FILE,
    INDEX_FILE,
    TOKENIZER_FILES,
    is_plain,
    leads_out,
    published_files,
)
from hf_encoders.writing import check_folder


COMMIT_HASH = re.compile("[0-9a-f]{40}")
OLD_WEIGHTS = ("*.safetensors", INDEX_FILE, "pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass
class Plan:
    """What would be published.

    Args:
        directory (`Path`): where it lies.
        repo_id (`str`): where it goes.
        files (`dict`): size in bytes by name; card and record in the form they will have.
        left (`list` of `str`): what lies in the directory and stays there.
        findings (`list` of `Finding`): what the checks say.
        texts (`dict`): what is written to the directory before the push, by name.
        notes (`list` of `str`): what was decided on the way.
        new_card (`bool`): whether a card that was edited, here or on the Hub, is replaced.
    """

    directory: Path
    repo_id: str
    files: dict[str, int]
    left: list[str]
    findings: list[Finding]
    texts: dict[str, str]
    notes: list[str] = field(default_factory=list)
    new_card: bool = False

    @property
    def errors(self) -> list[str]:
        """What keeps it from being published."""
        return [finding.text for finding in self.findings if finding.is_error]


def plan_publication(
    directory: str | Path,
    repo_id: str,
    *,
    license_name: str | None = None,
    language: list[str] | None = None,
    new_card: bool = False,
    trust_remote_code: bool = False,
) -> Plan:
    """Check a directory, make its card, and list what goes to the Hub. Touches no network and writes nothing.

    Args:
        directory: what `save_pretrained` wrote, tokenizer included.
        repo_id (`str`): `owner/name`.
        license_name (`str`, *optional*): the Hub's identifier of the licence of the weights; kept in the record.
        language (`list` of `str`, *optional*): codes of the corpus's languages; kept in the record.
        new_card (`bool`): replace a card that was edited by hand; otherwise one in the directory is published as it
            is, and one on the Hub keeps a generated card from being pushed over it.
        trust_remote_code (`bool`): run code of the directory, to check it, that is not this package's own.

    Raises:
        ValueError: for a name that is none, or for facts that a card edited by hand would not say.
    """
    directory = Path(directory)
    if not is_repo_id(repo_id) or "/" not in repo_id:
        raise ValueError(f"repo={repo_id!r} is no name of a repository: use owner/name, of letters, digits, - _ and .")
    findings = check_directory(directory, trust_remote_code)
    if any(finding.is_error for finding in findings):
        return Plan(directory, repo_id, {}, [], findings, {})
    record = TrainingRecord.load(directory)
    stated = {"license": license_name, "language": language}
    record = replace(record, **{name: value for name, value in stated.items() if value})
    has_curve = (directory / CURVE_FILE).exists()
    card, note = _card(directory, repo_id, record, has_curve, new_card, any(stated.values()))
    texts = {CARD_FILE: card}
    path = directory / RECORD_FILE
    # Also where it was written by hand, or by an earlier version: what is local or secret is not in it any more.
    if any(stated.values()) or (path.exists() and record.to_json() != path.read_text(encoding="utf-8")):
        texts[RECORD_FILE] = record.to_json()
    pictures = {name for name in shown_files(card) if _lies_in(directory, name)}
    names = published_files(directory) | set(texts) | pictures
    findings += check_secrets(directory, names, texts)
    sizes = {name: len(texts[name].encode()) if name in texts else (directory / name).stat().st_size for name in names}
    gone = {Path(name).parts[0] for name in names}
    left = sorted(path.name + "/" * path.is_dir() for path in directory.iterdir() if path.name not in gone)
    findings = sorted([*findings, *check_card(card, record, list(names))], key=lambda finding: not finding.is_error)
    return Plan(directory, repo_id, dict(sorted(sizes.items())), left, findings, texts, [note], new_card)


def check_branch(revision: str | None) -> None:
    """Raise ValueError for a commit's hash: nothing can be pushed there."""
    if revision and COMMIT_HASH.fullmatch(revision):
        raise ValueError(f"revision={revision!r} is a commit, and commits go on top of a branch: name a branch.")


def publish(
    plan: Plan,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    api: HfApi | None = None,
) -> str:
    """Push what was planned, in one commit. Weights, code and tokenizer of an earlier model that this one does not
    have are deleted in the same commit, so that no loader mixes the two.

    If it fails, a repository or branch that this call made is removed again, and one that was there keeps its commit.

    Args:
        plan: from `plan_publication`; its card and record are written to the directory first.
        private (`bool`): make a new repository private; one that is there must be so already.
        revision (`str`, *optional*): branch to commit to, made if it is not there, no commit; None means `main`.
        message (`str`, *optional*): of the commit.
        api (`HfApi`, *optional*): which Hub, as whom.

    Returns:
        URL of the commit.

    Raises:
        ValueError: if the plan has errors, or `revision` is a commit's hash.
        PublishError: if the Hub or the network refuses, or the card on the Hub was edited and this one is generated;
            says what is on the Hub then.
    """
    check_branch(revision)
    if plan.errors:
        raise ValueError(f"{plan.directory} cannot be published: {' '.join(plan.errors)}")
    check_folder(plan.directory, "directory")
    for name, text in plan.texts.items():
        _replace(plan.directory / name, text)
    return _Push(api or HfApi(), plan, revision or "main").run(private, message or "Publish with hf_encoders")


class _Push:
    """One push: what it has made on the Hub so far, and how that is undone."""

    def __init__(self, api: HfApi, plan: Plan, branch: str):
        self.api = api
        self.plan = plan
        self.branch = branch
        self.repo_id = plan.repo_id
        self.made_repository = False
        self.made_branch = False
        self.is_unsure = False

    def run(self, private: bool, message: str) -> str:
        try:
            with one_line(self.repo_id, self.api.endpoint):
                self._make_repository(private)
                parent = self._make_branch()
                try:
                    return self._commit(parent, message)
                except Exception:
                    # The answer to a commit may be lost on its way when the commit itself was made.
                    if self._arrived():
                        return f"{self.api.endpoint}/{self.repo_id}/tree/{self.branch}"
                    raise
        except BaseException as error:
            state = self._undo()
            if isinstance(error, PublishError):
                raise PublishError(f"{error} {state}") from error
            raise

    def _make_repository(self, private: bool) -> None:
        try:
            info = self.api.model_info(self.repo_id)
        except RepositoryNotFoundError:
            self._create(private)
            return
        if private and not info.private:
            raise PublishError(
                f"{self.repo_id} is there and public: make it private in its settings, or leave --private out."
            )

    def _create(self, private: bool) -> None:
        try:
            self.api.create_repo(self.repo_id, private=private or None)
        except (HfHubHTTPError, HTTPError, OSError) as error:
            # A refusal makes nothing; a broken connection, or a broken server, may have.
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else 500
            self.made_repository = status >= 500
            if status == 409:
                raise PublishError(
                    f"{self.repo_id} is there, and your token does not see it: use one that may read and write it, or "
                    "another name."
                ) from error
            raise
        self.made_repository = True

    def _make_branch(self) -> str:
        """Make the branch if need be; returns the commit that it points at."""
        try:
            return self.api.model_info(self.repo_id, revision=self.branch).sha
        except RevisionNotFoundError:
            self.api.create_branch(self.repo_id, branch=self.branch)
            self.made_branch = True
            return self.api.model_info(self.repo_id, revision=self.branch).sha

    def _commit(self, parent: str, message: str) -> str:
        there = self.api.list_repo_files(self.repo_id, revision=parent)
        if ".gitignore" in there:
            raise PublishError(
                f"{self.repo_id} has a .gitignore, and the Hub would leave out the files it names: remove it first."
            )
        if CARD_FILE in there:
            self._check_card(parent)
        additions = [CommitOperationAdd(name, str(self.plan.directory / name)) for name in self.plan.files]
        deletions = [CommitOperationDelete(name) for name in outdated(there, set(self.plan.files))]
        # `parent` keeps a push of somebody else, in the meantime, from being overwritten.
        commit = self.api.create_commit(
            self.repo_id,
            [*additions, *deletions],
            commit_message=message,
            revision=self.branch,
            parent_commit=parent,
        )
        return commit.commit_url

    def _check_card(self, parent: str) -> None:
        """Raise PublishError if a generated card would replace one that was edited on the Hub."""
        if self.plan.new_card or was_edited(self.plan.texts[CARD_FILE]):
            return
        # Not through the cache: it belongs to the user.
        with tempfile.TemporaryDirectory() as folder:
            path = self.api.hf_hub_download(self.repo_id, CARD_FILE, revision=parent, local_dir=folder)
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        if was_edited(text):
            raise PublishError(
                f"{CARD_FILE} of {self.repo_id} was edited on the Hub, and a generated card would replace it: "
                f"download it into {self.plan.directory} to keep it, or replace it with --new-card."
            )

    def _arrived(self) -> bool:
        """Whether the branch holds every file as it lies in the directory, and none that should have been deleted."""
        try:
            tree = self.api.list_repo_tree(self.repo_id, revision=self.branch)
            there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        except (HfHubHTTPError, HTTPError, OSError):
            self.is_unsure = True
            return False
        if outdated(list(there), set(self.plan.files)):
            return False
        return all(_is_same(self.plan.directory / name, there.get(name)) for name in self.plan.files)

    def _undo(self) -> str:
        """Remove what this push made; says what is on the Hub now."""
        try:
            if self.made_repository:
                self.api.delete_repo(self.repo_id, missing_ok=True)
                return "Nothing was published; the repository made for it was removed again."
            if self.made_branch:
                self.api.delete_branch(self.repo_id, branch=self.branch)
                return f"Nothing was published; the branch {self.branch!r} made for it was removed again."
        except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
            what = "repository" if self.made_repository else f"branch {self.branch!r} of the repository"
            return (
                f"Nothing was published, but the {what} {self.repo_id}, made for it, could not be removed "
                f"({first_line(error)}): remove it at {self.api.endpoint}/{self.repo_id}/settings."
            )
        if self.is_unsure:
            return (
                "Whether the commit was made could not be seen: look at "
                f"{self.api.endpoint}/{self.repo_id}/commits/{self.branch}. It is there whole or not at all."
            )
        return "Nothing was published; what was on the Hub is unchanged."


def outdated(there: list[str], new: set[str]) -> list[str]:
    """Weights, code and tokenizer files of an earlier model in a repository that the new one does not have.

    >>> outdated(["README.md", "model.safetensors", "vocab.txt", "notes.txt"], {"README.md", "tokenizer.json"})
    ['model.safetensors', 'vocab.txt']
    """
    return sorted(
        name
        for name in set(there) - new
        if "/" not in name
        and (name in TOKENIZER_FILES or name.endswith(".py") or any(Path(name).match(old) for old in OLD_WEIGHTS))
    )


def _card(
    directory: Path, repo_id: str, record: TrainingRecord, has_curve: bool, new_card: bool, has_stated: bool
) -> tuple[str, str]:
    """The card that will be published, and a line on where it comes from."""
    path = directory / CARD_FILE
    if path.exists() and not new_card:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 ({error.reason}): save it as UTF-8, or use --new-card.") from error
        if was_edited(text):
            if has_stated:
                raise ValueError(
                    f"{path} was edited by hand, so --license and --language would not appear in it: write them "
                    "there, or have the card generated again with --new-card."
                )
            return text, f"{CARD_FILE} was edited by hand: published as it is (--new-card replaces it)"
    model = load_source(directory, saved_head(read_config(directory)))
    card = make_model_card(model, record, repo_id, has_curve=has_curve)
    return str(card), f"{CARD_FILE} is generated from {RECORD_FILE} and config.json"


def _lies_in(directory: Path, name: str) -> bool:
    """Whether a name that a card links to is a file in the directory, and not elsewhere on this machine."""
    return is_plain(name) and not leads_out(directory, name) and (directory / name).is_file()


def _replace(path: Path, text: str) -> None:
    """Write a file anew, never through a link: in a cache of the Hub, what a link points at belongs to the cache."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder, path.name)
        written.write_text(text, encoding="utf-8")
        os.replace(written, path)


def _is_same(path: Path, entry: RepoFile | None) -> bool:
    """Whether a file on the Hub is the one in the directory, by the hash of its storage."""
    if entry is None:
        return False
    info = CommitOperationAdd(path.name, str(path)).upload_info
    if entry.lfs is not None:
        return entry.lfs.sha256 == info.sha256.hex()
    return entry.blob_id == _git_oid(path.read_bytes())


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
