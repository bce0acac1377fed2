"""Pseudo-log-likelihoods equal a naive loop, whatever the model, the batches and the company of a sentence."""

from concurrent.futures import ThreadPoolExecutor

import accelerate
import numpy as np
import pytest
import torch
from transformers import BertTokenizer, DistilBertConfig, DistilBertForMaskedLM

from hf_encoders import fill_masks
from hf_encoders.evaluation import pseudo_likelihood
from hf_encoders.evaluation.pseudo_likelihood import (
    ScoredText,
    batches_of_copies,
    evaluating,
    make_batch,
    masked_token_scores,
    pseudo_log_likelihoods,
    pseudo_perplexity,
    token_log_probabilities,
)
from tests.evaluation.models import SENTENCES, make_pair, naive_log_probabilities
from tests.hub.tiny_checkpoints import ALBERT, BERT, FILL_MASKS, ROBERTA, make_config, make_model, make_tokenizer
from tests.training.on_cuda import CUDA, CountedWaits


TOLERANCE = 1e-5  # float32, a few nats


@pytest.mark.slow
@pytest.mark.parametrize("mask_rest_of_word", [False, True], ids=["token", "word"])
@pytest.mark.parametrize("is_stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("family", FILL_MASKS, ids=lambda family: family.name)
def test_equal_to_a_naive_loop(family, is_stock, mask_rest_of_word):
    model, tokenizer = make_pair(family, is_stock)
    expected = [naive_log_probabilities(model, tokenizer, sentence, mask_rest_of_word) for sentence in SENTENCES]
    for max_tokens in (1, 40, 8192):
        found = token_log_probabilities(model, tokenizer, SENTENCES, mask_rest_of_word, max_tokens)
        assert [scores.dtype for scores in found] == [np.float64] * len(SENTENCES)
        for scores, naive in zip(found, expected, strict=True):
            np.testing.assert_allclose(scores, naive, rtol=0, atol=TOLERANCE)
        sums = pseudo_log_likelihoods(model, tokenizer, SENTENCES, mask_rest_of_word, max_tokens)
        np.testing.assert_allclose(sums, [scores.sum() for scores in found], rtol=0, atol=0)


def test_a_batch_waits_once_for_a_device(monkeypatch):
    """Tensors on the CPU say that they are on CUDA."""
    model, tokenizer = make_pair(BERT, False)
    model.set_attn_implementation("eager")
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES, max_tokens=100)
    batches = []
    monkeypatch.setattr(pseudo_likelihood, "make_batch", lambda *args: batches.append(args) or make_batch(*args))
    monkeypatch.setattr(type(model), "device", CUDA)
    with CountedWaits() as mode:
        found = pseudo_log_likelihoods(model, tokenizer, SENTENCES, max_tokens=100)
    assert mode.waits == {"to cpu": len(batches)} and len(batches) > 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_words_are_masked_from_the_predicted_token_on():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sou", "##ve", "##nir", "the"]
    tokenizer = BertTokenizer(vocab={piece: row for row, piece in enumerate(pieces)})
    seen = []

    class Recorder(DistilBertForMaskedLM):
        def forward(self, input_ids, attention_mask):
            seen.extend(row[kept].tolist() for row, kept in zip(input_ids, attention_mask.bool(), strict=True))
            return super().forward(input_ids=input_ids, attention_mask=attention_mask)

    model = Recorder(DistilBertConfig(vocab_size=9, dim=12, n_heads=2, n_layers=1, hidden_dim=8))
    token_log_probabilities(model, tokenizer, ["the souvenir the"], mask_rest_of_word=True)
    assert seen == [[2, 4, 5, 6, 7, 8, 3], [2, 8, 4, 4, 4, 8, 3], [2, 8, 5, 4, 4, 8, 3], [2, 8, 5, 6, 4, 8, 3],
                    [2, 8, 5, 6, 7, 4, 3]]  # fmt: skip
    seen.clear()
    token_log_probabilities(model, tokenizer, ["souvenir"])
    assert seen == [[2, 4, 6, 7, 3], [2, 5, 4, 7, 3], [2, 5, 6, 4, 3]]


