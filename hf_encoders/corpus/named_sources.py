"""Several sources of text: `NAME=VALUE` words of the command line, languages, and how often each is drawn."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_encoders.inputs import LANGUAGES, is_number


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
    paths: dict[str, list[str]] = {}
    for word in words:
        match = None if Path(word).exists() else _NAMED.fullmatch(word)
        name, path = (UNNAMED, word) if match is None else match.groups()
        if name and not path:
            raise ValueError(f"{option} {word}: source {name!r} has no path: give {name}=PATH.")
        paths.setdefault(name, []).append(path)
    if UNNAMED in paths and len(paths) > 1:
        raise ValueError(
            f"{option}: {paths[UNNAMED][0]} has no name, and {', '.join(filter(None, paths))} are names of sources: "
            "give NAME=PATH for all, or for none."
        )
    folded = {}
    for name in paths:
        if folded.setdefault(name.lower(), name) != name:
            raise ValueError(f"{option}: {folded[name.lower()]} and {name} differ in case only: give one name.")
    return paths


def named_codes(words: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the values of words `NAME=CODE`, at most one for each of the sources `names`.

    Args:
        words (`Iterable[str]`): Values of `--language`.
        names (`Iterable[str]`): The sources.

    Raises:
        ValueError: for a word of another form, an unknown name, or one that comes twice.

    >>> named_codes(["law=de", "web=en"], ["law", "web"])
    {'law': 'de', 'web': 'en'}
    """
    names, codes = [name for name in names if name], {}
    for word in words:
        match = _NAMED.fullmatch(word)
        if match is None or not match[2]:
            raise ValueError(f"--language {word}: give NAME=CODE for a source.")
        name, value = match.groups()
        if name not in names:
            there = f"the sources are {', '.join(names)}" if names else "no source has a name: give NAME=PATH"
            raise ValueError(f"--language {word}: there is no source {name!r}: {there}.")
        if codes.setdefault(name, value) != value:
            raise ValueError(f"--language: {name} is there twice, as {codes[name]} and {value}: give it once.")
    return codes


def languages_of(words: Sequence[str], names: Iterable[str], default: str | None) -> dict[str, str | None]:
    """Return the language code of each source.

    From `NAME=CODE`; else, if the name is a code of two letters, that; else the one `CODE` that is given, or the
    default.

    Args:
        words (`Sequence[str]`): Values of `--language`: one `CODE`, any number of `NAME=CODE`, or none.
        names (`Iterable[str]`): The sources, `""` for one without a name.
        default (`str`, *optional*): Code where nothing else says one.

    Raises:
        ValueError: for several codes without names, and as `named_codes`. The codes are not checked.

    >>> languages_of(["law=de", "fr"], ["law", "zh", "web"], "en")
    {'law': 'de', 'zh': 'zh', 'web': 'fr'}
    """
    names = list(names)
    plain = [word for word in words if "=" not in word]
    if len(plain) > 1:
        raise ValueError(f"--language {' '.join(plain)}: give one CODE, or NAME=CODE for each source.")
    codes = named_codes((word for word in words if "=" in word), names)
    fallback = plain[0] if plain else default
    return {name: codes.get(name, name if name in LANGUAGES else fallback) for name in names}


def in_words(values: Mapping[str, str]) -> str:
    """Values of sources in words: `de: wiki, en: books`; without its name where there is none."""
    return ", ".join(f"{name}: {value}" if name else value for name, value in values.items())


@dataclass(frozen=True)
class Sampling:
    """How often the sources of a mixture are drawn: by their sizes, to a power, or by given weights.

    Sources: XLM (arXiv 1901.07291, section 3.1) and XLM-R (arXiv 1911.02116, section 2).

    Args:
        alpha (`float`, *optional*): Power of a source's share of the examples, in (0, 1]: 1 draws each as often as its
            size says, lower values draw small sources more often. XLM-R: 0.3, XLM: 0.7. 1 without `weights`.
        weights (`Mapping[str, float]`, *optional*): Source -> how often it is drawn, at any scale; 0 leaves it out.

    Raises:
        ValueError: if both are given, or one is out of range.

    >>> Sampling(alpha=0.5).shares({"en": 900, "gsw": 100})
    {'en': 0.75, 'gsw': 0.25}
    >>> Sampling(weights={"law": 3, "web": 1}).shares({"law": 10, "web": 9000})
    {'law': 0.75, 'web': 0.25}
    """

    alpha: float | None = None
    weights: Mapping[str, float] | None = None

    def __post_init__(self):
        if self.alpha is not None and self.weights is not None:
            raise ValueError(f"alpha={self.alpha} and weights={dict(self.weights)}: give one of them.")
        if self.alpha is not None and not (is_number(self.alpha) and 0 < self.alpha <= 1):
            raise ValueError(
                f"alpha={self.alpha!r} must be in (0, 1]: 1 draws sources as often as their sizes say, 0.3 (XLM-R) "
                "draws small ones more often."
            )
        if self.weights is None:
            return
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise ValueError(f"weights={self.weights!r} must name each source, such as {{law: 2, web: 1}}.")
        for name, weight in self.weights.items():
            if not (is_number(weight) and weight >= 0):
                raise ValueError(f"weights: {name}={weight!r} must be a number of at least 0.")
        if not any(self.weights.values()):
            raise ValueError(f"weights={dict(self.weights)}: one of them must be above 0.")

    def __str__(self) -> str:
        if self.weights is None:
            return f"alpha {self.alpha or 1.0:g}"
        return f"weights {', '.join(f'{name} {weight:g}' for name, weight in self.weights.items())}"

    def shares(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Return the share of each source, from their sizes; the shares add up to 1.

        Raises:
            ValueError: if a source has no weight, or a weight no source.
        """
        if self.weights is None:
            total = sum(sizes.values())
            weights = {name: (size / total) ** (self.alpha or 1.0) for name, size in sizes.items()}
        else:
            self.check_names(sizes)
            weights = {name: float(self.weights[name]) for name in sizes}
        total = math.fsum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def check_names(self, names: Sequence[str] | Mapping[str, Any]) -> None:
        """Refuse weights of other sources than these."""
        there = f"the sources are {', '.join(names)}"
        for name in self.weights or ():
            if name not in names:
                raise ValueError(f"weights: there is no source {name!r}: {there}.")
        for name in names:
            if name not in (self.weights or names):
                raise ValueError(f"weights: source {name!r} has none: {there}; 0 leaves one out.")
