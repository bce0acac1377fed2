"""A saved directory is a plain checkpoint: transformers' own classes read it with no flag and without this package.

Rows are compared where there are tokens: transformers computes padding too. The fixture `saved` does the loading.
"""

import torch
import transformers

from tests.hub.auto_class_loads import SavedFamily
from tests.hub.tiny_checkpoints import RELATIVE, TEXTS, built_in, head_of, make_batch, make_tokenizer


# fp32 sums in another order, through two layers; outputs are of order 1.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def native_heads(saved: SavedFamily) -> list[str]:
    return [key for key in saved.folders if key not in RELATIVE]


def at_tokens(outputs: dict[str, torch.Tensor], mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs `(B, T, ...)` only at real tokens; outputs a sequence unchanged."""
    is_token = mask.bool()
    return {name: value[is_token] if value.shape[:2] == mask.shape else value for name, value in outputs.items()}


def test_every_head_loads_as_the_built_in_class_with_nothing_missing(saved: SavedFamily) -> None:
    for answers in (saved.first, saved.second):
        for key in native_heads(saved):
            found = answers.seen[f"plain/{key}/{key}"]
            assert found["class"] == built_in(saved.family, key)
            assert found["module"] == f"transformers.models.{saved.family.name}.modeling_{saved.family.name}"
            assert found["config"][1].startswith("transformers.models.")
            assert [found[name] for name in ("missing", "unexpected", "mismatched")] == [[], [], []]


def test_no_other_auto_class_runs_our_code_unasked(saved: SavedFamily) -> None:
    ways = [way for way in saved.first.seen if way.startswith("plain/") and not way.endswith("/tokenizer")]
    assert len(ways) > len(native_heads(saved))
    assert all(saved.first.seen[way]["module"].startswith("transformers.models.") for way in ways)


def test_built_in_class_computes_the_same(saved: SavedFamily) -> None:
    mask = make_batch(saved.family)["attention_mask"]
    for key in native_heads(saved):
        found = at_tokens(saved.first.outputs_of(f"plain/{key}", key), mask)
        expected = at_tokens(saved.outputs[key], mask)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=lambda text, key=key: f"{key}: {text}", **TOLERANCE)


def test_built_in_class_computes_the_same_after_fine_tuning_elsewhere(saved: SavedFamily) -> None:
    mask = make_batch(saved.family)["attention_mask"]
    for key in native_heads(saved):
        found = at_tokens(saved.second.outputs_of(f"plain/{key}", key), mask)
        expected = at_tokens(saved.first.outputs_of(f"tuned/{saved.tuned_folders[key]}", key), mask)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=lambda text, key=key: f"{key}: {text}", **TOLERANCE)


def test_tokenizer_and_configuration_are_the_built_in_ones(saved: SavedFamily) -> None:
    for key in native_heads(saved):
        found = saved.first.seen[f"plain/{key}/tokenizer"]
        assert found["class"] == saved.family.tokenizer_class.__name__
        assert found["ids"] == make_tokenizer(saved.family)(list(TEXTS))["input_ids"]
        assert found["model_type"] == saved.family.name
        assert found["architectures"] == [built_in(saved.family, key)]
        assert hasattr(transformers, found["architectures"][0])


def test_relative_positions_are_the_only_checkpoints_left_out(saved: SavedFamily) -> None:
    """Everything else that can be saved is read by plain transformers."""
    assert set(saved.folders) - set(native_heads(saved)) == set(RELATIVE)
    assert {head_of(key) for key in RELATIVE} == {"AutoModelForMaskedLM"}
