"""Cards hold what was recorded, say where nothing was, and keep their text."""

import dataclasses
import json
from pathlib import Path

import pytest

from hf_encoders import (
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeXLMConfig,
    HfeXLMWithLMHeadModel,
)
from hf_encoders.publishing.record import NOT_RECORDED, TrainingRecord, make_model_card
from tests.corpus.corpora import TINY_MODEL


GOLDEN = Path(__file__).with_name("golden_card.md")
HELD_OUT = {"task": "fill-mask", "dataset": "Held-out text"}
RECORD = TrainingRecord(
    objectives={"masked language modelling": "15 % of the tokens", "sentence-order prediction": "half swapped"},
    corpus={"name": "a corpus", "documents": 1234, "tokens": 5678901},
    schedule={"optimizer steps": 1000, "peak learning rate": 0.001},
    hardware="CPU (x86_64), 2 threads",
    software={"torch": "2.13.0"},
    seconds=1234.5,
    tokens_per_second=4600.4,
    evaluation=[
        {**HELD_OUT, "metric": "perplexity", "value": 45.67, "baseline": "unigram 600"},
        {**HELD_OUT, "metric": "accuracy", "value": 0.3456},
    ],
    command="hf-encoders quickstart --family albert",
)


def test_the_text_of_a_card():
    model = HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=8, **TINY_MODEL))
    record = dataclasses.replace(RECORD, language=["en"], license="apache-2.0")
    card = make_model_card(model, record, name="me/encoder", has_curve=True)
    assert str(card) == GOLDEN.read_text(encoding="utf-8")


def test_warnings_stand_below_the_figures():
    model = HfeAlbertForPreTraining(HfeAlbertConfig(embedding_size=8, **TINY_MODEL))
    record = dataclasses.replace(RECORD, warnings=["test: accuracy 0.5 is no better.", "test: 3 rows."])
    plain, warned = (str(make_model_card(model, one, name="me/encoder")) for one in (RECORD, record))
    told = "\n\n**Warning:** test: accuracy 0.5 is no better.\n\n**Warning:** test: 3 rows.\n\n## Limits"
    assert warned.partition("## Limits")[0] + "## Limits" == plain.partition("\n\n## Limits")[0] + told


def test_what_was_not_recorded_is_said():
    card = str(make_model_card(HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL)), TrainingRecord(), name="x"))
    for line in ("Objectives: ", "| corpus | ", "| schedule | ", "| hardware | ", "| duration | ", "| command | `"):
        assert f"{line}{NOT_RECORDED}" in card
    assert "model-index" not in card and "loss_curve" not in card and "without `trust_remote_code=True`" in card


def test_relative_positions_are_said_to_need_the_code():
    config = HfeBertConfig(position_embedding_type="relative_key", **TINY_MODEL)
    card = str(make_model_card(HfeBertForMaskedLM(config), TrainingRecord(), name="x"))
    assert "refuses to load it" in card


@pytest.mark.parametrize(("default", "without"), [(None, "refuses the input"), ("zh", "takes all tokens for `zh`")])
def test_a_model_that_is_told_languages_says_which_and_how(default, without):
    sizes = {"vocab_size": 20, "emb_dim": 8, "n_layers": 1, "n_heads": 2}
    config = HfeXLMConfig(n_langs=2, lang2id={"en": 0, "zh": 1}, default_lang=default, **sizes)
    card = make_model_card(HfeXLMWithLMHeadModel(config), TrainingRecord(), name="x")
    assert 'langs=torch.full_like(input_ids, model.config.lang2id["en"])`, one of\n`en`, `zh`.' in str(card)
    assert f"Without it, this code {without}, and transformers' own class leaves the language out" in str(card)
    # Pipelines pass no languages.
    assert card.data.pipeline_tag == (None if default is None else "fill-mask")
    no_languages = make_model_card(HfeXLMWithLMHeadModel(HfeXLMConfig(**sizes)), TrainingRecord(), name="x")
    assert "language of every token" not in str(no_languages)


def test_the_record_survives_the_disk(tmp_path):
    RECORD.save(tmp_path)
    assert TrainingRecord.load(tmp_path) == RECORD
    path = tmp_path / "training_record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "new_heads": ["pooler"]}))  # of earlier versions
    assert TrainingRecord.load(tmp_path) == RECORD
    path.unlink()
    assert TrainingRecord.load(tmp_path) == TrainingRecord()