def test_another_architecture_of_transformers_works():
    tokenizer = make_tokenizer(BERT)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=12, n_heads=2, n_layers=2, hidden_dim=17, dropout=0.3)
    model = DistilBertForMaskedLM(config).train()
    found = token_log_probabilities(model, tokenizer, SENTENCES)
    assert model.training
    model.eval()
    for sentence, scores in zip(SENTENCES, found, strict=True):
        expected = naive_log_probabilities(model, tokenizer, sentence)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("is_stock", [False, True], ids=["ours", "stock"])
def test_only_masked_tokens_are_projected(is_stock):
    model, tokenizer = make_pair(BERT, is_stock)
    projected = []
    decoder = model.get_output_embeddings()
    decoder.register_forward_hook(lambda module, inputs, output: projected.append(output.shape[:-1].numel()))
    token_log_probabilities(model, tokenizer, SENTENCES[:3])
    num_tokens = sum(len(tokenizer(sentence)["input_ids"]) - 2 for sentence in SENTENCES[:3])
    assert sum(projected) == num_tokens
    assert len(decoder._forward_pre_hooks) == 0


def test_pretraining_models_have_the_head_too():
    model = make_model(BERT, "AutoModelForPreTraining")
    tokenizer = make_tokenizer(BERT)
    (found,) = token_log_probabilities(model, tokenizer, SENTENCES[:1])
    expected = naive_log_probabilities(_WithLogits(model), tokenizer, SENTENCES[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


class _WithLogits:
    def __init__(self, model):
        self.model = model

    def __call__(self, **inputs):
        outputs = self.model(**inputs)
        outputs["logits"] = outputs.prediction_logits
        return outputs


def test_texts_with_the_same_tokens_are_computed_once(monkeypatch):
    model, tokenizer = make_pair(BERT, is_stock=False)
    rows = []

    def counting(model, **batch):
        rows.append(len(batch["input_ids"]))
        return masked_token_scores(model, **batch)

    monkeypatch.setattr(pseudo_likelihood, "masked_token_scores", counting)
    first, second, third = token_log_probabilities(model, tokenizer, [SENTENCES[2], "mat", SENTENCES[5]], max_tokens=1)
    assert len(rows) == len(first) + len(second)
    assert first.tolist() == third.tolist()


def test_batches_keep_to_the_budget_and_are_nearly_free_of_padding():
    texts = [ScoredText(tuple(range(n)), tuple(range(1, n - 1)), tuple(range(2, n))) for n in (5, 12, 7, 5, 12, 3)]
    seen, cells = [], 0
    for copies in batches_of_copies(texts, max_tokens=30):
        batch = make_batch(copies, mask_id=99, pad_id=98)
        assert batch["input_ids"].numel() <= 30
        assert (batch["input_ids"] == 99).sum() == batch["is_wanted"].sum() == len(copies)
        assert ((batch["input_ids"] == 98) == (batch["attention_mask"] == 0)).all()
        seen += [(len(copy.text.ids), copy.number) for copy in copies]
        cells += batch["input_ids"].numel()
    assert sorted(seen) == sorted((len(text.ids), number) for text in texts for number in range(len(text.positions)))
    assert cells < 1.1 * sum(len(text.ids) * len(text.positions) for text in texts)


def test_uniform_model_has_the_vocabulary_as_perplexity():
    model, tokenizer = make_pair(BERT, is_stock=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    scores = token_log_probabilities(model, tokenizer, SENTENCES)
    assert pseudo_perplexity(scores) == pytest.approx(model.config.vocab_size, rel=1e-6)
    # Over tokens, not texts.
    scores = [np.log([0.5, 0.5, 0.5]), np.log([1 / 16])]
    assert pseudo_perplexity(scores) == pytest.approx((2**3 * 16) ** (1 / 4))


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ([], {}, "texts is empty"),
        (["mat", " "], {}, r"texts\[1\]=' ' has no tokens"),
        (["mat", "the [MASK] sat"], {}, r"texts\[1\]=.*contains.*\[MASK\]"),
        (["mat " * 42], {}, r"texts\[0\] has 44 tokens, the model takes 43"),
        (["mat"], {"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_wrong_input_is_a_value_error_before_any_compute(monkeypatch, texts, arguments, message):
    model, tokenizer = make_pair(BERT, is_stock=False)
    monkeypatch.setattr(pseudo_likelihood, "masked_token_scores", lambda *given, **named: pytest.fail("computed"))
    with pytest.raises(ValueError, match=message):
        token_log_probabilities(model, tokenizer, texts, **arguments)


def test_longest_text_that_fits_is_scored():
    for family, longest in ((BERT, 43), (ROBERTA, make_config(ROBERTA).max_position_embeddings - 2)):
        model, tokenizer = make_pair(family, is_stock=True)
        text = "the " * (longest - 2) if family is BERT else "t" * (longest - 2)
        (scores,) = token_log_probabilities(model, tokenizer, [text])
        assert len(scores) == longest - 2
        with pytest.raises(ValueError, match=f"the model takes {longest}"):
            token_log_probabilities(model, tokenizer, [text + ("the" if family is BERT else "t")])


def test_models_and_tokenizers_without_masks_are_refused():
    model, tokenizer = make_pair(BERT, is_stock=False)
    with pytest.raises(ValueError, match="has no MLM head: load it with AutoModelForMaskedLM"):
        token_log_probabilities(model.base_model, tokenizer, ["mat"])
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="tokenizer has no mask_token"):
        token_log_probabilities(model, tokenizer, ["mat"])


each_model = pytest.mark.parametrize(
    ("family", "is_stock"), [(family, stock) for family in (BERT, ALBERT) for stock in (True, False)]
)


@each_model
def test_a_model_in_training_is_evaluated_without_dropout_and_keeps_its_modes(family, is_stock):
    model, tokenizer = make_pair(family, is_stock)
    model.config.hidden_dropout_prob = 0.5
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES)
    filled = fill_masks(model, tokenizer, f"The {tokenizer.mask_token} sat.")
    model.train()
    model.get_submodule("embeddings" if model.base_model is model else f"{model.base_model_prefix}.embeddings").eval()
    modes = [module.training for module in model.modules()]
    hooks = [dict(module._forward_pre_hooks) for module in model.modules()]
    np.testing.assert_allclose(pseudo_log_likelihoods(model, tokenizer, SENTENCES), expected, rtol=0, atol=1e-5)
    assert fill_masks(model, tokenizer, f"The {tokenizer.mask_token} sat.") == filled
    assert [module.training for module in model.modules()] == modes
    assert [dict(module._forward_pre_hooks) for module in model.modules()] == hooks


@each_model
def test_many_threads_get_what_one_gets(family, is_stock):
    model, tokenizer = make_pair(family, is_stock)
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES)
    model.train()
    texts = list(range(len(SENTENCES))) * 4
    with ThreadPoolExecutor(len(texts)) as threads:
        found = threads.map(lambda text: pseudo_log_likelihoods(model, tokenizer, [SENTENCES[text]])[0], texts)
        np.testing.assert_allclose(list(found), expected[texts], rtol=0, atol=1e-5)
    assert model.training


@pytest.mark.parametrize("wrap", ["compiled forward", "compiled model", "compiled part", "accelerate"])
def test_what_others_put_around_a_model_is_evaluated_too(wrap):
    model, _ = make_pair(BERT, is_stock=True)
    ids = torch.randint(5, model.config.vocab_size, (2, 6))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "is_wanted": ids > ids.median()}
    expected = masked_token_scores(model, **batch)
    model.train()
    wrapped = model
    if wrap == "compiled forward":
        model.forward = torch.compile(model.forward, backend="eager")
    elif wrap == "compiled model":
        wrapped = torch.compile(model, backend="eager")
    elif wrap == "compiled part":
        model.bert = torch.compile(model.bert, backend="eager")
    else:
        accelerate.cpu_offload(model, execution_device="cpu")
    with evaluating(wrapped):
        found = masked_token_scores(wrapped, **batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert model.training and all(parameter.is_meta for parameter in model.parameters()) == (wrap == "accelerate")
