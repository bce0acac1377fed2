"""Docstrings as Markdown: mkdocs.yml gives this extension to mkdocstrings."""

import re

import griffe

from hf_encoders.public_names import MODULES


DOCTEST = re.compile(r"^( *)(>>> (?:.|\n)*?)(?=\n\s*\n|\Z)", re.M)
TYPE = re.compile(r"^( +[\w, *]+ )\((.+)\):", re.M)  # of an argument
HEADING = re.compile(r"^( *)(Input|Output): ", re.M)
NAME = re.compile(r"(?<![\w.\[`])`(\w+)`(?![\w`])")


class Docstrings(griffe.Extension):
    """Fence doctests, take the marks out of types, and link public names."""

    def on_object(self, *, obj, **kwargs):
        if not obj.docstring:
            return
        text = HEADING.sub(r"\1**\2:** ", obj.docstring.value)
        text = TYPE.sub(lambda match: f"{match[1]}({re.sub(r'[`*]', '', match[2])}):", text)
        text = DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", text)
        parts = re.split(r"(```.*?```)", text, flags=re.S)  # no links in code
        parts[::2] = (NAME.sub(lambda match: self.linked(match[1], obj), part) for part in parts[::2])
        obj.docstring.value = "".join(parts)

    @staticmethod
    def linked(name, obj):
        module = MODULES.get(name)
        return f"`{name}`" if module is None or name == obj.name else f"[`{name}`][hf_encoders.{module}.{name}]"
