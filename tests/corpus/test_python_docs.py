"""Documentation of installed libraries: what cannot be parsed is left out, and repeated sentences."""

from importlib.metadata import PackageNotFoundError

from hf_encoders import split_sentences
from hf_encoders.corpus import python_docs


def test_documentation_of_what_can_be_parsed(tmp_path, monkeypatch):
    """Installed packages hold templates, files for other versions of Python, and links to nothing."""
    files = {
        "good.py": '"""One line of several words is here. Another line of several words is there."""',
        "repeated.py": '"""One line of several words is here. A third line is new here. A fourth line is new here."""',
        "template.py": "class {{ name }}:",
        "python2.py": "print 'hello'",
        "null.py": "\0",
        "short.py": '"""One sentence alone is too little for a document."""',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "broken_link.py").symlink_to(tmp_path / "nothing")
    paths = sorted(tmp_path.iterdir())
    monkeypatch.setattr(python_docs, "_sources", lambda: [("library", path) for path in paths])
    first, second = python_docs.read_python_documents(split_sentences, max_characters=1_000)
    assert first.sentences == ["One line of several words is here.", "Another line of several words is there."]
    assert second.sentences == ["A third line is new here.", "A fourth line is new here."]
    (first,) = python_docs.read_python_documents(split_sentences, max_characters=10)
    assert first.label == "library"


def test_the_text_does_not_depend_on_what_else_is_installed(monkeypatch):
    needs = {
        "hf_encoders": ["torch>=2", "PyYAML", 'jieba; extra == "chinese"'],
        "torch": ["sympy <2", "windows-only; sys_platform == 'win32'"],
        "pyyaml": None,
        "sympy": ["torch"],
        "peft": ["accelerate"],
    }

    def requires(name):
        if name not in needs:
            raise PackageNotFoundError(name)
        return needs[name]

    installed = {"torch": ["torch"], "functorch": ["torch"], "yaml": ["PyYAML"], "sympy": ["sympy"]}
    monkeypatch.setattr(python_docs, "requires", requires)
    monkeypatch.setattr(
        python_docs, "packages_distributions", lambda: {**installed, "peft": ["peft"], "jieba": ["jieba"]}
    )
    assert python_docs.required_packages() == set(installed)


def test_sources_are_of_python_and_of_required_packages():
    libraries = {library for library, _ in python_docs._sources()}
    assert {"python", "torch", "transformers", "sklearn"} <= libraries
    assert libraries.isdisjoint({"pytest", "_pytest", "pip", "hf_encoders"})
