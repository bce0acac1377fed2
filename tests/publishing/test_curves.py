"""`hf-encoders plot`: which log of a run is read, what is drawn and said, what a reference keeps."""

import errno
import json
import math

import pytest
from PIL import Image

from hf_encoders import writing
from hf_encoders.cli import main
from hf_encoders.commands.plot import format_table
from hf_encoders.publishing import curves
from hf_encoders.publishing.curves import (
    Curve,
    compare,
    draw_runs,
    logged_points,
    read_run,
    save_reference,
    write_comparison,
)
from hf_encoders.runs.recipe import load_recipe


pytestmark = pytest.mark.pictures


def entries(number, loss=6.0, every=10, tokens=1000):
    """A loss that falls by 0.1 a log."""
    return [
        {
            "step": every * i, "loss": loss - 0.1 * i, "mlm_loss": loss - 0.1 * i, "mlm_accuracy": 0.01 * i,
            "tokens_seen": tokens * i, "training_seconds": 30.0 * i, "tokens_per_second": 33.333333333,
            "grad_norm": 1.0,
        }
        for i in range(1, number + 1)
    ]  # fmt: skip


def write_state(folder, log):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log, "global_step": log[-1]["step"]}))
    return folder


@pytest.fixture
def references(tmp_path, monkeypatch):
    folder = tmp_path / "curves"
    monkeypatch.setattr(curves, "REFERENCES", folder)
    return folder


def test_the_newest_log_of_a_folder_is_taken(tmp_path):
    """By steps, not by the order of names."""
    for steps in (9, 10, 11):
        write_state(tmp_path / "run" / f"checkpoint-{10 * steps}", entries(steps))
    (tmp_path / "run" / "checkpoint-500").mkdir()
    assert len(read_run(tmp_path / "run").entries) == 11
    assert len(read_run(tmp_path / "run" / "checkpoint-90").entries) == 9
    assert len(read_run(tmp_path / "run" / "checkpoint-90" / "trainer_state.json").entries) == 9
    write_state(tmp_path / "run", entries(12))
    assert len(read_run(tmp_path / "run").entries) == 12


def test_axes():
    """An evaluation has its step only; what is not finite is left out, and a step that was made again counts once."""
    log = [*entries(3), {"step": 25, "eval_mlm_loss": 5.0}, {"step": 30, "loss": 1.0, "mlm_loss": float("nan")}]
    log.append({"step": 20, "mlm_loss": 5.5})
    run = Curve("run", log)
    assert run.points("mlm_loss") == [(10, 5.9), (20, 5.5), (30, 5.7)]
    assert run.points("eval_mlm_loss", "tokens") == [(2500, 5.0)]
    assert run.points("eval_mlm_loss", "minutes") == [(1.25, 5.0)]
    assert run.points("pair_loss", "minutes") == []
    with pytest.raises(ValueError, match="bare has no tokens_seen.*--against steps"):
        Curve("bare", [{"step": 1, "loss": 1.0}]).points("loss", "tokens")


def test_a_run_beside_a_reference_at_the_same_tokens():
    """0.1 a log: at 8,000 tokens, the middle of the last five logs, the reference is at 5.2."""
    reference = Curve("ref", entries(20))
    (sentence,) = compare(Curve("run", entries(10, loss=5.5, every=7)), reference)
    assert sentence == "run: mlm_loss 4.700 at 8,000 tokens, ref 5.200: 0.500 (9.6 %) below"
    (sentence,) = compare(Curve("run", entries(10, loss=6.05)), reference)
    assert sentence.endswith("ref 5.200: 0.050 (1.0 %) above, about equal")
    # Twice as many tokens: compared where the reference ends.
    (sentence,) = compare(Curve("run", entries(40)), reference)
    assert "4.200 at 18,000 tokens, ref 4.200: 0.000" in sentence
    without_tokens = [{"step": entry["step"], "mlm_loss": 7.0} for entry in entries(10)]
    assert "at 80 steps" in compare(Curve("run", without_tokens), reference)[0]
    (sentence,) = compare(Curve("run", entries(1, tokens=10)), reference)
    assert "cannot be compared yet" in sentence


