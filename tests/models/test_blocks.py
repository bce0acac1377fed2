"""What runs inside the blocks, where outputs alone cannot tell."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.models.tiny import BASE_MODELS, right_padded, tiny_model


@pytest.mark.parametrize(("chunk_size", "expected"), [(0, [13]), (5, [5, 5, 3]), (20, [13])])
@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_feed_forward_runs_on_chunks_of_real_tokens(
    model_class: type[PreTrainedModel], chunk_size: int, expected: list[int]
) -> None:
    model = tiny_model(model_class, chunk_size_feed_forward=chunk_size)
    widened = []
    for module in model.modules():
        inner = model.config.intermediate_size  # twice that, where one half is the gate of the other
        if isinstance(module, torch.nn.Linear) and module.out_features in (inner, 2 * inner):
            module.register_forward_hook(lambda module, args, output: widened.append(len(output)))
    model(**right_padded(model.config, (7, 4, 2)))
    num_layers = 6 if model.config.model_type == "albert" else 3
    assert widened == expected * num_layers
