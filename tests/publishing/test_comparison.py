"""The table and the picture of runs that differ in one thing."""

import json

import pytest
from PIL import Image

from hf_encoders.publishing.curves import logged_points, write_comparison


pytestmark = pytest.mark.pictures


FIGURES = {
    "static": [{"loss": 2.0, "steps": 1500}, {"loss": 4.0, "steps": 1500}],
    "dynamic": [{"loss": 1.5, "steps": 1500}, {"loss": 1.5, "steps": 1500}],
}


def test_what_is_written(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "eval_loss": 2.0}, {"step": 40, "eval_loss": 1.0}]
    points = logged_points(history, "eval_loss")
    assert points == [(20, 2.0), (40, 1.0)]
    folder = tmp_path / "new" / "folder"
    one_seed = write_comparison(folder, "x", {"a": [{"loss": 2.0, "NSP": None}]}, {}, "steps", "loss")
    assert one_seed.splitlines()[2] == "| a | 2.000 | – |"
    table = write_comparison(folder, "Masking", FIGURES, {"static": points}, "steps", "loss", log_x=True)
    # Of 2 and 4: mean 3, and sqrt((1 + 1) / (2 - 1)).
    assert table.splitlines() == [
        "| | loss | steps |",
        "|---|---|---|",
        "| static | 3.000 ± 1.414 | 1,500 |",
        "| dynamic | 1.500 ± 0.000 | 1,500 |",
    ]
    assert (folder / "table.md").read_text() == table + "\n"
    assert json.loads((folder / "metrics.json").read_text()) == FIGURES
    with Image.open(folder / "curves.png") as picture:
        assert picture.size == (840, 480)
