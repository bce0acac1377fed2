"""`hf-encoders report`: one page on a run that says what its files say, and needs nothing else."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from hf_encoders.cli import main


class Page(HTMLParser):
    """Headings, rows of tables and links of a page; tags that are not closed are an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.rows, self.links = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "path", "use", "rect", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.links += [value for name, value in attributes if tag == "a" and name == "href"]

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_data(self, text):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(text)
        elif self.rows and "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += text


@pytest.fixture
def run_folder(pretrained, tmp_path):
    shutil.copytree(pretrained / "whole", tmp_path / "whole")
    return tmp_path / "whole"


def report(folder):
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


def test_it_says_what_the_run_says(run_folder):
    run = json.loads((run_folder / "run.json").read_text())
    text, page = report(run_folder)
    assert page.headings[:4] == ["whole", "Before and after", "Plan and run", "Curves"]
    cells = {row[0]: row[1:] for row in page.rows}
    assert cells["mlm loss"][1] == f"{run['after']['eval_mlm_loss']:.3f}"
    assert cells["steps"] == ["6", "6"]
    assert cells["tokens"][0] == f"{run['plan']['tokens']:,.0f}" and int(cells["tokens"][1].replace(",", "")) > 0
    assert f"{run['unigram_cross_entropy']:.3f}" in cells["mlm loss"][2]
    assert "24 tokens" in text and "40 tokens" in text  # the phases, in the picture
    assert page.links == ["model/README.md", "model/training_record.json", "run.json"]
    assert all((run_folder / link).is_file() for link in page.links)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)  # nothing from elsewhere


def test_guesses_of_hidden_words_are_shown_as_text(run_folder):
    file = run_folder / "run.json"
    run = json.loads(file.read_text())
    shown = [{"before": "a <b>", "after": " c", "truth": "Word", "guesses": [["word", 0.5], ["other", 0.25]]}]
    file.write_text(json.dumps({**run, "predictions": {"right": 1, "number": 2, "shown": shown}}))
    text, page = report(run_folder)
    assert ["a <b>… c", "Word", "word 50 %, other 25 %"] in [
        [" ".join(cell.split()) for cell in row] for row in page.rows
    ]
    assert "1 of 2 first guesses are right" in text and '<span class="right">word 50 %</span>' in text


def test_a_run_that_is_not_finished_has_a_page_too(run_folder):
    shutil.rmtree(run_folder / "model")
    file = run_folder / "run.json"
    run = json.loads(file.read_text())
    for name in ("after", "predictions", "unigram_cross_entropy"):
        run.pop(name, None)
    file.write_text(json.dumps({**run, "is_finished": False}))
    text, page = report(run_folder)
    assert "not finished" in text and page.headings[1] == "Plan and run" and page.links == ["run.json"]


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_fine_tuning_says_its_scores_and_each_of_its_warnings(tmp_path):
    score = {"mean": 0.75, "standard_deviation": None}
    results = {
        "summary": {"test": {"accuracy": score, "f1_macro": score}},
        "baseline": {"test": {"accuracy": 0.5}},
        "repeated_rows": {"test": 2},
        "warnings": {"3": ["all predictions are 'x'.", "no better"], "4": []},
        "seeds": [{"seed": 3, "seconds": 60}, {"seed": 4, "seconds": 60}],
        "settings": {"model": "encoder"},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    text, page = report(tmp_path)
    assert page.headings == [tmp_path.name, "Scores, test", "Warnings", "Files"]
    assert page.rows == [
        ["test", "mean", "standard deviation", "without reading"],
        ["accuracy", "0.750", "", "0.500"],
        ["f1 macro", "0.750", "", ""],
    ]
    warnings = (
        "test: 2 rows are in the training data too",
        "seed 3, all predictions are &#39;x&#39;.",
        "seed 3, no better",
    )
    assert [text.count(f"<li>{warning}</li>") for warning in warnings] == [1, 1, 1]
