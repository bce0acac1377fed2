"""How the settings of two corpora differ, in lines for people."""

from datetime import datetime
from pathlib import Path
from typing import Any


FILES_SHOWN = 3


def differences(name: str, found: Any, wanted: Any) -> list[str]:
    """What differs in one setting: found in the folder, and wanted now.

    Args:
        name (`str`): Of the setting.
        found, wanted: Its values, as in `corpus_settings`.

    >>> differences("keep_duplicates", False, True)
    ['keep_duplicates: False there, True now']
    >>> tokenizers = [{"name": "tok", "class": "BertTokenizer", "entries": n, "fingerprint": str(n)} for n in (90, 95)]
    >>> differences("tokenizer", *tokenizers)
    ["tokenizer: 'tok' (BertTokenizer, 90 entries) there, 'tok' (BertTokenizer, 95 entries) now"]
    >>> differences("libraries", {"datasets": "4", "sentencex": "1.0.1"}, {"datasets": "4", "sentencex": "1.0.2"})
    ['version of sentencex: 1.0.1 there, 1.0.2 now']
    """
    if name == "source":
        return _of_sources(found, wanted)
    if name == "tokenizer":
        descriptions = [f"{one['name']!r} ({one['class']}, {one['entries']:,} entries)" for one in (found, wanted)]
        if descriptions[0] == descriptions[1]:
            return [f"tokenizer: another one of the same name and size, {descriptions[0]}"]
        return [f"tokenizer: {descriptions[0]} there, {descriptions[1]} now"]
    if name == "libraries":
        libraries = [one for one in {**found, **wanted} if found.get(one) != wanted.get(one)]
        return [f"version of {one}: {found.get(one)} there, {wanted.get(one)} now" for one in libraries]
    if name in ("sentence_splitter", "word_segmenter"):
        short = [str(one).replace("hf_encoders.data.corpus.segmentation.", "") for one in (found, wanted)]
        names = [one.split("#")[0] for one in short]  # behind it, a hash of the code
        if names[0] == names[1]:
            return [f"{name}: {names[0]} has other code, or calls something that has"]
        return [f"{name}: {short[0]} there, {short[1]} now"]
    return [f"{name}: {found!r} there, {wanted!r} now"]


def _of_sources(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    if "files" not in found or "files" not in wanted:
        kinds = [_kind_of_source(found), _kind_of_source(wanted)]
        if kinds[0] == kinds[1]:
            return [f"text: another {kinds[0]}"]
        return [f"text: {kinds[0]} there, {kinds[1]} now"]
    there, now = ({Path(path).name: rest for path, *rest in one["files"]} for one in (found, wanted))
    lines = []
    for what, names in (
        ("only there", [name for name in there if name not in now]),
        ("only now", [name for name in now if name not in there]),
    ):
        if names:
            more = f" and {len(names) - FILES_SHOWN:,} more" if len(names) > FILES_SHOWN else ""
            lines.append(f"text files {what}: {', '.join(names[:FILES_SHOWN])}{more}")
    changed = [name for name in there if name in now and there[name] != now[name]]
    for name in changed[:FILES_SHOWN]:
        lines.append(f"text file {name}: {_stamp(*there[name])} there, {_stamp(*now[name])} now")
    if len(changed) > FILES_SHOWN:
        lines.append(f"text files changed: {len(changed) - FILES_SHOWN:,} more")
    return lines or ["text files: the same ones in another order, or read in other units"]


def _kind_of_source(source: dict[str, Any]) -> str:
    if "files" in source:
        names = [Path(path).name for path, *_ in source["files"]]
        more = f" and {len(names) - FILES_SHOWN:,} more" if len(names) > FILES_SHOWN else ""
        return f"text files ({', '.join(names[:FILES_SHOWN])}{more})"
    if "pipeline" in source:
        return f"pipeline ({source['pipeline']!r}, {source['tasks']} tasks, {source['parts']} parts)"
    return "streaming data set" if source.get("dataset") == "streaming" else f"data set of {source['rows']:,} rows"


def _stamp(size: int, nanoseconds: int) -> str:
    return f"{size:,} bytes of {datetime.fromtimestamp(nanoseconds / 1e9):%Y-%m-%d %H:%M:%S}"
