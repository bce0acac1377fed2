import pytest
import torch

from hf_encoders import DataCollatorForMaskedLM, HfeBertConfig, HfeBertForMaskedLM, fill_masks, padded_vocab_size
from hf_encoders.publishing.publish import check_files
from tests.corpus.trained import train


def test_sizes(make_tokenizer):
    sizes = [padded_vocab_size(make_tokenizer(number)) for number in (60, 64, 65)]
    assert sizes == [64, 64, 128] and padded_vocab_size(make_tokenizer(60), multiple_of=1) == 60
    with pytest.raises(ValueError, match="multiple_of=0"):
        padded_vocab_size(make_tokenizer(60), multiple_of=0)


def test_a_model_with_spare_rows_trains_and_fills(tmp_path):
    tokenizer = train(HfeBertConfig)
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    model = HfeBertForMaskedLM(HfeBertConfig(vocab_size=padded_vocab_size(tokenizer), **sizes))
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
    filled = fill_masks(model, tokenizer, f"the {tokenizer.mask_token} sat", num_beams=20)
    assert all(text.tokens[0] in tokenizer.get_vocab() for text in filled)
