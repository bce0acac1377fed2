"""`report_to`: the figures of `HealthCallback` arrive where users look at them."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.training.test_health import EXAMPLES, lengths, make, training_logs


FIGURES = {"mlm_loss", "mlm_accuracy", "grad_norm", "tokens_per_second", "padding_share", "mask_rate", "mfu"}


def test_tensorboard_has_the_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trainer = make(tmp_path, report_to="tensorboard")
    trainer.train()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert {f"train/{name}" for name in FIGURES} <= set(events.Tags()["scalars"])
    seen = events.Scalars("train/tokens_seen")
    assert [(event.step, event.value) for event in seen] == [
        (4 * i, sum(lengths(EXAMPLES[: 32 * i]))) for i in (1, 2, 3)
    ]
    logged = [entry["mlm_loss"] for entry in training_logs(trainer)]
    assert [event.value for event in events.Scalars("train/mlm_loss")] == pytest.approx(logged)


def test_trackio_has_the_figures(tmp_path, monkeypatch):
    """In its local mode: a data base in a folder, which it looks up when it is imported."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio.sqlite_storage import SQLiteStorage

    trainer = make(tmp_path, report_to="trackio", project="tiny", run_name="run", trackio_space_id=None)
    trainer.train()
    assert list((tmp_path / "trackio").iterdir())
    logs = SQLiteStorage.get_logs("tiny", "run")
    found = [log for log in logs if "train/tokens_seen" in log]
    assert [log["train/tokens_seen"] for log in found] == [sum(lengths(EXAMPLES[: 32 * i])) for i in (1, 2, 3)]
    assert {f"train/{name}" for name in FIGURES} <= found[0].keys()
