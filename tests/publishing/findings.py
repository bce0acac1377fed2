"""What the checks of a folder found, and a configuration to change."""

import json
from pathlib import Path


def errors(found) -> list[str]:
    return [finding.text for finding in found if finding.is_error]


def edit_config(directory: Path, **fields) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
