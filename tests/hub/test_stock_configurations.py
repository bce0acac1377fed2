"""transformers' own configurations given to the classes of a checkpoint, and ours given to transformers' classes.

GLiNER rebuilds a configuration by its `model_type`, and scripts pass the one of `AutoConfig.from_pretrained(name)`.
"""

from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel

from tests.hub.tiny_checkpoints import (
    BERT,
    FAMILIES,
    Family,
    built_in,
    make_batch,
    make_config,
    make_model,
    save_checkpoint,
)


each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stock")
    return {
        family.name: save_checkpoint(make_model(family, family.token_head), family, folder / family.name)
        for family in FAMILIES
    }


@each_family
def test_remote_code_takes_transformers_own_configuration(family: Family, folders: dict[str, Path]) -> None:
    """With weights, and without, by `AutoModel.from_config`."""
    folder = folders[family.name]
    config = AutoConfig.from_pretrained(folder, output_hidden_states=True)
    assert type(config).__module__.startswith("transformers.models.")
    auto_class, batch = getattr(transformers, family.token_head), make_batch(family)
    config._attn_implementation = "eager"
    model = auto_class.from_pretrained(folder, config=config, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert type(model.config).__name__ == family.config_class.__name__
    assert model.config._attn_implementation == "eager" and model.config.name_or_path == str(folder)
    expected = auto_class.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager")
    outputs = model(**batch)
    torch.testing.assert_close(outputs.logits, expected(**batch).logits, atol=0, rtol=0)
    assert len(outputs.hidden_states) == model.config.num_layers_passed + 1
    fresh = AutoModel.from_config(AutoConfig.from_pretrained(folder), trust_remote_code=True)
    assert type(fresh.config).__name__ == family.config_class.__name__
    shapes, expected_shapes = ({n: p.shape for n, p in m.base_model.named_parameters()} for m in (fresh, model))
    assert expected_shapes.items() <= shapes.items()


@each_family
def test_transformers_own_class_takes_our_configuration(family: Family, folders: dict[str, Path]) -> None:
    folder, batch = folders[family.name], make_batch(family)
    stock_class = getattr(transformers, built_in(family, family.token_head))
    model = stock_class.from_pretrained(folder, config=family.config_class.from_pretrained(folder))
    expected = stock_class.from_pretrained(folder)
    torch.testing.assert_close(model(**batch).logits, expected(**batch).logits, atol=0, rtol=0)


def test_transformers_own_class_does_not_take_what_it_cannot_compute() -> None:
    """Relative positions: it would leave them out."""
    with pytest.raises(AttributeError, match="is_decoder"):
        transformers.BertModel(make_config(BERT, position_embedding_type="relative_key"))
