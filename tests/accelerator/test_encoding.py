"""Embeddings on the device are those of the CPU."""

import pytest
import torch

from hf_encoders import encode
from tests.evaluation.models import SENTENCES
from tests.hub.tiny_checkpoints import FAMILIES, Family, make_model, make_tokenizer


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_as_on_a_cpu(family: Family, pooling: str, device: torch.device) -> None:
    model, tokenizer = make_model(family, "AutoModel"), make_tokenizer(family)
    options = {"pooling": pooling, "progress": False}
    expected = encode(model, tokenizer, SENTENCES, **options)
    found = encode(model.to(device), tokenizer, SENTENCES, max_tokens=30, **options)
    rounded = encode(model.bfloat16(), tokenizer, SENTENCES, **options)
    for one, other, exact in zip(found, rounded, expected, strict=True):
        assert one.device.type == other.device.type == "cpu"
        torch.testing.assert_close(one, exact, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other, exact, atol=0.1, rtol=0.1)
