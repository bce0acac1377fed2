"""A corpus that every machine has: the documentation inside the Python installation.

The topics of the language reference (`pydoc_data.topics`) and the docstrings of the standard library and the installed
packages: technical English, one document per module. Sources are parsed, never imported.
"""

import ast
import inspect
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm


SKIPPED_FOLDERS = {"test", "tests", "testing", "idlelib", "site-packages", "dist-packages"}
SKIPPED_FOLDERS |= {"_vendor", "vendor", "externals"}
# Lines of code, tables, rules or markup.
NOT_TEXT = re.compile(r"^\s*(>>>|\.\.\.|\$ |#|\||\+[-=]|[-=~^*`]{3,}|\.\. |:\w|@\w|<[\w!/])|^[^A-Za-z]*$")
FEWEST_WORDS = 5


class Document(NamedTuple):
    """Documentation of one module."""

    library: str  # top-level package, `python` for the standard library
    module: str  # path within the library
    docstrings: list[list[str]]  # sentences of each

    @property
    def sentences(self) -> list[str]:
        """All sentences in source order."""
        return [sentence for docstring in self.docstrings for sentence in docstring]


def read_python_documents(
    sentence_splitter: Callable[[str], list[str]], max_characters: int | None = None, show_progress: bool = True
) -> list[Document]:
    """Collect the documentation of this Python installation.

    A sentence seen before, in whatever module, is left out: packages repeat themselves, and a model memorizes repeated
    text.

    Args:
        sentence_splitter (`Callable[[str], list[str]]`): Splits a paragraph into sentences.
        max_characters (`int`, *optional*): Characters per library after which no more of its modules are read; `None`
            reads all.
        show_progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar.

    Returns:
        `list[Document]`: Modules with at least two sentences, in the order of their paths.
    """
    seen: set[str] = set()
    documents = []
    taken: dict[str, int] = {}
    progress = tqdm(list(_sources()), desc="reading documentation", unit="module", disable=not show_progress)
    for library, module, source in progress:
        if max_characters is not None and taken.get(library, 0) >= max_characters:
            continue
        docstrings = []
        for text in [source] if isinstance(source, str) else list(_docstrings(source)):
            sentences = list(dict.fromkeys(s for s in _sentences(text, sentence_splitter) if s not in seen))
            seen.update(sentences)
            if sentences:
                docstrings.append(sentences)
        document = Document(library, module, docstrings)
        if len(document.sentences) >= 2:
            documents.append(document)
            taken[library] = taken.get(library, 0) + sum(map(len, document.sentences))
    return documents


def _sources() -> Iterator[tuple[str, str, str | Path]]:
    """Library, module and text of the topics of `help()`, then the path of every module, sorted, instead of a text."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield "python", f"topics/{name}", text
    paths = sysconfig.get_paths()
    for folder, is_standard in ((Path(paths["stdlib"]), True), (Path(paths["purelib"]), False)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).parts
            if SKIPPED_FOLDERS.isdisjoint(parts[:-1]) and not parts[-1].startswith("test"):
                yield "python" if is_standard else parts[0].removesuffix(".py"), "/".join(parts), path


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a source file, that of the module first; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old packages hold invalid escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return  # installed packages contain templates, fixtures for other Python versions and broken links
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield inspect.cleandoc(docstring)


def _sentences(text: str, sentence_splitter: Callable[[str], list[str]]) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not NOT_TEXT.match(line)]
        joined = re.sub(r"\s+", " ", " ".join(lines)).replace("``", "").replace("`", "").replace("**", "").strip()
        for sentence in sentence_splitter(joined):
            if len(sentence.split()) >= FEWEST_WORDS:
                yield sentence.strip()
