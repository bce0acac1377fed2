"""What may be published of a run's command line, arguments and paths, and what looks like a secret in a text.

Secrets are found by their form (the prefixes that services give their tokens) and by the name that they are given
under; paths outside of the run become base names, so that neither user nor client names appear.
"""

import json
import math
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any


REDACTED = "REDACTED"
# Kind, and its form. Prefixes as the services document them for secret scanners.
TOKEN_FORMS = {
    # Not names such as hf_encoders or hf_hub_download: a token has a capital letter or a digit, or is long.
    "a Hugging Face token": r"\b(?:hf_(?:oauth_|jwt_|app_)?(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|hf_[a-z]{30,}"
    r"|api_org_[A-Za-z0-9]{20,})",
    "a GitHub token": r"\b(?:gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{20,})",
    "a GitLab token": r"\bgl(?:pat|dt|rt|ptt|cbt)-[\w-]{16,}",
    "an AWS key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    "an OpenAI or Anthropic key": r"\bsk-(?=[\w-]*[A-Z0-9])[\w-]{20,}",
    "a Weights & Biases key": r"\b(?:wandb_v\d_\w{16,}|local-[0-9a-f]{40}\b)",
    "a Google key": r"\b(?:AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,})",
    "a Slack token": r"\bxox[abeoprs]-[\w-]{10,}",
    "a Stripe key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "a PyPI token": r"\bpypi-[\w-]{20,}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{30,}",
    "a Databricks, Replicate, Groq or DigitalOcean token": r"\b(?:dapi[0-9a-f]{32}|r8_[A-Za-z0-9]{30,}"
    r"|gsk_[A-Za-z0-9]{30,}|do[opr]_v1_[0-9a-f]{40,})",
    "a JSON web token": r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password in a URL": r"(?<=://)[^\s/@:\"'`<>]*:[^\s/@\"'`<>]+(?=@)",
    "a bearer token": r"(?i)(?<=\bbearer )[\w.~+/-]{16,}",
}
TOKENS = {kind: re.compile(form) for kind, form in TOKEN_FORMS.items()}
# A value behind a name: `name=value`, `"name": "value"`, `--name value`.
ASSIGNED = re.compile(
    r"(?P<name>(?P<option>--)?[A-Za-z][\w-]*)[\"']?(?:\s*[:=]\s*|(?(option)\s+|(?!)))[\"'`]?(?P<value>[\w+/.~=-]{16,})"
)
SECRET_WORDS = {
    "token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey",
    "authorization", "bearer", "signature", "pat",
}  # fmt: skip
KEY_WORDS = {"api", "access", "secret", "private", "account", "encryption", "ssh", "auth", "wandb", "hub", "hf"}
SPECIAL_TOKENS = {"mask", "pad", "unk", "cls", "sep", "bos", "eos", "additional", "special", "image", "extra"}
INNER = r"[^\s/\"'`,;:<>|()\[\]{}=*\\]+"
# Absolute, `~` and `file:` paths, and those that climb, inside of a longer text. Not `/` alone, nor parts of URLs.
PATHS = re.compile(
    rf"(?<![\w./~:\\-])(?:file:/{{1,3}}|~(?:[A-Za-z][\w.-]*)?/|/|(?:{INNER}/)*\.\./)(?:{INNER}/)*{INNER}/?"
    rf"|(?<=\w:)/(?!/)(?:{INNER}/)*{INNER}/?"
    rf"|(?<!\w)(?:[A-Za-z]:\\|\\\\)(?:[^\s\\\"'`,;<>|]+\\)*[^\s\\\"'`,;<>|]+"
)
HOMES = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[\w.-]+")
PUBLIC_SCHEMES = ("http", "https", "hf")


def published(value: Any, name: str = "") -> Any:
    """A value as it may be published: dictionaries, lists and texts with what is secret or local taken out.

    Args:
        value: of any kind; numbers, truth values and None stay as they are.
        name (`str`): what the value is called, `hub_token` for example.

    >>> published({"hub_token": "x", "train": "/home/me/client/train.csv", "steps": 10})
    {'hub_token': 'REDACTED', 'train': 'train.csv', 'steps': 10}
    """
    if isinstance(value, dict):
        return {key: published(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(published(inner, name) for inner in value)
    if isinstance(value, PurePath):
        return published_path(str(value))
    if not isinstance(value, str):
        return value
    if is_secret(name, value):
        return REDACTED
    value = without_tokens(value)
    return published_path(value) if leads_outside(value) else PATHS.sub(_base_name_of_match, value)


def published_command(command: str | list[str]) -> str:
    """A command line as it may be published.

    >>> published_command(["pretrain", "/home/me/my.yaml", "--hub_token", "x", "--output=../client/run"])
    'pretrain my.yaml --hub_token REDACTED --output=run'
    """
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError:  # words, not a command
            return published(command)
    words, option = [], ""
    for word in command:
        name, equals, value = word.partition("=")
        # What an option's name says holds for all words up to the next option.
        option = name if word.startswith("--") else option
        if option != name and is_secret(option, word):
            words.append(REDACTED)
        elif equals and re.fullmatch(r"[\w-]+", name):
            words.append(f"{name}={_published_word(value, name)}")
        else:
            words.append(_published_word(word))
    return shlex.join(words)


def _published_word(word: str, name: str = "") -> str:
    if word[:1] in ("{", "["):
        try:
            return json.dumps(published(json.loads(word)))
        except ValueError:
            pass
    if word in _local_names():
        return REDACTED
    word = published(word, name)
    # Relative paths of the run may stay, unless a folder on the way is called like the user or the machine.
    return published_path(word) if _local_names() & set(PurePosixPath(word).parts) else word


def published_path(path: str) -> str:
    """A path's last part, where the whole may tell of the user or the machine; relative ones stay.

    >>> published_path("/home/me/client/corpus/"), published_path("runs/model"), published_path("../corpus")
    ('corpus', 'runs/model', 'corpus')
    """
    if not leads_outside(path) and not _local_names() & set(PurePosixPath(path).parts):
        return path
    return base_name(path)


def base_name(path: str | PurePath) -> str:
    """The last part of any path or URL; of a home folder, and of what has none, a word for it.

    >>> base_name("/home/me/client/corpus/"), base_name("."), base_name("s3://client/corpus")
    ('corpus', 'folder', 'corpus')
    """
    kind = PureWindowsPath if "\\" in str(path) else PurePosixPath
    name = kind(str(path)).name
    is_home = str(path).rstrip("/\\") in (home_folder(), "~") or name.startswith("~") or name in _local_names()
    return "folder" if is_home or name in ("", ".", "..") else name


def leads_outside(text: str) -> bool:
    """Whether a whole text is a path outside of the working directory: absolute, `~`, climbing, or not of the web."""
    scheme, separator, _ = text.partition("://")
    if separator and re.fullmatch(r"[A-Za-z][\w+.-]*", scheme):
        return scheme.lower() not in PUBLIC_SCHEMES
    if re.match(r"[A-Za-z]:[\\/]|\\\\|file:", text):
        return True
    if text.startswith("~"):
        return re.match(r"~([A-Za-z][\w.-]*)?(/|$)", text) is not None
    # A sentence may begin with a path: then only that goes.
    is_path = text.startswith("/") and len(text) > 1 and (" /" not in text and ", " not in text)
    return is_path or bool(re.match(r"\S*$", text) and ".." in re.split(r"[/\\]", text))


def _base_name_of_match(found: re.Match) -> str:
    path = found[0]
    # One part below the root is as likely a unit (`tokens /s`) as a folder, and tells nothing.
    is_short = path.startswith("/") and path.rstrip("/").count("/") == 1 and path.rstrip("/") != home_folder()
    return path if is_short else base_name(path)


def home_folder() -> str:
    """This user's, as text; `~` where nothing tells."""
    return os.path.expanduser("~")


def _local_names() -> set[str]:
    """Names of this user and this machine."""
    host = socket.gethostname()
    names = {Path(home_folder()).name, os.environ.get("USER"), os.environ.get("LOGNAME"), host, host.partition(".")[0]}
    return {name for name in names if name} - {"localhost"}


def without_tokens(text: str) -> str:
    """A text with everything that looks like a secret replaced."""
    spans = sorted({span for *_, span in _secrets(text)})
    for begin, end in reversed(spans):
        text = text[:begin] + REDACTED + text[end:]
    return _without_secrets_of_urls(text)


def _without_secrets_of_urls(text: str) -> str:
    def replaced(found: re.Match) -> str:
        return f"{found[1]}{found[2]}={REDACTED}" if is_secret(found[2], found[3]) else found[0]

    if "://" not in text:
        return text
    text = re.sub(r"(?<=://)[^\s/@\"'`<>]+(?=@)", REDACTED, text)  # a user alone may be a token too
    return re.sub(r"([?&])([\w.-]+)=([^&\s\"'`]+)", replaced, text)


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    r"""Line, from 1, and description of all that looks like a secret in a text; none is named whole.

    >>> list(secrets_in("a line\ntoken: hf_" + "Ab1" * 9))
    [(2, 'a Hugging Face token (hf_A..., 30 characters)')]
    """
    seen = set()
    for kind, (begin, end) in _secrets(text):
        value = text[begin:end]
        if value not in seen:
            seen.add(value)
            yield text.count("\n", 0, begin) + 1, f"{kind} ({value[:4]}..., {len(value)} characters)"


def _secrets(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    taken: list[tuple[int, int]] = []
    for kind, form in TOKENS.items():
        for found in form.finditer(text):
            taken.append(found.span())
            yield kind, found.span()
    for found in ASSIGNED.finditer(text):
        name, value = found["name"], found["value"]
        begin, end = found.span("value")
        is_new = all(end <= first or last <= begin for first, last in taken)
        if is_new and value != REDACTED and has_secret_name(name) and looks_random(value):
            yield f"a value of {name.lstrip('-')}", (begin, end)


def homes_in(text: str) -> Iterator[tuple[int, str]]:
    """Line, from 1, and path of all home folders that a text names, each once."""
    own = home_folder()
    # A home such as `/` or `/root` may stand inside of other paths.
    form = rf"(?<![\w.-]){re.escape(own)}(?=[/\\])|{HOMES.pattern}" if len(own) > 1 else HOMES.pattern
    seen = set()
    for found in re.finditer(form, text):
        if found[0] not in seen:
            seen.add(found[0])
            yield text.count("\n", 0, found.start()) + 1, found[0]


def is_secret(name: str, value: str) -> bool:
    """Whether a value is to be kept back for what it is called.

    >>> is_secret("--hub_token", "x"), is_secret("mask_token", "[MASK]"), is_secret("label_key", "label")
    (True, False, False)
    """
    if value.lower() in ("", "true", "false", "none", "null"):
        return False
    words = _words(name)
    if words[-1:] in (["key"], ["auth"], ["keys"]):
        return len(words) == 1 or words[-2] in KEY_WORDS or looks_random(value)
    return has_secret_name(name)


def has_secret_name(name: str) -> bool:
    """Whether a name is one of secrets: `HF_TOKEN`, `api-key`, but not `mask_token` nor `num_tokens`."""
    words = _words(name)
    if words[-1:] in (["key"], ["keys"], ["auth"]):
        return True
    return words[-1:] != [] and words[-1] in SECRET_WORDS and not SPECIAL_TOKENS & set(words[:-1])


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def looks_random(value: str) -> bool:
    """Whether a text of 16 characters or more has letters, digits and at least 3 bits a character.

    >>> looks_random("9f86d081884c7d659a2feaa0"), looks_random("a-hyphenated-name-of-words")
    (True, False)
    """
    if len(value) < 16 or not re.search(r"\d", value) or not re.search(r"[A-Za-z]", value):
        return False
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= 3
