"""Publish a saved directory on the Hub: checks, card, and one commit."""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from hf_encoders.loading import read_config
from hf_encoders.publishing.card import is_repo_id, make_model_card, was_edited
from hf_encoders.publishing.checks import check_card, check_directory, shown_files
from hf_encoders.publishing.files import (
    CARD_FILE,
    CURVE_FILE,
    INDEX_FILE,
    MODULE_FILES,
    MODULES_FILE,
    RECORD_FILE,
    TOKENIZER_FILES,
    Finding,
    is_plain,
    leads_out,
    load_source,
    published_files,
    saved_head,
    secrets_of_files,
)
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.registration import configurations
from hf_encoders.writing import check_folder, write_whole


OLD_WEIGHTS = ("*.safetensors", INDEX_FILE, "pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass
class Plan:
    """Describe a publication: sizes in bytes of the files by name, names that stay, findings of the checks.

    `texts` are files to write to the directory before the push, `note` says where the card comes from, and `new_card`
    whether an edited card, here or on the Hub, is replaced.
    """

    directory: Path
    repo_id: str
    files: dict[str, int]
    left: list[str]
    findings: list[Finding]
    texts: dict[str, str]
    note: str = ""
    new_card: bool = False

    @property
    def errors(self) -> list[str]:
        """Return the findings that prevent publication."""
        return [finding.text for finding in self.findings if finding.is_error]


def plan_publication(
    directory: str | Path,
    repo_id: str,
    *,
    license_name: str | None = None,
    language: list[str] | None = None,
    base_model: str | None = None,
    new_card: bool = False,
    trust_remote_code: bool = False,
) -> Plan:
    """Check a directory, make its card, and list what goes to the Hub, without network access and without writing.

    Args:
        directory (`str` or `Path`): Written by `save_pretrained`, including the tokenizer.
        repo_id (`str`): `owner/name`.
        license_name (`str`, *optional*): The Hub's identifier of the licence of the weights; recorded.
        language (`list[str]`, *optional*): Codes of the corpus's languages; recorded.
        base_model (`str`, *optional*): Name on the Hub of the checkpoint that training began from, where the record
            has a local folder; recorded.
        new_card (`bool`, *optional*, defaults to `False`): Replace a card that was edited by hand. Otherwise an edited
            card in the directory is published as it is, and one on the Hub prevents a push.
        trust_remote_code (`bool`, *optional*, defaults to `False`): Run code in the directory that is not identical to
            this package's, to check it.

    Raises:
        ValueError: For an invalid `repo_id` or `base_model`, or facts that an edited card would not show.
    """
    directory = Path(directory)
    if not is_repo_id(repo_id) or "/" not in repo_id:
        raise ValueError(f"repo={repo_id!r} is not a name of a repository: use owner/name (letters, digits, - _ .).")
    if base_model is not None and not is_repo_id(base_model):
        raise ValueError(f"base_model={base_model!r} is not a name on the Hub: use owner/name, or leave it out.")
    findings = check_directory(directory, trust_remote_code)
    if any(finding.is_error for finding in findings):
        return Plan(directory, repo_id, {}, [], findings, {})
    record = TrainingRecord.load(directory)
    stated = {"license": license_name, "language": language, "base_model": base_model}
    stated = {name: value for name, value in stated.items() if value}
    record = replace(record, **stated)
    card, note = _card(directory, repo_id, record, new_card, bool(stated))
    texts = {CARD_FILE: card}
    path = directory / RECORD_FILE
    # A record of an earlier version, or written by hand, is redacted when it is loaded.
    if stated or (path.exists() and record.to_json() != path.read_text(encoding="utf-8")):
        texts[RECORD_FILE] = record.to_json()
    names = published_files(directory) | set(texts)
    for picture in shown_files(card):
        if is_plain(picture) and not leads_out(directory, picture) and (directory / picture).is_file():
            names.add(picture)
    findings += [*secrets_of_files(directory, names, texts), *check_card(card, record, list(names))]
    sizes = {name: len(texts[name].encode()) if name in texts else (directory / name).stat().st_size for name in names}
    pushed = {Path(name).parts[0] for name in names}
    left = sorted(path.name + "/" * path.is_dir() for path in directory.iterdir() if path.name not in pushed)
    findings.sort(key=lambda finding: not finding.is_error)
    return Plan(directory, repo_id, dict(sorted(sizes.items())), left, findings, texts, note, new_card)


def check_branch(revision: str | None) -> None:
    """Raise ValueError for the hash of a commit, which cannot be pushed to."""
    if revision and re.fullmatch("[0-9a-f]{40}", revision):
        raise ValueError(f"revision={revision!r} is a commit, which cannot be pushed to: name a branch.")


def publish(
    plan: Plan,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = "Publish with hf_encoders",
    api: HfApi | None = None,
) -> str:
    """Push a plan in one commit.

    Weights, code and tokenizer files of an earlier model that this one does not have are deleted in the same commit.
    The commit is atomic; a repository or branch that was created for a push that failed stays, without these files.

    Args:
        plan (`Plan`): From `plan_publication`; its card and record are written to the directory first.
        private (`bool`, *optional*, defaults to `False`): Create a private repository, or require that it is.
        revision (`str`, *optional*): Branch to commit to, created if it does not exist; None means `main`.
        message (`str`, *optional*): Commit message.
        api (`HfApi`, *optional*): Client with endpoint and token.

    Returns:
        `str`: URL of the commit.

    Raises:
        ValueError: If the plan has errors, `revision` is the hash of a commit, the repository is public although
            `private` was asked for or has a .gitignore, or a generated card would replace one edited on the Hub.
    """
    check_branch(revision)
    if plan.errors:
        raise ValueError(f"{plan.directory} cannot be published: {' '.join(plan.errors)}")
    check_folder(plan.directory, "directory")
    for name, text in plan.texts.items():
        write_whole(plan.directory / name, text)
    api = api or HfApi()
    api.create_repo(plan.repo_id, private=private or None, exist_ok=True)
    if revision not in (None, "main"):
        api.create_branch(plan.repo_id, branch=revision, exist_ok=True)
    info = api.model_info(plan.repo_id, revision=revision)
    if private and not info.private:
        raise ValueError(f"{plan.repo_id} exists and is public: make it private in its settings, or omit --private.")
    published = [file.rfilename for file in info.siblings]
    if ".gitignore" in published:
        raise ValueError(
            f"{plan.repo_id} has a .gitignore, and the Hub leaves out the files it names: remove it first."
        )
    if CARD_FILE in published:
        _check_card(api, plan, info.sha)
    additions = [CommitOperationAdd(name, str(plan.directory / name)) for name in plan.files]
    deletions = [CommitOperationDelete(name) for name in outdated(published, set(plan.files))]
    # `parent_commit` prevents overwriting somebody else's push in the meantime.
    commit = api.create_commit(
        plan.repo_id, [*additions, *deletions], commit_message=message, revision=revision, parent_commit=info.sha
    )
    return commit.commit_url


def outdated(published: list[str], new: set[str]) -> list[str]:
    """Return the weights, code and tokenizer files in a repository that a new model does not have.

    >>> outdated(["README.md", "model.safetensors", "vocab.txt", "notes.txt", "modules.json"], {"README.md"})
    ['model.safetensors', 'modules.json', 'vocab.txt']
    >>> outdated(["generator/config.json", "generator/model.safetensors", "onnx/model.safetensors"], set())
    ['generator/config.json', 'generator/model.safetensors']
    """
    folders = tuple(f"{folder}/" for config_class in configurations() for folder in config_class.SUBMODELS)

    def is_of_a_model(name: str) -> bool:
        if name.startswith(folders):
            return True
        is_named = name in (*TOKENIZER_FILES, *MODULE_FILES) or name.endswith(".py")
        return "/" not in name and (is_named or any(Path(name).match(old) for old in OLD_WEIGHTS))

    return sorted(name for name in set(published) - new if is_of_a_model(name))


def _check_card(api: HfApi, plan: Plan, parent: str) -> None:
    """Raise ValueError if a generated card would replace one that was edited on the Hub."""
    if plan.new_card or was_edited(plan.texts[CARD_FILE]):
        return
    # Not through the user's cache.
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(plan.repo_id, CARD_FILE, revision=parent, local_dir=folder)
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    if was_edited(text):
        raise ValueError(
            f"{CARD_FILE} of {plan.repo_id} was edited on the Hub, and a generated card would replace it: "
            f"download it into {plan.directory} to keep it, or replace it with --new-card."
        )


def _card(directory: Path, repo_id: str, record: TrainingRecord, new_card: bool, has_stated: bool) -> tuple[str, str]:
    """Return the card to publish, and a sentence on its origin."""
    path = directory / CARD_FILE
    if path.exists() and not new_card:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 ({error.reason}): save it as UTF-8, or use --new-card.") from error
        if was_edited(text):
            if has_stated:
                options = "--license, --language and --base-model would not appear in it"
                raise ValueError(f"{path} was edited by hand, so {options}: write them there, or use --new-card.")
            return text, f"{CARD_FILE} was edited by hand: published as it is (--new-card replaces it)"
    model = load_source(directory, saved_head(read_config(directory)))
    has_curve, has_modules = ((directory / name).exists() for name in (CURVE_FILE, MODULES_FILE))
    card = make_model_card(model, record, repo_id, has_curve, has_modules)
    return str(card), f"{CARD_FILE} is generated from {RECORD_FILE} and config.json"
