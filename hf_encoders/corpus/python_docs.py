"""A corpus that every machine has: the documentation inside the Python installation.

The topics of the language reference (`pydoc_data.topics`) and the docstrings of the standard library and the packages
that this one requires: technical English, one document per module. Sources are parsed, never imported. Other installed
packages are left out, so that machines with the same versions have the same text.
"""

import ast
import inspect
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from tqdm import tqdm


SKIPPED_FOLDERS = {"test", "tests", "testing", "idlelib", "site-packages", "dist-packages"}
SKIPPED_FOLDERS |= {"_vendor", "vendor", "externals"}
# Lines of code, tables, rules or markup.
NOT_TEXT = re.compile(r"^\s*(>>>|\.\.\.|\$ |#|\||\+[-=]|[-=~^*`]{3,}|\.\. |:\w|@\w|<[\w!/])|^[^A-Za-z]*$")
FEWEST_WORDS = 5


@dataclass
class LabelledDocument:
    """A document, its source, and its passages, each a list of sentences."""

    label: str
    passages: list[list[str]]

    @property
    def sentences(self) -> list[str]:
        """Return all sentences in order."""
        return [sentence for passage in self.passages for sentence in passage]


def read_python_documents(
    sentence_splitter: Callable[[str], list[str]], max_characters: int
) -> list[LabelledDocument]:
    """Collect the documentation of this Python installation, as far as this package requires it.

    A sentence seen before, in whatever module, is left out: packages repeat themselves, and a model memorizes repeated
    text.

    Args:
        sentence_splitter (`Callable[[str], list[str]]`): Splits a paragraph into sentences.
        max_characters (`int`): Characters per library after which no more of its modules are read.

    Returns:
        `list[LabelledDocument]`: Modules with at least two sentences, in the order of their paths; a passage is a
        docstring, the label is the top-level package (`python` for the standard library).
    """
    seen: set[str] = set()
    documents = []
    taken: Counter[str] = Counter()
    for library, source in tqdm(list(_sources()), desc="reading documentation", unit="module"):
        if taken[library] >= max_characters:
            continue
        docstrings = []
        for text in [source] if isinstance(source, str) else _docstrings(source):
            sentences = list(dict.fromkeys(s for s in _sentences(text, sentence_splitter) if s not in seen))
            seen.update(sentences)
            if sentences:
                docstrings.append(sentences)
        document = LabelledDocument(library, docstrings)
        if len(document.sentences) >= 2:
            documents.append(document)
            taken[library] += sum(map(len, document.sentences))
    return documents


def _sources() -> Iterator[tuple[str, str | Path]]:
    """Yield library and text of the topics of `help()`, then library and path of every module, sorted."""
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield "python", text
    paths, required = sysconfig.get_paths(), required_packages()
    for folder, is_standard in ((Path(paths["stdlib"]), True), (Path(paths["purelib"]), False)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).parts
            library = "python" if is_standard else parts[0].removesuffix(".py")
            is_read = is_standard or library in required
            if is_read and SKIPPED_FOLDERS.isdisjoint(parts[:-1]) and not parts[-1].startswith("test"):
                yield library, path


def required_packages() -> set[str]:
    """Return the top-level packages of what this package requires, directly or not, without extras."""
    required, waiting = set(), ["hf_encoders"]
    while waiting:
        with suppress(PackageNotFoundError):  # required on other systems
            for requirement in requires(waiting.pop()) or ():
                name = _normalised(re.match(r"[\w.-]+", requirement)[0])
                if "extra ==" not in requirement and name not in required:
                    required.add(name)
                    waiting.append(name)
    packages = packages_distributions().items()
    return {package for package, names in packages if any(_normalised(name) in required for name in names)}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source file, that of the module first; none if it cannot be parsed."""
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
