"""Rows of new entries: the means of what they replace, tied or not, and nothing else changes."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from conftest import word_tokenizer
from hf_encoders import HfeDebertaV2ForMaskedLM
from hf_encoders.corpus.extension import add_entries
from tests.models.tiny import BASE_MODELS, MASKED_LM, right_padded, tiny_model


PIECES = {70: [7, 8], 71: [9, 9, 10]}  # of a tokenizer of 72 words: 128 rows
tied_and_untied = pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])


def parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters(remove_duplicate=False)}


@tied_and_untied
@pytest.mark.parametrize("model_class", MASKED_LM)
def test_rows_are_means_and_the_rest_stays(model_class, tie):
    model = tiny_model(model_class, tie_word_embeddings=tie)
    old_rows, before, batch = model.config.vocab_size, parameters(model), right_padded(model.config)
    logits = model.eval()(**batch).logits
    add_entries(model, word_tokenizer(72), PIECES)
    assert model.config.vocab_size == 128 == model.get_output_embeddings().out_features
    for name, value in model.named_parameters(remove_duplicate=False):
        old = before[name]
        if value.shape == old.shape:
            assert torch.equal(value, old), name
            continue
        if value.dim() == 1 and value is not model.get_output_embeddings().bias and not tie:
            continue  # an untied head's second bias, which nothing reads
        assert torch.equal(value[:old_rows], old)
        for number, pieces in PIECES.items():
            torch.testing.assert_close(value[number], old[pieces].mean(dim=0))
    torch.testing.assert_close(model(**batch).logits[..., :old_rows], logits)
    assert model.get_input_embeddings().weight.shape[0] == 128


@tied_and_untied
def test_padding_takes_no_probability(tie):
    """Where the probability is on few tokens, as in a trained model: 56 random rows would have most of the rest."""
    model = tiny_model(MASKED_LM[0], tie_word_embeddings=tie).eval()
    with torch.no_grad():
        model.get_output_embeddings().bias.copy_(torch.linspace(3, -9, model.config.vocab_size))
        add_entries(model, word_tokenizer(72), PIECES)
        batch = right_padded(model.config)
        shares = model(**batch).logits[batch["attention_mask"].bool()].softmax(dim=-1)
    assert shares[..., 72:].sum(dim=-1).max() < 1e-4 < shares[..., 70:72].sum(dim=-1).min()


@pytest.mark.parametrize("model_class", MASKED_LM)
def test_saved_it_is_what_transformers_loads(model_class, tmp_path):
    model = tiny_model(model_class).eval()
    add_entries(model, word_tokenizer(72), PIECES)
    batch = right_padded(model.config)
    batch["input_ids"][0, :2] = torch.tensor([70, 71])
    model.save_pretrained(tmp_path)
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(plain).__name__ == model_class.__name__.removeprefix("Hfe")
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(plain(**batch).logits[real], model(**batch).logits[real], atol=1e-5, rtol=1e-5)
    if model_class is HfeDebertaV2ForMaskedLM:
        return  # transformers' class names another layer as its projection to the vocabulary
    # A model of transformers itself gets the same rows.
    extended = AutoModelForMaskedLM.from_pretrained(tmp_path)
    add_entries(extended, word_tokenizer(132), {130: [70, 71]})
    for table in (lambda model: model.get_input_embeddings().weight, lambda model: model.get_output_embeddings().bias):
        torch.testing.assert_close(table(extended)[130], table(plain)[[70, 71]].mean(dim=0))


def test_a_model_without_a_head_with_more_rows_or_of_another_tokenizer():
    model = tiny_model(BASE_MODELS[0])
    words = model.get_input_embeddings().weight.detach().clone()
    add_entries(model, word_tokenizer(72), PIECES)
    torch.testing.assert_close(model.get_input_embeddings().weight[71], (2 * words[9] + words[10]) / 3)
    for rows in (128, 130):  # enough of them stay as they are
        model = tiny_model(MASKED_LM[0], vocab_size=rows)
        add_entries(model, word_tokenizer(72), PIECES)
        assert model.config.vocab_size == rows
    with pytest.raises(ValueError, match="vocab_size=41, .* up to id 60"):
        add_entries(tiny_model(MASKED_LM[0]), word_tokenizer(72), {70: [7, 60]})
