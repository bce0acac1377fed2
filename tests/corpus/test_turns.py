"""Dialogues as documents: roles are told by the places of turns."""

import json

import datasets
import jieba
import pytest

from hf_encoders import prepare_corpus
from hf_encoders.cli import main
from hf_encoders.corpus.report import CorpusReport
from hf_encoders.corpus.turns import sentences_of_turns
from tests.corpus.prepared import rows


def said(*turns):
    """Turns with roles: `said("q w5", "r w6")`."""
    names = {"q": "query", "r": "response", "u": "user", "a": "assistant"}
    return [{"role": names[turn[0]], "text": turn[2:]} for turn in turns]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["w5", "w6", "w7"], ["w5", "w6", "w7"]),
        (["w5", " ", "w7"], ["w5", "", "w7"]),
        (["", "w6", "w7"], ["", "w6", "w7"]),
        (said("q w5", "q w6", "r w7"), ["w5", "", "w6", "w7"]),
        (said("r w5", "r w6", "q w7"), ["", "w5", "", "w6", "w7"]),
        (said("u w5", "a \n", "u w6", "a w7"), ["w5", "", "w6", "w7"]),
        ([{"role": "user", "content": "w5"}], ["w5"]),
        ([], []),
        (["", "\t"], []),
    ],
)
def test_places_tell_roles(turns, expected):
    assert sentences_of_turns(turns) == expected


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ("w5", "'w5' is not a list of turns"),
        ([{"role": "system", "text": "w5"}], "role 'system': it must be one of query, response, user, assistant"),
        ([{"text": "w5"}], "role None"),
        ([{"role": "query", "body": "w5"}], "no text: give it as a str in text or content"),
        ([{"role": "query", "text": ["w5"]}], "no text: give it"),
        ([{"role": ["query"], "text": "w5"}], r"role \['query'\]"),
        (["w5", {"role": "query", "text": "w5"}], "give all turns of a dialogue a role, or none"),
        ([["query", "w5"]], "give turns that alternate as a list of str"),
    ],
)
def test_what_is_no_dialogue_is_refused(turns, message):
    with pytest.raises(ValueError, match=message):
        sentences_of_turns(turns)


DIALOGUES = [["w5 w6", "w7", "w8"], said("q w9", "q w10", "r w11"), said("r w12", "q w13"), ["", " "]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corpus_of_dialogues(tokenizer, tmp_path, workers):
    lines = [json.dumps({"turns": turns}) for turns in DIALOGUES]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("w5. w6\nw7\n\nw8\n")
    report = prepare_corpus([tmp_path], tmp_path / "out", tokenizer, turns_column="turns", workers=workers)
    dot = tokenizer.unk_token_id
    expected = [[[5, 6], [7], [8]], [[9], [], [10], [11]], [[], [12], [13]], [[dot, 6], [7]], [[8]]]
    found = rows(tmp_path / "out")
    assert [[s if s[:1] != [3] else [dot, *s[1:]] for s in d] for d in found] == expected
    assert report.statistics.sentences == 11 and report.settings["turns_column"] == "turns"


def test_a_dataset_of_dialogues_with_a_word_segmenter(tokenizer, tmp_path):
    dataset = datasets.Dataset.from_dict({"talk": [said("q w5", "q w6", "r w7")]})
    prepare_corpus(dataset, tmp_path / "out", tokenizer, turns_column="talk", word_segmenter=jieba.lcut, workers=1)
    assert rows(tmp_path / "out") == [[[5], [], [6], [7]]]
    starts = datasets.load_from_disk(tmp_path / "out")["word_starts"][:]
    assert [[len(sentence) for sentence in document] for document in starts] == [[1, 0, 1, 1]]


def test_the_command_prepares_dialogues_and_names_the_line(tokenizer, tmp_path, capsys):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "dialogues.jsonl"
    words = ["corpus", "--input", str(file), "--tokenizer", str(tmp_path / "tokenizer"), "--workers", "1"]
    file.write_text(json.dumps({"turns": DIALOGUES[1]}) + "\n")
    assert main([*words, "--output", str(tmp_path / "out"), "--turns-column", "turns"]) == 0
    assert CorpusReport.load(tmp_path / "out").settings["turns_column"] == "turns"
    file.write_text('{"turns": ["w5"]}\n{"turns": [{"role": "system", "text": "w5"}]}\n')
    for number, (more, message) in enumerate(
        (
            (["--turns-column", "turns"], "dialogues.jsonl, line 2: a turn with role 'system'"),
            (["--turns-column", "talk"], "line 1: no field 'talk'"),
            (["--turns-column", "turns", "--sentences-column", "turns"], "give one of them"),
            (["--turns-column", "turns", "--max-sentence-tokens", "5"], "would divide turns"),
        )
    ):
        assert main([*words, "--output", str(tmp_path / str(number)), *more]) != 0
        assert message in capsys.readouterr().err
