"""Documentation of installed libraries: what cannot be parsed is left out, and repeated sentences."""

from hf_encoders.data import split_sentences
from hf_encoders.data.corpus import python_docs


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
