"""Read values that modules which import torch write out from their source: an import takes seconds."""

import ast
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any


PACKAGE = Path(__file__).parent


@cache
def literals(module: str) -> dict[str, Any]:
    """Return the literals that a module of this package assigns to names, at its top and in its classes.

    >>> literals("objectives.mlm")["name"]
    'mlm'
    """
    body = _body(module)
    return _assigned([*body, *chain(*(node.body for node in body if isinstance(node, ast.ClassDef)))])


@cache
def literals_of_classes(module: str) -> list[dict[str, Any]]:
    """Return the literals that each class of a module assigns to names.

    >>> [values["name"] for values in literals_of_classes("objectives.sentence_pairs") if "name" in values]
    ['nsp', 'sop']
    """
    return [_assigned(node.body) for node in _body(module) if isinstance(node, ast.ClassDef)]


def _body(module: str) -> list[ast.stmt]:
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")).body


def _assigned(nodes: list[ast.stmt]) -> dict[str, Any]:
    values = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                value = literal(node.value)
                if isinstance(target, ast.Name) and value is not None:
                    values[target.id] = value
    return values


def constant(module: str, name: str) -> Any:
    """Return a constant of a module of this package, which the module writes out as a literal.

    >>> constant("runs.initial", "HOW")
    ('copy', 'interpolate')
    """
    return literals(module)[name]


def literal(node: ast.expr | None) -> Any:
    """Return the value of an expression that is written out; None for another one."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
