"""What a function does, as text that is the same in every run and another when its code, or what it calls, changes.

What is installed is told by its version, all else by its code. Leaves out: what objects at module level hold that are
neither code nor plain values (a loaded model, say), which may be another in every run.
"""

import dis
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from datasets.fingerprint import Hasher

import hf_encoders


_OF_THE_MODULE = ("LOAD_GLOBAL", "LOAD_NAME")  # instructions
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...))


def describe_function(function: Callable | None) -> str | None:
    """Name what a function does.

    Args:
        function (`Callable`, *optional*): From this package or Python: its name. From another installed distribution:
            name and version. Else (a module of the user's own, an editable installation, `__main__`, a lambda): name
            and a hash of its code, defaults and closure, and of the user's functions that it calls. Of a `partial`
            also the arguments that are not defaults: with none it is the function.

    >>> from hf_encoders.data.corpus.segmentation import split_sentences
    >>> describe_function(partial(split_sentences, language="de"))
    "hf_encoders.data.corpus.segmentation.split_sentences(language='de')"
    """
    if function is None:
        return None
    if isinstance(function, partial):
        described = describe_function(function.func)
        arguments = [
            _argument(value) if name is None else f"{name}={_argument(value)}" for name, value in _set(function)
        ]
        return f"{described}({', '.join(arguments)})" if arguments else described
    if name := _installed_name(function):
        return name
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(function, {}):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return f"{_name(function)}#{digest.hexdigest()}"


def _set(function: partial) -> list[tuple[str | None, Any]]:
    """The arguments of a partial that are not the function's defaults, by name where the signature tells it."""
    try:
        signature = inspect.signature(function.func)
        bound = signature.bind_partial(*function.args, **function.keywords)
    except (TypeError, ValueError):  # some functions of C have no signature
        return [*((None, value) for value in function.args), *sorted(function.keywords.items())]
    given: list[tuple[str | None, Any]] = []
    for name, value in bound.arguments.items():
        kind, default = signature.parameters[name].kind, signature.parameters[name].default
        if kind is inspect.Parameter.VAR_POSITIONAL:
            given += [(None, one) for one in value]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            given += sorted(value.items())
        elif default is inspect.Parameter.empty or _argument(value) != _argument(default):
            given.append((name, value))
    return given


def _argument(value: Any) -> str:
    return describe_function(value) if callable(value) else repr(value)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _installed_name(value: Any) -> str | None:
    """Name, and version, of a function or class that they identify; `None` if its code has to be looked at."""
    name = _name(value)
    if not hasattr(value, "__qualname__") or "<" in name:
        return None  # an object that can be called, a lambda, or a function made by another
    version = _version(getattr(value, "__module__", None) or "builtins")
    return None if version is None else name + version


@cache
def _version(module: str) -> str | None:
    """`"==1.2"` for a module of an installed distribution, nothing for Python's and this package's, else `None`."""
    package = module.split(".")[0]
    if package == hf_encoders.__name__ or package in sys.stdlib_module_names:
        return ""
    file = getattr(sys.modules.get(module), "__file__", None)
    for name in packages_distributions().get(package, []):
        found = distribution(name)
        # An editable installation has its files elsewhere, and they change without a new version.
        if file is None or Path(file).resolve().is_relative_to(Path(found.locate_file("")).resolve()):
            return f"=={found.version}"
    return None


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """All that decides what a value does; `seen` holds what was looked at, which may refer to itself."""
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value)))
    elif name := _installed_name(value):
        yield name
    elif id(value) not in seen:
        seen[id(value)] = value
        yield f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"
        for inner in _inner_values(value):
            yield from _parts(inner, seen)
        # Whether equal constants are one object depends on whether the code was just compiled.
        if isinstance(value, (list, tuple, dict, CodeType)):
            del seen[id(value)]


def _inner_values(value: Any) -> list[Any]:
    """What a value is made of."""
    if isinstance(value, (list, tuple)):
        return [len(value), *value]
    if isinstance(value, dict):
        return [len(value), *value.keys(), *value.values()]
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, ModuleType):
        return [value.__name__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, FunctionType):
        closure = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, closure, _globals_of(value)]
    if isinstance(value, type):
        members = {name: member for name, member in vars(value).items() if not _is_of_python(name, member)}
        return [value.__bases__, members]
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return [value.__func__, getattr(value, "__self__", None)]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if hasattr(value, "__wrapped__"):
        return [value.__wrapped__]
    return [type(value), Hasher.hash(value)]


def _is_of_python(name: str, member: Any) -> bool:
    """Whether a member of a class is none that its author wrote."""
    return name.startswith("__") and not isinstance(member, (FunctionType, staticmethod, classmethod))


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """What a function uses of its module and, where modules are the user's own, of others."""
    codes = _codes_in(function.__code__)
    names = {one.argval for code in codes for one in dis.get_instructions(code) if one.opname in _OF_THE_MODULE}
    found = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    attributes = sorted({name for code in codes for name in code.co_names})
    for module_name, module in list(found.items()):
        if isinstance(module, ModuleType) and _version(module.__name__) is None:
            used = {name: getattr(module, name) for name in attributes if hasattr(module, name)}
            found |= {f"{module_name}.{name}": value for name, value in used.items()}
    return {name: value if _is_told_by_value(value) else type(value).__qualname__ for name, value in found.items()}


def _codes_in(code: CodeType) -> list[CodeType]:
    """Code and that of the functions within it."""
    return [code, *(inner for one in code.co_consts if isinstance(one, CodeType) for inner in _codes_in(one))]


def _is_told_by_value(value: Any) -> bool:
    kinds = (*_PLAIN, set, frozenset, list, tuple, dict, re.Pattern, ModuleType, partial, type)
    return isinstance(value, kinds) or hasattr(value, "__qualname__") or hasattr(value, "__wrapped__")
