"""NAME=VALUE words of the command line: several sources of text, their languages and weights."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hf_encoders.inputs import LANGUAGES


UNNAMED = ""  # the source of text that is given without a name
# Names become parts of metrics and names of folders.
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)=(.*)", re.DOTALL)


def named_paths(words: Sequence[str], option: str) -> dict[str, list[str]]:
    """Paths of each source: of words `NAME=PATH`, where a name may come again; or of plain paths, all under `""`.

    A word that is the path of something that exists is a path, whatever it looks like.

    Args:
        words (`Sequence[str]`): Values of an option.
        option (`str`): What messages call it.

    Raises:
        ValueError: for names beside paths without one, a name without a path, and names that differ in case only.

    >>> named_paths(["en=books/", "gsw=wiki.txt", "en=web/"], "--corpus")
    {'en': ['books/', 'web/'], 'gsw': ['wiki.txt']}
    >>> named_paths(["books/", "web/"], "--corpus")
    {'': ['books/', 'web/']}
    """
    found: dict[str, list[str]] = {}
    for word in words:
        match = None if Path(word).exists() else _NAMED.fullmatch(word)
        name, path = (UNNAMED, word) if match is None else match.groups()
        if name and not path:
            raise ValueError(f"{option} {word}: source {name!r} has no path: give {name}=PATH.")
        found.setdefault(name, []).append(path)
    if UNNAMED in found and len(found) > 1:
        raise ValueError(
            f"{option}: {found[UNNAMED][0]} has no name, and {', '.join(filter(None, found))} are names of sources: "
            "give NAME=PATH for all, or for none."
        )
    folded = {}
    for name in found:
        if folded.setdefault(name.lower(), name) != name:
            raise ValueError(f"{option}: {folded[name.lower()]} and {name} differ in case only: give one name.")
    return found


def named_values(words: Iterable[str], option: str, what: str, names: Iterable[str]) -> dict[str, str]:
    """Values of words `NAME=VALUE`, at most one for each of the sources `names`.

    Args:
        words (`Iterable[str]`): Values of an option.
        option, what (`str`): What messages call the option, and a value (`"CODE"`).
        names (`Iterable[str]`): The sources.

    Raises:
        ValueError: for a word of another form, an unknown name, or one that comes twice.

    >>> named_values(["law=2", "web=1"], "--corpus-weights", "WEIGHT", ["law", "web"])
    {'law': '2', 'web': '1'}
    """
    names, found = [name for name in names if name], {}
    for word in words:
        match = _NAMED.fullmatch(word)
        if match is None or not match[2]:
            raise ValueError(f"{option} {word}: give NAME={what} for a source.")
        name, value = match.groups()
        if name not in names:
            there = f"the sources are {', '.join(names)}" if names else "no source has a name: give NAME=PATH"
            raise ValueError(f"{option} {word}: there is no source {name!r}: {there}.")
        if found.setdefault(name, value) != value:
            raise ValueError(f"{option}: {name} is there twice, as {found[name]} and {value}: give it once.")
    return found


def languages_of(words: Sequence[str], names: Iterable[str], default: str | None) -> dict[str, str | None]:
    """The language code of each source.

    From `NAME=CODE`; else, if the name is a code of two letters, that; else the one `CODE` that is given, or the
    default.

    Args:
        words (`Sequence[str]`): Values of `--language`: one `CODE`, any number of `NAME=CODE`, or none.
        names (`Iterable[str]`): The sources, `""` for one without a name.
        default (`str`, *optional*): Code where nothing else says one.

    Raises:
        ValueError: for several codes without names, and as `named_values`. The codes are not checked.

    >>> languages_of(["law=de", "fr"], ["law", "zh", "web"], "en")
    {'law': 'de', 'zh': 'zh', 'web': 'fr'}
    """
    names = list(names)
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise ValueError(f"--language {' '.join(plain)}: give one CODE, or NAME=CODE for each source.")
    given = named_values((word for word in words if "=" in word), "--language", "CODE", names)
    others = plain[0] if plain else default
    return {name: given.get(name, name if name in LANGUAGES else others) for name in names}


def in_words(values: Mapping[str, str]) -> str:
    """Values of sources in words: `de: wiki, en: books`; without its name where there is none."""
    return ", ".join(f"{name}: {value}" if name else value for name, value in values.items())
