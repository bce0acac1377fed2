"""Check a saved directory, make its card, and publish it on the Hub in one commit."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from hf_encoders.inputs import first_line, is_language_code
from hf_encoders.loading import read_config
from hf_encoders.publishing.files import (
    CARD_FILE,
    CURVE_FILE,
    INDEX_FILE,
    MODULE_FILES,
    MODULES_FILE,
    RECORD_FILE,
    TOKENIZER_FILES,
    Finding,
    code_files,
    foreign_code,
    is_plain,
    leads_out,
    load_source,
    pooler_arguments,
    published_files,
    saved_head,
    secrets_of_files,
    submodels,
    tokenizer_code,
    written_config,
)
from hf_encoders.publishing.record import TrainingRecord, is_repo_id, make_model_card, was_edited
from hf_encoders.publishing.verification import WAYS, Load, load_elsewhere, loads_of
from hf_encoders.registration import configurations
from hf_encoders.tokenizer_loading import check_rows, load_tokenizer
from hf_encoders.writing import check_folder, write_whole


PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")
LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
RESAVE = "load it with hf_encoders and call save_pretrained again"
RESAVE_TOKENIZER = "hf_encoders.publishing.files.save_tokenizer(hf_encoders.load_tokenizer(folder), folder)"
OLD_WEIGHTS = ("*.safetensors", INDEX_FILE, "pytorch_model*.bin", "pytorch_model.bin.index.json")


# --- checks ---


def check_directory(directory: str | Path, trust_remote_code: bool = False) -> list[Finding]:
    """Check all but the card, which publishing writes; load the model only if there are no errors in the files."""
    directory = Path(directory)
    findings = list(check_files(directory, directory))
    if any(finding.is_error for finding in findings):
        return findings
    directories = [directory, *(directory / folder for folder in submodels(directory))]
    for submodel in directories[1:]:  # it has the tokenizer of the folder that it is in
        for finding in check_files(submodel, directory):
            findings.append(finding._replace(text=f"{submodel.name}: {finding.text}"))
    if not any(finding.is_error for finding in findings):
        findings += check_loading(directories, trust_remote_code)
    return findings


def check_files(directory: Path, tokenizer: Path) -> Iterator[Finding]:
    """Check configuration, files and code of a directory, and that the tokenizer in a folder fits its model."""
    try:
        config = read_config(directory)
        saved_head(config)
        written = written_config(directory)
        code_files(directory, written)  # raises for invalid references
    except ValueError as error:
        yield Finding(True, str(error))
        return
    try:
        if links := [name for name in sorted(published_files(directory)) if leads_out(directory, name)]:
            yield Finding(True, f"{', '.join(links)}: links out of {directory}: put the files themselves there.")
            return
        if code := ", ".join(tokenizer_code(directory)):
            yield Finding(True, f"auto_map names code of a tokenizer, which needs none, in {code}: remove it there.")
    except ValueError as error:
        yield Finding(True, str(error))
    auto_map = written.get("auto_map") or {}
    absent = sorted(name for name, code in type(config).AUTO_MAP.items() if auto_map.get(name) != code)
    missing = [name for name in code_files(directory, written) if not (directory / name).exists()]
    if absent:
        names = ", ".join(absent)
        yield Finding(True, f"config.json: auto_map does not name this package's class for {names}: {RESAVE}.")
    elif missing:
        names = ", ".join(missing)
        yield Finding(True, f"{names}: code that config.json names is not in the directory: {RESAVE}.")
    try:
        loaded = load_tokenizer(tokenizer, config=config)
        check_rows(loaded, config, str(directory))
    except ValueError as error:
        yield Finding(True, str(error))
        return
    if loaded.pad_token_id != config.pad_token_id:
        problem = f"the tokenizer pads with id {loaded.pad_token_id}, but pad_token_id={config.pad_token_id}"
        yield Finding(False, f"{problem}: set it in the configuration, if this is the model's own tokenizer.")


def check_loading(directories: list[Path], trust_remote_code: bool = False) -> Iterator[Finding]:
    """Check that each directory loads in a process without this package and gives the same outputs as here.

    Code that is not identical to this package's runs with `trust_remote_code` only.
    """
    loads: list[Load] = []
    for directory in directories:
        if not trust_remote_code and (foreign := ", ".join(foreign_code(directory))):
            reason = "is not this package's own code and was not run: read it, and pass --trust-remote-code to run it"
            yield Finding(True, f"{directory}: {foreign} {reason}.")
            continue
        head = saved_head(read_config(directory))
        try:
            model = load_source(directory, head)
        except (ValueError, OSError, RuntimeError) as error:
            yield Finding(True, f"{directory} does not load: {error}")
            continue
        if pooler_arguments(model, head):
            remedy = "load it with add_pooling_layer=False, as the card says, or pooler_output is random"
            yield Finding(False, f"{directory} has no pooler: {remedy}.")
        loads += loads_of(directory, model, head)
    for load, loaded in zip(loads, load_elsewhere(loads), strict=True):
        if problem := loaded.problem(load):
            remedy = f"{RESAVE}, or, for the tokenizer, {RESAVE_TOKENIZER}"
            yield Finding(True, f"{load.directory}, loaded {WAYS[load.way]}: {problem}: {remedy}.")


def check_card(text: str, record: TrainingRecord, files: set[str]) -> Iterator[Finding]:
    """Check a card's metadata, and that its pictures are in `files`; list facts that were not recorded."""
    block = REGEX_YAML_BLOCK.search(text)
    try:
        metadata = dict((yaml.safe_load(block.group(2)) if block else None) or {})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        problem = f"has no readable metadata ({first_line(error)})"
        yield Finding(True, f"{CARD_FILE} {problem}: correct the YAML between ---.")
        return
    for problem in metadata_problems(metadata):
        yield Finding(True, f"{CARD_FILE}: {problem}")
    if not metadata.get("license"):
        yield Finding(False, "no licence is stated, so nobody may use the model: give --license.")
    for link in sorted(shown_files(text) - files):
        remedy = "copy the picture into the directory, or remove it from the card"
        yield Finding(True, f"{CARD_FILE} shows {link}, which is not published with it: {remedy}.")
    if missing := record.missing_facts():
        yield Finding(False, f'the card says "not recorded" of {", ".join(missing)}: add them to {RECORD_FILE}.')


