"""Redact secrets and paths before command lines, arguments and texts are published, and find secrets in text.

Secrets are recognised by their form (`TOKEN_FORMS`) and by the name of their option or field. Paths out of the working
directory become base names in command lines and in fields for paths. Other texts are shortened below a home folder.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any


REDACTED = "REDACTED"
# 16 letters and digits with a letter after a digit, or a UUID: not words, which have hyphens or end in a year.
MIXED = r"(?=[A-Za-z0-9]*\d[A-Za-z])[A-Za-z0-9]"
RANDOM = re.compile(
    rf"{MIXED}{{16,}}|(?<![\w+/])(?=\S*\d)[A-Za-z0-9+/]{{40}}(?![\w+/])|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
)
# Also after `_` or an encoded character such as `%3D`.
START = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"
# Prefixes that services document for secret scanners: those with which no name of the user begins, and those that
# may begin one, such as ghs_hazard_labels, so that a part of what follows has to look random.
CLEAR_PREFIXES = (
    r"github_pat_[0-9]|gl(?:pat|dt|rt|ptt|cbt)-|AIza|ya29\.|GOCSPX-|xox[abeoprs]-[0-9]|xapp-[0-9]|pypi-AgE|dckr_pat_"
    r"|pscale_(?:tkn|pw)_|AGE-SECRET-KEY-1"
)
NAME_PREFIXES = (
    r"c?sk-|nvapi-|xai-|pplx-|gsk_|fw_|r8_|wandb_v[0-9]_|lsv2_[a-z]+_|tvly-|pcsk_|rpa_|do[opr]_v1_|sbp_|gh[opsur]_|npm_"
    r"|hv[sb]\.|lin_api_|ntn_|shp(?:at|ca|pa|ss)_"
)
# What matches is the whole or a named group. Patterns that may contain others come first.
TOKEN_FORMS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----)?",
    # Not a port, which is followed by a path.
    "a password in a URL": r"(?<=://)[^\s/@:\"'`<>]*:(?!\d+/)[^\s@\"'`<>]+(?=@)",
    "a Slack hook": r"hooks\.slack\.com/(?P<secret>(?:services|workflows|triggers)/[\w/+-]{10,})",
    "a signature in a URL": r"(?<=[?&]sig=)[\w%+/=-]{8,}",
    "an authorization": r"(?i:authorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer|token)\s+)(?P<header>(?=\S*[A-Z0-9=])"
    r"[\w.~+/=-]{6,})|(?i:\bbearer\s+)(?P<secret>(?=\S*\d)[\w.~+/-]{16,})",
    "a Hugging Face token": START + r"(?:hf_(?:oauth_|jwt_|app_)?[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{20,})",
    "a token of a service": rf"{START}(?:(?:{CLEAR_PREFIXES})[\w.-]{{12,}}"
    rf"|(?:{NAME_PREFIXES})(?:[\w-]*[_-])?(?:{MIXED}{{20,}}|[A-Za-z0-9]{{30,}})[\w-]*"
    # SendGrid, Figma, Together, Stripe, Langfuse, AWS, Databricks, Twilio, Mailgun, W&B, Telegram: of fixed lengths.
    r"|SG\.[\w-]{22}\.[\w-]{20,}|(?:figd|tgp_v1)_[\w-]{40,}|[rs]k_(?:live|test)_[A-Za-z0-9]{24,}"
    r"|sk-lf-[0-9a-f]{8}-[0-9a-f-]{27}|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b|(?:dapi|SK|key-)[0-9a-f]{32}\b"
    r"|local-[0-9a-f]{40}\b|\d{8,10}:AA[\w-]{32,})",
    "a JSON web token": START + r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
}
TOKENS = {kind: re.compile(form) for kind, form in TOKEN_FORMS.items()}
# A value after a name: `name=value`, `"name": "value"`, `--name value`. It may hold another name: a look ahead.
ASSIGNED = re.compile(
    r"(?P<name>(?P<option>--)?[A-Za-z][\w-]*)[\"']?(?:\s*[:=]\s*|(?(option)\s+|(?!)))[\"'`]?"
    r"(?=(?P<value>[\w+/.:~=%-]{16,}))"
)
QUERY = re.compile(r"([?&](?P<name>[\w.-]+)=)(?P<value>[^&\s\"'`]+)")
# Words of names: the last of secrets, those before "key" and before "token", the last of fields for paths and names.
SECRETS = re.compile("secrets?|password|passwd|passphrase|pwd|credentials?|apikey|authorization|bearer|signature|pat")
KEYS = re.compile("api|access|secret|private|account|encryption|ssh|auth|wandb|hub|hf")
SPECIAL_TOKENS = re.compile("mask|pad|unk|cls|sep|bos|eos|additional|special|image|extra")
PATHS = re.compile("paths?|dir|directory|folder|files?|model|tokenizer|checkpoint|deepspeed|input|output|ids")
NAMES = re.compile("names?|columns?|weights|separator|labels?")
# Options (in their shortest form) that name the files given by other options.
NAMED = {"--corpus-n": ("--corpus",), "--data-n": ("--train", "--validation", "--test", "--dataset")}
REMOTE = r"[\w.-]+@[\w.-]+:"
# Paths that are absolute, contain `..`, or begin with a home folder, variable, drive, machine or non-web store.
OUTSIDE = re.compile(
    rf"/.|~[\w.-]*(?:/|$)|\$\{{?\w+\}}?/|%\w+%[\\/]|[A-Za-z]:\\|\\\\|{REMOTE}|[\w.-]+:/(?!/)"
    r"|(?!(?:https?|ftp|hf)://)[a-z][\w+.-]*://|(?:.*[/\\])?\.\.(?:[/\\]|$)",
    re.IGNORECASE,
)


def published(value: Any, name: str = "") -> Any:
    """Redact secrets, home folders and this user's `user@host` in a value, dictionaries (keys too) and lists included.

    Paths out of the working directory become base names if they are `Path`s or in fields for paths (`PATHS`).
    Other texts keep them: they may be names or labels, such as `/r/science`.

    >>> published({"hub_token": "x", "output_dir": "/data/client/run", "label": "/r/science", "steps": 10})
    {'hub_token': 'REDACTED', 'output_dir': 'run', 'label': '/r/science', 'steps': 10}
    """
    if isinstance(value, dict):
        return {published(key): published(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(published(inner, name) for inner in value)
    if not isinstance(value, str | PurePath):
        return value
    if isinstance(value, str) and is_secret(name, value):
        return REDACTED
    if isinstance(value, PurePath) or PATHS.fullmatch(_words(name)[-1]):
        return published_path(without_tokens(str(value)))
    return _without_homes(without_tokens(value))


def published_command(command: str | list[str]) -> str:
    """Redact a command line, and replace files by the name that the user gave the data.

    >>> published_command(["pretrain", "/home/me/my.yaml", "--hub_token", "x", "--output=../client/run"])
    'pretrain my.yaml --hub_token REDACTED --output=run'
    >>> published_command("pretrain --corpus client/a.txt client/b.txt --corpus-name Mine")
    'pretrain --corpus Mine --corpus-name Mine'
    """
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError:  # not a command
            return published(command)
    # Option, "=" if its value is in the same word, and its values: all words up to the next option.
    groups: list[tuple[str, str, list[str]]] = [("", "", [])]
    for word in command:
        option, equals, value = word.partition("=")
        if not word.startswith("--"):
            groups[-1][2].append(word)
        elif equals:
            groups += [(option, equals, [value]), ("", "", [])]
        else:
            groups.append((option, "", []))
    names = {}
    for option, _, values in groups:
        for prefix, options in NAMED.items():
            if option.startswith(prefix) and any(values):
                names |= dict.fromkeys(options, values[0])
    words = []
    for option, equals, values in groups:
        # A dataset on the Hub keeps its name.
        has_name = option in names and values and (option != "--dataset" or os.path.exists(values[0]))
        shown = [published(names[option])] if has_name else [_published_word(value, option) for value in values]
        option = without_tokens(option)
        words += [f"{option}={shown[0]}"] if equals else [option, *shown][not option :]
    return shlex.join(words)


def _published_word(word: str, name: str) -> str:
    if NAMES.fullmatch(_words(name)[-1]):
        return published(word)
    if is_secret(name, word):
        return REDACTED
    if word[:1] in ("{", "["):
        try:
            return json.dumps(published(json.loads(word), name))
        except ValueError:
            pass
    inner, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[\w.-]+", inner):
        return f"{without_tokens(inner)}={_published_word(value, inner)}"
    return _without_homes(published_path(without_tokens(word)))


def published_path(path: str) -> str:
    """Return the base name of a path out of the working directory; relative paths and URLs are kept.

    >>> published_path("/home/me/client/corpus/"), published_path("runs/model"), published_path("../corpus")
    ('corpus', 'runs/model', 'corpus')
    """
    return base_name(path) if OUTSIDE.match(path) else path


def base_name(path: str | PurePath) -> str:
    """Return the last part of a path or URL; "folder" for a home folder or a path without a name.

    >>> base_name("/home/me/client/corpus/"), base_name("."), base_name("s3://client/corpus")
    ('corpus', 'folder', 'corpus')
    """
    text = re.sub(f"^{REMOTE}", "", str(path)).rstrip("/\\")
    name = (PureWindowsPath if "\\" in text else PurePosixPath)(text).name
    is_home = re.fullmatch(_homes(), text) or name.startswith(("~", "$", "%"))
    return "folder" if is_home or name in ("", ".", "..") else name


def home_folder() -> str:
    """Return this user's home folder; `~` if it is unknown."""
    return os.path.expanduser("~")