def test_losses_are_compared_less_the_unigram_cross_entropy_where_both_are_known():
    reference = Curve("ref", entries(20), {"unigram_cross_entropy": 7.0})
    (sentence,) = compare(Curve("run", entries(10, loss=5.5), {"unigram_cross_entropy": 7.05}), reference)
    assert sentence == (
        "run: mlm_loss less unigram cross-entropy -2.350 at 8,000 tokens, ref -1.800: 0.550 (10.6 %) below"
    )
    pairs = [{**entry, "pair_loss": 0.5} for entry in entries(20)]
    sentences = compare(Curve("run", pairs), Curve("ref", pairs, {"unigram_cross_entropy": 7.0}))
    assert "mlm_loss 4.200" in sentences[0] and "pair_loss 0.500" in sentences[1]


def test_of_another_recipe_or_text_only_the_shape_is_compared():
    recipe = {"name": "a", "model": {"hidden_size": 128}, "phases": [{"steps": 100, "length": 32, "examples": 8}]}
    about = {"recipe": recipe, "training": {"learning_rate": 0.1}, "unigram_cross_entropy": 7.0}
    reference = Curve("ref", entries(20), about)

    def said(**changed):
        return compare(Curve("run", entries(20), {**about, **changed}), reference)

    assert len(said()) == 1 and said()[0].endswith("about equal")
    for changed, what in (
        ({"recipe": {**recipe, "name": "b"}}, None),
        ({"recipe": {**recipe, "phases": [{"steps": 10, "length": 32, "examples": 8}]}}, "recipe (phases)"),
        ({"training": {"learning_rate": 0.2}}, "recipe (options)"),
        ({"unigram_cross_entropy": 6.0}, "text or vocabulary (unigram cross-entropy 6.000, not 7.000)"),
        ({"recipe": {**recipe, "model": {}}, "unigram_cross_entropy": 6.0}, "recipe (model) and text or vocabulary"),
    ):
        sentences = said(**changed)
        assert ("about equal" in sentences[0]) == (what is None)
        assert (what is None and len(sentences) == 1) or f"different {what}" in sentences[1]
    assert sentences[1].endswith("from ref: only the shape can be compared.")


def test_the_command_draws_prints_and_keeps_a_reference(tmp_path, references, capsys):
    pair = [{**entry, "pair_loss": 0.69, "pair_accuracy": 0.5, "mfu": 0.31} for entry in entries(12, loss=5.0)]
    pair[-1]["health_warnings"] = {"pairs_at_chance": "..."}
    one, two = write_state(tmp_path / "one", entries(12)), write_state(tmp_path / "two", pair)
    assert main(["plot", str(one), "--save-reference", "small"]) == 0
    picture = tmp_path / "curve.png"
    command = ["plot", str(one), str(two), "--reference", "small", "--output", str(picture), "--against", "tokens"]
    assert main(command) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"{one}: mlm_loss 5.000 at 10,000 tokens, reference small 5.000: 0.000 (0.0 %)" in printed
    assert f"{two}: mlm_loss 4.000 at 10,000 tokens, reference small 5.000: 1.000 (20.0 %) below\n" in printed
    assert f"{two}: health warnings: pairs_at_chance" in printed
    table = [line.split() for line in printed.splitlines() if line.startswith(f"{two} ")]
    assert table[0][1:] == ["120", "12,000", "6.0", "3.800", "3.800", "0.690", "12.0%", "50.0%", "33", "31.0%"]


