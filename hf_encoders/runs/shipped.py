"""The recipes and objectives of this package by their names; nothing here imports torch."""

import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from hf_encoders.inputs import did_you_mean
from hf_encoders.source_literals import PACKAGE, literals


RECIPES = PACKAGE / "runs"


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(file.stem for file in RECIPES.glob("*.yaml"))


def recipes_for_help(names: Iterable[str]) -> str:
    """Return a line for each recipe, with what the comment at the beginning of its file says first."""
    lines = []
    for name in names:
        text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
        comment = " ".join(
            line.strip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines())
        )
        comment = re.sub(r" \(https://[^)]*\)|, https://[^\s)]+", "", comment)
        lines.append(f"  {name:20}{re.split(r'(?<! al)[.;:] |[.]$', comment)[0]}")
    return "\n".join(["recipes:", *lines])


def recipe_file(name: str | Path) -> Path:
    """Return the file of a shipped recipe by its name, or the file of this name.

    Raises:
        ValueError: if there is none; it asks for the recipe with the most similar name, and names all.
    """
    shipped = RECIPES / f"{name}.yaml"
    path = shipped if shipped.is_file() else Path(name)
    if not path.is_file():
        choices = did_you_mean(str(name), recipe_names())
        raise ValueError(f"recipe {str(name)!r}: no such file, nor one of the shipped recipes: {choices}.")
    return path


def text_objectives(in_transformers: bool = False) -> list[str]:
    """Return the names of the objectives of running text that need nothing else, as their classes are written.

    With `in_transformers`, only those that transformers has models for too.
    """
    written = (literals(f"objectives.{file.stem}") for file in sorted((PACKAGE / "objectives").glob("*.py")))
    of_text = (values for values in written if "name" in values and not values.keys() & {"turns_column", "needs"})
    return [values["name"] for values in of_text if values.get("is_in_transformers", True) or not in_transformers]