def _homes() -> str:
    # Not preceded by parts of other paths or URLs.
    this_home = rf"{re.escape(home_folder())}(?![\w-])|" if len(home_folder()) > 1 else ""
    return rf"(?<![\w.~-])(?:{this_home}(?:/home/|(?:[A-Za-z]:)?[/\\]+Users[/\\]+)[\w.-]*\w)"


def _without_homes(text: str) -> str:
    path = rf"(?:file://)?{_homes()}(?:[/\\]+[^\s/\\\"'`,;:<>|()\[\]{{}}=*]+)*[/\\]?"
    text = re.sub(path, lambda match: base_name(match[0].removeprefix("file://")), text)
    names = {PurePath(home_folder()).name, os.environ.get("USER"), os.environ.get("LOGNAME")} - {"", None}
    return re.sub(rf"(?<![\w.@-])(?:{'|'.join(map(re.escape, names))})@\w[\w.-]*", REDACTED, text) if names else text


def without_tokens(text: str) -> str:
    """Replace everything in a text that looks like a secret."""
    for begin, end, _ in sorted(_secrets(text), reverse=True):
        text = text[:begin] + REDACTED + text[end:]
    text = re.sub(r"(?<=://)[^\s/@\"'`<>]+(?=@)", REDACTED, text)  # a user alone may be a token too
    return QUERY.sub(
        lambda query: f"{query[1]}{query[2]}={REDACTED}" if is_secret(query[2], query[3]) else query[0], text
    )


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield line number, from 1, and description of everything in a text that looks like a secret, each once.

    >>> list(secrets_in("a line\ntoken: hf_" + "Ab1" * 11))
    [(2, 'a Hugging Face token (hf_A..., 36 characters)')]
    """
    values = {text[begin:end]: (begin, kind) for begin, end, kind in reversed(_secrets(text))}
    for value, (begin, kind) in reversed(values.items()):
        yield text.count("\n", 0, begin) + 1, f"{kind} ({value[:4]}..., {len(value)} characters)"


def _secrets(text: str) -> list[tuple[int, int, str]]:
    """Return begin, end and kind of the secrets in a text, without overlaps."""
    matches = [
        (*match.span(match.lastgroup or 0), kind) for kind, form in TOKENS.items() for match in form.finditer(text)
    ]
    for match in ASSIGNED.finditer(text):
        if is_secret(match["name"], match["value"]) and RANDOM.search(match["value"]):
            matches.append((*match.span("value"), f"a value of {match['name'].lstrip('-')}"))
    secrets: list[tuple[int, int, str]] = []
    for begin, end, kind in matches:
        if all(end <= first or last <= begin for first, last, _ in secrets):
            secrets.append((begin, end, kind))
    return secrets


def homes_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number, from 1, and path of the home folders in a text, each once."""
    homes = {match[0]: match.start() for match in reversed(list(re.finditer(_homes(), text)))}
    for home, begin in reversed(homes.items()):
        yield text.count("\n", 0, begin) + 1, home


def is_secret(name: str, value: str) -> bool:
    """Return whether the name of a value says that it is a secret.

    Passwords, API keys and hub tokens always are. Other keys must look random, and a "token" must not be a number.

    >>> is_secret("--hub_token", "x"), is_secret("mask_token", "[MASK]"), is_secret("label_key", "label")
    (True, False, False)
    """
    *before, last = _words(name)
    if value.lower() in ("", "true", "false", "none", "null"):
        return False
    if SECRETS.fullmatch(last) or (last in ("token", "key", "keys", "auth") and any(map(KEYS.fullmatch, before[-1:]))):
        return True
    if last in ("token", "auth"):
        return not any(map(SPECIAL_TOKENS.fullmatch, before)) and not re.fullmatch(r"-?[\d.,]{1,8}", value)
    return last in ("key", "keys") and RANDOM.search(value) is not None


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case, at least an empty one."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)] or [""]
