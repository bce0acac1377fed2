"""The pages of Reference: one for each public name, from its docstring, and an index of all. mkdocs.yml runs it."""

import inspect
import re
from posixpath import relpath

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import hf_encoders
from hf_encoders.public_names import MODULES
from hf_encoders.registration import family_classes


ROOMS = {  # folder of a public name -> title in the navigation
    "corpus": "Text and tokenizers",
    "objectives": "Objectives and data",
    "training": "Training",
    "runs": "Runs",
    "evaluation": "Evaluation",
    "publishing": "Publishing",
    "loading": "Loading",
    "models": "Model classes",
}


def public_objects():
    """Yield room, name and dotted path of every public name that has a docstring of its own."""
    for name, module in MODULES.items():
        yield module.split(".")[0], name, f"hf_encoders.{module}.{name}"
    yield "objectives", "presets", "hf_encoders.objectives.presets"
    for name, cls in family_classes().items():
        yield "models", name, f"{cls.__module__}.{name}"


def on_config(config):
    """Add Reference to the navigation."""
    rooms = {}
    for room, name, _ in public_objects():
        room = room if room in ROOMS else "loading"
        rooms.setdefault(room, []).append({name: f"reference/{name}.md"})
    config.nav.append({"Reference": ["reference/index.md", *({ROOMS[room]: rooms[room]} for room in ROOMS)]})
    return config


def on_files(files, config):
    """Add the pages."""
    rows = ["# Reference", "", "All public names are imported from `hf_encoders`.", "", "| name | |", "|---|---|"]
    for _, name, path in public_objects():
        summary = inspect.getdoc(getattr(hf_encoders, name)).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        rows.append(f"| [`{name}`]({name}.md) | {summary} |")
        page = f"---\ntitle: {name}\n---\n\n::: {path}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    files.append(File.generated(config, "reference/index.md", content="\n".join(rows) + "\n"))
    return files


def on_page_markdown(markdown, page, config, files):
    """Link public names in code marks to their page, outside of blocks of code and other links."""
    markdown = re.sub(r"^(```\w+) no-run$", r"\1", markdown, flags=re.M)  # the mark of blocks that tests leave out
    parts = re.split(r"(^```.*?^```$|\[[^\]]*\]\([^)]*\))", markdown, flags=re.S | re.M)
    folder = page.file.src_uri.rpartition("/")[0] or "."

    def linked(match):
        target = f"reference/{match[1]}.md"
        return f"[{match[0]}]({relpath(target, folder)})" if files.get_file_from_path(target) else match[0]

    parts[::2] = (re.sub(r"`(\w+)`", linked, part) for part in parts[::2])
    return "".join(parts)


def on_page_content(html, page, config, files):
    """Refuse a page with a block of code that is shown as text."""
    if re.search(r"<p>[^<]*```", html):
        raise PluginError(
            f"{page.file.src_uri}: a block of code is shown as text: its first line has an unknown word."
        )
    return html