def metadata_problems(metadata: dict[str, Any]) -> list[str]:
    """Return problems of a card's metadata for which the Hub certainly refuses the commit."""
    name_on_hub = (is_repo_id, "a name on the Hub: use 'owner/name', or leave it out")
    rules = {
        "license": (LICENSE_ID.fullmatch, "an identifier of the Hub: use one such as 'apache-2.0', or 'other'"),
        "language": (_is_language, "an ISO 639 code: use one in lower case such as 'en', or 'multilingual'"),
        "datasets": name_on_hub,
        "base_model": name_on_hub,
    }
    problems = []
    for field, (is_valid, remedy) in rules.items():
        values = metadata.get(field) or []
        for value in values if isinstance(values, list) else [values]:
            if not is_valid(str(value)):
                problems.append(f"{field} {value!r} is not {remedy}.")
    if metadata.get("license") == "other" and not metadata.get("license_name"):
        problems.append("license 'other' needs license_name: add it, and the text as a LICENSE file.")
    return problems


def _is_language(code: str) -> bool:
    return code in ("multilingual", "code") or is_language_code(code)


def shown_files(card: str) -> set[str]:
    """Return the names of the pictures on a card, except remote ones.

    >>> sorted(shown_files("![a](loss_curve.png) ![b](https://host/b.png) ![](data:image/png;base64,A) ![c](d/e.png)"))
    ['d/e.png', 'loss_curve.png']
    """
    return {link for link in PICTURE.findall(card) if "://" not in link and not link.startswith("data:")}


# --- the plan ---


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
    plan = Plan(directory, repo_id, {}, [], check_directory(directory, trust_remote_code), {}, new_card=new_card)
    if plan.errors:
        return plan
    record = TrainingRecord.load(directory)
    stated = {"license": license_name, "language": language, "base_model": base_model}
    stated = {name: value for name, value in stated.items() if value}
    record = replace(record, **stated)
    card, plan.note = _card(directory, repo_id, record, new_card, bool(stated))
    plan.texts = {CARD_FILE: card}
    path = directory / RECORD_FILE
    # A record of an earlier version, or written by hand, is redacted when it is loaded.
    if stated or (path.exists() and record.to_json() != path.read_text(encoding="utf-8")):
        plan.texts[RECORD_FILE] = record.to_json()
    names = published_files(directory) | set(plan.texts)
    for picture in shown_files(card):
        if is_plain(picture) and not leads_out(directory, picture) and (directory / picture).is_file():
            names.add(picture)
    for name in sorted(names):
        text = plan.texts.get(name)
        plan.files[name] = (directory / name).stat().st_size if text is None else len(text.encode())
    pushed = {Path(name).parts[0] for name in names}
    plan.left = sorted(path.name + "/" * path.is_dir() for path in directory.iterdir() if path.name not in pushed)
    plan.findings += [*secrets_of_files(directory, names, plan.texts), *check_card(card, record, names)]
    plan.findings.sort(key=lambda finding: not finding.is_error)
    return plan


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


# --- the push ---


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
        problem = "has a .gitignore, and the Hub leaves out the files it names"
        raise ValueError(f"{plan.repo_id} {problem}: remove it first.")
    if CARD_FILE in published:
        _check_card_on_hub(api, plan, info.sha)
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


def _check_card_on_hub(api: HfApi, plan: Plan, parent: str) -> None:
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
