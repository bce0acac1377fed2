"""Tables of positions that become longer: old rows stay, new ones are copies or lie between."""

import pytest
import torch

from hf_encoders.runs.initial import extend_positions
from tests.models.tiny import BASE_MODELS, MASKED_LM, right_padded, tiny_model


WITH_TABLE = [kind for kind in BASE_MODELS if kind.config_class().has_position_table]


def table_of(model) -> torch.Tensor:
    (table,) = (value for name, value in model.named_parameters() if name.endswith("position_embeddings.weight"))
    assert table.requires_grad
    return table.detach().clone()


@pytest.mark.parametrize("model_class", WITH_TABLE)
class TestEveryFamily:
    def test_copies(self, model_class):
        model = tiny_model(model_class)
        before, batch = table_of(model), right_padded(model.config)
        first = len(before) - model.longest_row()
        expected = model(**batch).last_hidden_state
        extend_positions(model, 2 * len(before))
        after = table_of(model)
        assert len(after) == 2 * len(before) == model.config.max_position_embeddings
        assert torch.equal(after[: len(before)], before)
        assert torch.equal(after[len(before) :][: len(before) - first], before[first:])
        # Texts of the old length are as before, and longer ones go.
        torch.testing.assert_close(model(**batch).last_hidden_state, expected)
        longest = 2 * len(before) - first
        assert model.longest_row() == longest
        ids = torch.full((1, longest), 7)
        assert model(input_ids=ids).last_hidden_state.isfinite().all()

    def test_interpolated(self, model_class):
        model = tiny_model(model_class)
        before = table_of(model)
        first, rows = len(before) - model.longest_row(), 2 * len(before)
        extend_positions(model, rows, "interpolate")
        after = table_of(model)
        assert torch.equal(after[:first], before[:first])
        torch.testing.assert_close(after[[first, -1]], before[[first, -1]])
        between = torch.linspace(0, len(before) - first - 1, rows - first)[3]
        low, share = int(between), float(between % 1)
        expected = (1 - share) * before[first + low] + share * before[first + low + 1]
        torch.testing.assert_close(after[first + 3], expected)


def test_saved_and_loaded(tmp_path):
    model = tiny_model(MASKED_LM[0])
    table = model.base_model.embeddings.position_embeddings
    extend_positions(model, 13)
    assert model.base_model.embeddings.position_embeddings is table, "as many rows change nothing"
    extend_positions(model, 29)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(table_of(loaded), table_of(model)) and loaded.config.max_position_embeddings == 29


@pytest.mark.parametrize(
    ("fields", "rows", "how", "message"),
    [
        ({}, 12, "copy", "max_position_embeddings=12 is less than the model's 13"),
        ({}, 20, "repeat", "positions='repeat': it must be copy or interpolate"),
        ({"position_embedding_type": "relative_key"}, 20, "copy", "has no table of 13 absolute positions"),
    ],
)
def test_wrong_input(fields, rows, how, message):
    with pytest.raises(ValueError, match=message):
        extend_positions(tiny_model(BASE_MODELS[0], **fields), rows, how)
