"""Files of minimal pairs, and metrics of their scores."""

import json

import numpy as np
import pytest

from hf_encoders.evaluation.scores import MinimalPair, compare_pairs, read_minimal_pairs


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def row(number: int, **others) -> dict:
    return {"sentence_good": f"good {number}", "sentence_bad": f"bad {number}", **others}


def test_files_and_folders_are_read_in_order(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "b.jsonl", [row(3), row(4)])
    write(tmp_path / "folder" / "a.jsonl", [row(1, UID="island"), row(2, UID="agreement")])
    (tmp_path / "folder" / "README.md").write_text("not read")
    single = write(tmp_path / "single.jsonl", [row(5, field="syntax")])
    pairs = read_minimal_pairs([tmp_path / "folder", single])
    assert pairs == [
        MinimalPair("good 1", "bad 1", "island"),
        MinimalPair("good 2", "bad 2", "agreement"),
        MinimalPair("good 3", "bad 3", "b"),
        MinimalPair("good 4", "bad 4", "b"),
        MinimalPair("good 5", "bad 5", "single"),
    ]
    assert read_minimal_pairs([tmp_path / "folder"], most_per_file=1) == [pairs[0], pairs[2]]


def test_wrong_files_are_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="none.jsonl: is not a file"):
        read_minimal_pairs([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match="has no .*jsonl file"):
        read_minimal_pairs([tmp_path])
    path = write(tmp_path / "pairs.jsonl", [row(1), {"sentence_good": "alone"}])
    with pytest.raises(ValueError, match="pairs.jsonl, row 2: sentence_bad is None"):
        read_minimal_pairs([path])
    path.write_text('{"sentence_good": "x", "sentence_bad"\n')
    with pytest.raises(ValueError, match="pairs.jsonl, line 1: is not JSON"):
        read_minimal_pairs([path])


def test_every_pair_counts_the_same_overall():
    good, bad = np.array([-1.0, -5.0, -1.0, -2.0]), np.array([-2.0, -4.0, -1.0, -3.0])
    overall, by_paradigm = compare_pairs(good, bad, ["z", "z", "z", "a"])
    assert overall == (0.5, 4, 1)
    assert list(by_paradigm) == ["a", "z"]
    assert by_paradigm == {"a": (1.0, 1, 0), "z": (1 / 3, 3, 1)}
