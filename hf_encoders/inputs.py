"""Checks of names and paths that a user gave; nothing is imported or read for them."""

import difflib
import importlib.util
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


SIDES = 2  # of a pair of parallel text
NOT_THERE = "does not exist: check the spelling, and the folder it is relative to."
REMEDY = "give a folder that save_pretrained wrote, or the name of a model on the Hub."


def close_names(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that look like `word`, those that look most like it first.

    >>> close_names("bert-minute", ["xlnet", "roberta-minutes", "bert-minutes"])
    ['bert-minutes', 'roberta-minutes']
    """
    return difflib.get_close_matches(word, list(names))


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """Return the names to choose from, after a question that names the closest one, if one is close.

    >>> did_you_mean("onx", ["native", "onnx"]), did_you_mean("x", ["native", "onnx"])
    ('did you mean onnx? choose from native, onnx', 'choose from native, onnx')
    """
    closest = close_names(word, names)
    return (f"did you mean {closest[0]}? " if closest else "") + f"choose from {', '.join(names)}"


def check_exists(path: str, option: str) -> None:
    """Refuse a path of nothing, naming the option that gave it."""
    if not Path(path).exists():
        raise ValueError(f"{option} {path!r} {NOT_THERE}")


def check_name_or_path(source: str | Path, what: str) -> None:
    """Refuse what looks like a path, and where there is nothing; a name that the Hub may have passes.

    Raises:
        ValueError: beginning with `what`, the option and its value.
    """
    name = str(source)
    is_path = isinstance(source, Path) or name.startswith((".", "~", os.sep)) or name.endswith(os.sep)
    if (is_path or name.count("/") > 1) and not Path(name).exists():
        raise ValueError(f"{what} {NOT_THERE}")


def check_checkpoint(source: str | Path, what: str) -> None:
    """Refuse the name of a checkpoint as `check_name_or_path`, and a file."""
    check_name_or_path(source, what)
    if Path(source).is_file():
        raise ValueError(f"{what} is a file: give the folder that it is in, as save_pretrained wrote it.")


def check_model(source: str | Path, what: str) -> None:
    """Refuse the name of a model as `check_checkpoint`, and a folder without a configuration.

    An adapter, which has one of its own, passes.
    """
    check_checkpoint(source, what)
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).exists() for name in ("config.json", "adapter_config.json")):
        of_run = folder / "model"
        remedy = f"give {str(of_run)!r}, which has one." if (of_run / "config.json").is_file() else REMEDY
        raise ValueError(f"{what} has no config.json: {remedy}")


def check_packages(names: Iterable[str], what: str, extra: str) -> None:
    """Refuse what needs packages that are not installed; `extra` is the extra of this package that installs them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"{what} needs packages that are not installed ({', '.join(missing)}): "
            f"pip install 'hf_encoders[{extra}]', or pip install {' '.join(missing)}."
        )


# ISO 639-1, and withdrawn codes that are still in use (bh, sh).
_TWO_LETTERS = """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
    ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
    ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss
    st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_TWO_LETTERS.split())


def is_language_code(code: str) -> bool:
    """Return whether a code is one of ISO 639-1, or three letters like those of ISO 639-3, which are not listed here.

    >>> [is_language_code(code) for code in ("de", "gsw", "xx", "DE", "de-AT", "german")]
    [True, True, False, False, False, False]
    """
    return code in LANGUAGES or re.fullmatch(r"[a-z]{3}", code) is not None


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, or its type if the message is empty.

    >>> first_line(ValueError("weights are missing\nTraceback ...")), first_line(TimeoutError())
    ('weights are missing', 'TimeoutError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def check_languages(languages: Sequence[str]) -> tuple[str, str]:
    """Return the names of two different languages; anything else is a `ValueError`."""
    names = () if isinstance(languages, str) else tuple(languages or ())
    if len(names) != SIDES or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"languages={languages!r}: name two, of the first and the second side, such as en zh.")
    if names[0] == names[1]:
        raise ValueError(f"languages={languages!r}: both sides are {names[0]!r}; a pair has two languages.")
    return names


def replace_lone_surrogates(text: str) -> str:
    r"""Replace halves of surrogate pairs, which UTF-8 cannot encode, by U+FFFD; a complete pair becomes its character.

    They come from JSON escapes such as `"\ud83d"`.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
