"""What a record says was trained, of runs with the papers' presets, beside what their batches held."""

import json
import re

import pytest
import yaml

from hf_encoders import DataCollatorForMaskedLM, get_objective
from hf_encoders.objectives.masking import Masking, describe_masking
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs.train import logged_means
from tests.commands.pretrain_runs import TINY, pretrain
from tests.corpus.corpora import write_corpus


REPLACED = "of those 80 % [MASK], 10 % random, 10 % kept"


@pytest.mark.slow
def test_the_albert_preset_predicts_less_than_asked_for_and_swaps_no_half(tmp_path):
    """Of a run of eight steps that logs every second one."""
    fields = {**TINY, "optimizer": "adamw", "phases": [{"steps": 8, "length": 40, "examples": 16}]}
    fields |= {"masking": {"preset": "ALBERT_MASKING", "max_predictions": 2}}
    fields |= {"examples": {"preset": "ALBERT_CHUNKS", "short_sequence_probability": 1.0}}
    del fields["mask_rate"]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    write_corpus(tmp_path / "text.txt", 120, "alpha")
    assert pretrain(tmp_path, "run", "--logging_steps", "2", "--save_strategy", "no", "--eval_strategy", "no") == 0
    log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    objectives, means = TrainingRecord.load(tmp_path / "run" / "model").objectives, logged_means(log)
    pattern = rf"(\d+\.\d) % of the tokens \(15 % requested\), {re.escape(REPLACED)}; unit=ngram, .*max_predictions=2"
    rate = float(re.match(pattern, objectives["masked language modelling"])[1])
    assert rate == pytest.approx(100 * means["mask_rate"], abs=0.051) and rate < 14
    share = means["pair_label_1_share"]
    assert share > 0.55  # lone sentences all have label 1
    assert objectives["sentence-order prediction"] == (
        f"{100 * share:.0f} % of the pairs swapped, or a single sentence with one from elsewhere (label 1)"
    )


@pytest.mark.parametrize(
    ("options", "rates", "logged", "said"),
    [
        ({}, (), 0.1505, "15 % of the tokens"),
        ({}, (), 0.162, "16.2 % of the tokens (15 % requested)"),
        ({"mask_probability": 0.3}, (0.3, 0.15), 0.22, "30 to 15 % of the tokens"),
        ({"mask_probability": 0.3}, (0.3, 0.15), 0.1, "10.0 % of the tokens (30 to 15 % requested)"),
    ],
)
def test_the_logged_mask_rate_is_reported_where_it_differs_from_the_requested_one(options, rates, logged, said):
    assert describe_masking(Masking(**options), rates, logged) == f"{said}, {REPLACED}"


@pytest.mark.parametrize(("measured", "share"), [(None, "half"), (0.515, "half"), (0.47, "47 %")])
def test_the_share_of_label_1_is_the_logged_one(tokenizer, measured, share):
    logged = {} if measured is None else {"pair_label_1_share": measured}
    collator = DataCollatorForMaskedLM(tokenizer)
    nsp, sop = (get_objective(name).describe(collator, (), {}, logged) for name in ("nsp", "sop"))
    assert nsp["next-sentence prediction"] == f"{share} of the second segments from another document (label 1)"
    assert sop["sentence-order prediction"] == f"{share} of the pairs swapped (label 1)"
    none = get_objective("sop").describe(collator, (), {}, {"pair_share": 0.0})
    assert none["sentence-order prediction"] == "not trained, because no example had two segments"
    original = get_objective("nsp").describe(collator, (), {"original_code": True}, logged)
    assert "all after a chunk of one sentence" in original["next-sentence prediction"]


def test_a_mean_over_a_run_is_weighted_by_tokens_and_counts_a_step_once():
    log = [
        {"step": step, "tokens_seen": 10 * step, "mask_rate": rate} for step, rate in ((1, 0.1), (2, 0.9), (4, 0.4))
    ]
    log.insert(2, {"step": 2, "tokens_seen": 20, "mask_rate": 0.3})  # made again after a restart
    log.append({"step": 4, "eval_loss": 1.0})
    assert logged_means(log)["mask_rate"] == pytest.approx((0.1 + 0.3 + 2 * 0.4) / 4)
    assert set(logged_means(log)) == {"mask_rate"}
