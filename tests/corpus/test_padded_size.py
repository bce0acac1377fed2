import numpy as np
import pytest
import torch

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeAlbertConfig,
    HfeAlbertForMaskedLM,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    fill_masks,
    padded_vocab_size,
)
from hf_encoders.objectives.masking import Masker
from hf_encoders.objectives.randomness import Key
from hf_encoders.publishing.publish import check_files
from tests.corpus.trained import train


MODELS = (
    (HfeBertConfig, HfeBertForMaskedLM),
    (HfeRobertaConfig, HfeRobertaForMaskedLM),
    (HfeAlbertConfig, HfeAlbertForMaskedLM),
)


def padded_model(config_class, model_class, tokenizer):
    torch.manual_seed(0)
    config = config_class(
        vocab_size=padded_vocab_size(tokenizer),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=config_class.position_rows(48, tokenizer.pad_token_id),
        pad_token_id=tokenizer.pad_token_id,
    )
    return model_class(config)


def test_sizes(make_tokenizer):
    sizes = [padded_vocab_size(make_tokenizer(number)) for number in (60, 64, 65)]
    assert sizes == [64, 64, 128] and padded_vocab_size(make_tokenizer(60), multiple_of=1) == 60
    with pytest.raises(ValueError, match="multiple_of=0"):
        padded_vocab_size(make_tokenizer(60), multiple_of=0)


@pytest.mark.parametrize("random_tokens", ["ordinary", "ordinary_and_mask", "any"])
def test_random_tokens_are_the_tokenizers(tokenizer, random_tokens):
    masker = Masker(
        tokenizer, mask_probability=1.0, mask_replace_probability=0, random_replace_probability=1,
        random_tokens=random_tokens,
    )  # fmt: skip
    ids = np.full(20_000, 7)
    drawn, _ = masker(ids, Key(0, 0, 3))
    # All ids but, at most, special ones come up in 20,000 draws, and none beyond them.
    assert drawn.max() == len(tokenizer) - 1 and len(np.unique(drawn)) > 50


@pytest.mark.parametrize(("config_class", "model_class"), MODELS)
def test_a_model_with_spare_rows_trains_and_fills(config_class, model_class, tmp_path):
    tokenizer = train(config_class)
    model = padded_model(config_class, model_class, tokenizer)
    spare = slice(max(tokenizer.get_vocab().values()) + 1, model.config.vocab_size)
    assert spare.stop % 64 == 0 and spare.start < spare.stop
    batch = DataCollatorForMaskedLM(tokenizer)([tokenizer(text) for text in ("the cat sat", "a dog run")] * 4)
    batch = {name: value for name, value in batch.items() if name in ("input_ids", "attention_mask", "labels")}

    def spare_share() -> float:
        with torch.no_grad():
            logits = model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        assert logits.shape[-1] == spare.stop
        return logits.softmax(-1)[..., spare].sum(-1).mean().item()

    at_first = spare_share()
    assert at_first == pytest.approx((spare.stop - spare.start) / spare.stop, rel=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        model.train()(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert spare_share() < 0.2 * at_first

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert list(check_files(tmp_path, tmp_path)) == []
    text = f"the {tokenizer.mask_token} sat"
    assert all(one.tokens[0] in tokenizer.get_vocab() for one in fill_masks(model, tokenizer, text, num_beams=20))