def test_what_a_panel_holds(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(curves, "draw", lambda panels, path, title, x, changes: drawn.update({**dict(panels), "x": x}))
    log = [*entries(3), {"step": 30, "eval_mlm_loss": 5.0}]
    draw_runs([Curve("run", log)], tmp_path / "x.png", against="minutes", reference=Curve("ref", entries(5)))
    assert list(drawn) == ["mlm_loss (nats per item)", "real tokens per second", "x"]
    assert drawn["x"] == "minutes of training"
    lines = {line.label: line for line in drawn["mlm_loss (nats per item)"] if line.points}
    assert list(lines) == ["run", "run, held-out", "ref"]
    assert lines["run, held-out"].points == [(1.5, 5.0)] and lines["ref"].style == "--"
    with pytest.raises(ValueError, match="no loss was logged"):
        draw_runs([Curve("run", [{"step": 1}])], tmp_path / "x.png")


def test_the_curve_of_a_run_has_a_panel_for_each_loss_its_baselines_and_its_phases(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda *arguments: drawn.append(arguments))
    log = [{**entry, "pair_loss": 0.69} for entry in entries(3)] + [{"step": 30, "eval_mlm_loss": 5.0}]
    phases = [(10, "32 tokens"), (15, "64 tokens"), (5, "128 tokens")]
    baselines = {"mlm_loss": ("unigram cross-entropy", 6.43), "pair_loss": ("chance", math.log(2))}
    draw = {"baselines": baselines, "phases": phases, "evaluated": "at 128 tokens"}
    draw_runs([Curve("training", log)], tmp_path / "x.png", "run", **draw)
    panels, _, _, _, changes = drawn[0]
    labels = [label for label, _ in panels]
    assert labels == ["mlm_loss (nats per item)", "pair_loss (nats per item)", "real tokens per second"]
    first, second, _ = ({line.label: line.points for line in lines} for _, lines in panels)
    assert first["unigram cross-entropy: 6.43"] == [(0, 6.43), (30, 6.43)]
    assert first["held-out (at 128 tokens)"] == [(30, 5.0)]
    assert second["training"] == [(10, 0.69), (20, 0.69), (30, 0.69)]
    assert second["chance: 0.69"] == [(0, math.log(2)), (30, math.log(2))]
    assert changes == [(0, "32 tokens"), (10, "64 tokens"), (25, "128 tokens")]
    # Without loss terms one panel, without baselines.
    draw_runs([Curve("training", [{"step": 1, "loss": 2.0}])], tmp_path / "x.png", baselines=baselines)
    labels = [line.label for _, lines in drawn[1][0] for line in lines]
    assert labels == ["training", "held-out"]
    assert drawn[1][4] == []


def test_runs_are_named_once_and_a_damaged_run_file_is_told(tmp_path, capsys):
    one = write_state(tmp_path / "one", [{**entry, "pair_loss": 0.69} for entry in entries(3)])
    assert main(["plot", str(one), "--output", str(tmp_path / "x.png")]) == 0
    (one / "run.json").write_text('{"recipe": ')
    assert main(["plot", str(one)]) == 2
    assert "run.json is damaged" in capsys.readouterr().err


def test_a_reference_is_small_and_exact_enough(references):
    log = [*entries(1000, every=1), {"step": 1000, "eval_loss": 1 / 3, "eval_mlm_loss": 1 / 3, "eval_runtime": 3.0}]
    file = save_reference(Curve("run", log, {"hardware": "here"}), "small-1")
    assert file == references / "small-1.json" and file.stat().st_size < 25_000
    kept = curves.read_reference("small-1")
    assert kept.about == {"hardware": "here"} and len(kept.entries) == 101
    assert kept.entries[-1] == {"step": 1000, "eval_loss": 0.33333, "eval_mlm_loss": 0.33333}
    assert kept.entries[0]["tokens_per_second"] == 33.333 and "grad_norm" not in kept.entries[0]
    assert kept.points("mlm_loss", "tokens")[-1] == pytest.approx((1_000_000, -94.0))


RECORD = {
    "hardware": "1 x GPU", "software": {"torch": "2"}, "corpus": {"name": "/home/me/wiki.txt, books", "tokens": 7},
    "command": "hf-encoders pretrain bert-minutes --corpus /home/me/wiki.txt books --output /home/me/run",
}  # fmt: skip


def test_a_reference_keeps_recipe_text_and_evaluations_of_its_run(tmp_path, references):
    """Read in the run's folder, whichever log of it is named; nothing of where it lay on its machine."""
    recipe = {"name": "bert-minutes", "phases": [{"steps": 40, "length": 32, "examples": 8}]}
    note = {"recipe": recipe, "seed": 3, "training": {"learning_rate": 0.1}, "corpus": "a1b2", "tokenizer": "c3d4"}
    run = tmp_path / "run"
    log = [*entries(4), *({"step": step, "eval_loss": 5.0, "eval_mlm_loss": 5.0} for step in (20, 40, 40))]
    health = {"args": {"unigram_cross_entropy": 6.5}, "attributes": {"tokens_seen": 4000}}
    for folder in (run, run / "checkpoint-40"):
        write_state(folder, log)
        state = json.loads((folder / "trainer_state.json").read_text())
        state["stateful_callbacks"] = {"HealthCallback": health}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    (run / "run.json").write_text(json.dumps(note))
    (run / "model").mkdir()
    (run / "model" / "training_record.json").write_text(json.dumps(RECORD))
    expected = {
        "hardware": "1 x GPU", "software": {"torch": "2"}, "recipe": recipe, "seed": 3,
        "training": {"learning_rate": 0.1}, "corpus": {"name": "wiki.txt, books", "tokens": 7},
        "unigram_cross_entropy": 6.5,
    }  # fmt: skip
    for number, path in enumerate([run, run / "checkpoint-40", run / "checkpoint-40" / "trainer_state.json"]):
        assert main(["plot", str(path), "--save-reference", f"kept-{number}"]) == 0
        kept = curves.read_reference(f"kept-{number}")
        assert kept.about == expected
        assert kept.points("eval_mlm_loss") == [(20, 5.0), (40, 5.0)]


def test_shipped_references_are_of_the_recipes_that_are_shipped():
    """As the run noted it. A recipe that has changed needs a new curve: the old one is of another run."""
    for name in curves.reference_names():
        reference = curves.read_reference(name)
        assert reference.points("mlm_loss", "tokens") and reference.about["hardware"]
        if "recipe" in reference.about:
            shipped = load_recipe(name).facts()
            assert reference.about["recipe"] == json.loads(json.dumps(shipped, default=str)), name


def test_what_is_refused(tmp_path, references, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_state(tmp_path / "run", entries(3))
    write_state(tmp_path / "bare", [{"step": 1, "loss": 2.0}])
    (tmp_path / "empty").mkdir()
    (tmp_path / "closed").mkdir()
    opened = writing.tempfile.TemporaryFile

    def closed(*arguments, dir=None, **options):
        if "closed" in str(dir):
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return opened(*arguments, dir=dir, **options)

    monkeypatch.setattr(writing.tempfile, "TemporaryFile", closed)
    (tmp_path / "damaged.json").write_text('{"log_history": [')
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "no_steps.json").write_text('{"log_history": [{"loss": 1.0}]}')
    save_reference(Curve("x", entries(3)), "taken")
    for arguments, words in (
        ("empty", "save_strategy"),
        ("nowhere", "does not exist"),
        ("damaged.json", "is damaged"),
        ("other.json", "holds no log"),
        ("no_steps.json", "entries without a step"),
        ("run --reference unknown", "choose one of taken"),
        ("run --output nowhere/x.png", "its folder does not exist"),
        ("run --output x.docx", "--output x.docx: must end in one of "),
        ("run --output x", "--output x: must end in one of "),
        ("run --output empty", "--output empty: is a folder: name a file"),
        ("run --output closed/x.png", "closed/x.png: may not be written"),
        ("run --save-reference closed/x.json", "(Permission denied): name another folder"),
        ("run run --save-reference x", "for one run"),
        ("run --save-reference taken", "taken.json exists: remove it"),
        ("bare --against tokens --output x.png", "--against steps"),
    ):
        assert main(["plot", *arguments.split()]) == 2
        assert words in capsys.readouterr().err
    assert main(["plot", "run", "--save-reference", "a b"]) == 2


def test_sources_are_drawn_in_the_panel_of_their_term(tmp_path, monkeypatch):
    """Two of three names end alike; a loss that is logged for each source is no panel of its own."""
    log = entries(4)
    for step in (20, 40):
        values = {"mlm_loss": 5.0, "loss": 5.0, "de_mlm_loss": 5.5, "de_loss": 5.5, "en_mlm_loss": 4.0, "en_loss": 4.0}
        values |= {"law_en_mlm_loss": 4.5, "law_en_loss": 4.5}
        log.append({"step": step, **{f"eval_{name}": value + step / 100 for name, value in values.items()}})
    run = Curve("run", log)
    assert run.losses() == ["mlm_loss"] and run.sources() == ["de", "en", "law_en"]
    panels = []
    monkeypatch.setattr(curves, "draw", lambda found, *arguments: panels.extend(found))
    draw_runs([run], tmp_path / "a.png")
    (label, lines), _ = panels
    drawn = {line.label: line.points for line in lines}
    assert label == "mlm_loss (nats per item)" and list(drawn) == [
        "run", "held-out", "held-out, de", "held-out, en", "held-out, law_en"
    ]  # fmt: skip
    assert drawn["held-out, law_en"] == [(20, 4.7), (40, 4.9)]
    assert len({line.style for line in lines[1:]}) == 4
    headings = format_table([run]).splitlines()[0].split()
    assert "eval_law_en_mlm_loss" in headings and "eval_loss" in headings and "eval_law_en_loss" not in headings


FIGURES = {
    "static": [{"loss": 2.0, "steps": 1500}, {"loss": 4.0, "steps": 1500}],
    "dynamic": [{"loss": 1.5, "steps": 1500}, {"loss": 1.5, "steps": 1500}],
}


def test_runs_that_differ_in_one_thing_are_written_as_table_and_picture(tmp_path):
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
