"""Pseudo-log-likelihoods equal a naive loop; filled masks are those of exhaustive search on two masks."""

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor

import accelerate
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertTokenizer, DistilBertConfig, DistilBertForMaskedLM

from hf_encoders import fill_masks
from hf_encoders.evaluation import masked_lm
from hf_encoders.evaluation.masked_lm import (
    MaskedCopy,
    batches_of_copies,
    evaluating,
    hide_words,
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
each_model = pytest.mark.parametrize(
    ("family", "is_stock"), [(BERT, True), (BERT, False), (ALBERT, False)], ids=["stock bert", "bert", "albert"]
)


@pytest.mark.slow
@pytest.mark.parametrize("is_stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("family", FILL_MASKS, ids=lambda family: family.name)
def test_equal_to_a_naive_loop(family, is_stock):
    model, tokenizer = make_pair(family, is_stock)
    for mask_rest_of_word in (False, True):
        expected = [naive_log_probabilities(model, tokenizer, sentence, mask_rest_of_word) for sentence in SENTENCES]
        for max_tokens in (1, 40, 8192):
            scores = token_log_probabilities(model, tokenizer, SENTENCES, mask_rest_of_word, max_tokens)
            assert {of_text.dtype for of_text in scores} == {np.dtype(np.float64)}
            for of_text, naive in zip(scores, expected, strict=True):
                np.testing.assert_allclose(of_text, naive, rtol=0, atol=TOLERANCE)
            sums = pseudo_log_likelihoods(model, tokenizer, SENTENCES, mask_rest_of_word, max_tokens)
            assert sums.tolist() == [of_text.sum() for of_text in scores]


def test_a_batch_waits_once_for_a_device(monkeypatch):
    """Tensors on the CPU say that they are on CUDA."""
    model, tokenizer = make_pair(BERT, False)
    model.set_attn_implementation("eager")
    expected = pseudo_log_likelihoods(model, tokenizer, SENTENCES, max_tokens=100)
    batches = []
    monkeypatch.setattr(masked_lm, "make_batch", lambda *args: batches.append(args) or make_batch(*args))
    monkeypatch.setattr(type(model), "device", CUDA)
    with CountedWaits() as mode:
        scores = pseudo_log_likelihoods(model, tokenizer, SENTENCES, max_tokens=100)
    assert mode.waits == {"to cpu": len(batches)} and len(batches) > 2
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_words_are_masked_from_the_predicted_token_on():
    """With another architecture of transformers."""
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
    (scores,) = token_log_probabilities(model.train(), tokenizer, ["souvenir"])
    assert seen == [[2, 4, 6, 7, 3], [2, 5, 4, 7, 3], [2, 5, 6, 4, 3]] and model.training
    logits = [model.eval()(torch.tensor([ids]), torch.ones(1, 5)).logits.log_softmax(dim=-1) for ids in seen[:3]]
    assert scores == pytest.approx([logits[i][0, i + 1, 5 + i].item() for i in range(3)], abs=TOLERANCE)


@pytest.mark.parametrize("is_stock", [False, True], ids=["ours", "stock"])
def test_only_masked_tokens_are_projected(is_stock):
    model, tokenizer = make_pair(BERT, is_stock)
    projected = []
    decoder = model.get_output_embeddings()
    decoder.register_forward_hook(lambda module, inputs, output: projected.append(output.shape[:-1].numel()))
    token_log_probabilities(model, tokenizer, SENTENCES[:3])
    assert sum(projected) == sum(len(tokenizer(sentence)["input_ids"]) - 2 for sentence in SENTENCES[:3])
    assert len(decoder._forward_pre_hooks) == 0


def test_pretraining_models_have_the_head_too():
    model, tokenizer = make_model(BERT, "AutoModelForPreTraining"), make_tokenizer(BERT)

    def with_logits(**inputs):
        outputs = model(**inputs)
        outputs["logits"] = outputs.prediction_logits
        return outputs

    (scores,) = token_log_probabilities(model, tokenizer, SENTENCES[:1])
    expected = naive_log_probabilities(with_logits, tokenizer, SENTENCES[0])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)


def test_texts_with_the_same_tokens_are_computed_once(monkeypatch):
    model, tokenizer = make_pair(BERT, is_stock=False)
    rows = []

    def counting(model, **batch):
        rows.append(len(batch["input_ids"]))
        return masked_token_scores(model, **batch)

    monkeypatch.setattr(masked_lm, "masked_token_scores", counting)
    first, second, third = token_log_probabilities(model, tokenizer, [SENTENCES[2], "mat", SENTENCES[5]], max_tokens=1)
    assert len(rows) == len(first) + len(second)
    assert first.tolist() == third.tolist()


def test_batches_keep_to_the_budget_and_are_nearly_free_of_padding():
    lengths = (5, 12, 7, 5, 12, 3)
    copies = [MaskedCopy((*range(n),), place, place + 1) for n in lengths for place in range(1, n - 1)]
    seen, cells = [], 0
    for of_batch in batches_of_copies(copies, max_tokens=30):
        batch = make_batch(of_batch, mask_id=99, pad_id=98)
        assert batch["input_ids"].numel() <= 30
        assert (batch["input_ids"] == 99).sum() == batch["is_wanted"].sum() == len(of_batch)
        assert ((batch["input_ids"] == 98) == (batch["attention_mask"] == 0)).all()
        seen += of_batch
        cells += batch["input_ids"].numel()
    assert sorted(seen) == sorted(copies)
    assert cells < 1.1 * sum(len(copy.ids) for copy in copies)


def test_uniform_model_has_the_vocabulary_as_perplexity():
    model, tokenizer = make_pair(BERT, is_stock=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    scores = token_log_probabilities(model, tokenizer, SENTENCES)
    assert pseudo_perplexity(scores) == pytest.approx(model.config.vocab_size, rel=1e-6)


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
def test_wrong_texts_are_a_value_error_before_any_compute(monkeypatch, texts, arguments, message):
    model, tokenizer = make_pair(BERT, is_stock=False)
    monkeypatch.setattr(masked_lm, "masked_token_scores", lambda *given, **named: pytest.fail("computed"))
    with pytest.raises(ValueError, match=message):
        token_log_probabilities(model, tokenizer, texts, **arguments)


def test_longest_text_that_fits_is_scored():
    longest = make_config(ROBERTA).max_position_embeddings - 2
    model, tokenizer = make_pair(ROBERTA, is_stock=True)
    (scores,) = token_log_probabilities(model, tokenizer, ["t" * (longest - 2)])
    assert len(scores) == longest - 2
    with pytest.raises(ValueError, match=f"the model takes {longest}"):
        token_log_probabilities(model, tokenizer, ["t" * (longest - 1)])


def test_models_and_tokenizers_without_masks_are_refused():
    model, tokenizer = make_pair(BERT, is_stock=False)
    with pytest.raises(ValueError, match="has no MLM head: load it with AutoModelForMaskedLM"):
        token_log_probabilities(model.base_model, tokenizer, ["mat"])
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="tokenizer has no mask_token"):
        token_log_probabilities(model, tokenizer, ["mat"])


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
        scores = threads.map(lambda text: pseudo_log_likelihoods(model, tokenizer, [SENTENCES[text]])[0], texts)
        np.testing.assert_allclose(list(scores), expected[texts], rtol=0, atol=1e-5)
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
        scores = masked_token_scores(wrapped, **batch)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    assert model.training and all(parameter.is_meta for parameter in model.parameters()) == (wrap == "accelerate")


# Filling masks.


TEXT = "The {0} sat on {0} mat."


def log_probabilities(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)


def joint_probabilities(model, tokenizer, order: str) -> dict[tuple[int, int], float]:
    """Of all pairs of ordinary tokens at two masks, each by the definition of the order."""
    ids = tokenizer(TEXT.format(tokenizer.mask_token), return_tensors="pt")["input_ids"][0]
    first, second = (ids == tokenizer.mask_token_id).nonzero().squeeze(1).tolist()
    ordinary = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    begin = log_probabilities(model, ids)
    surest = max((first, second), key=lambda place: begin[place, ordinary].max().item())
    joint = {}
    for a, b in itertools.product(ordinary, repeat=2):
        if order == "at_once":
            joint[a, b] = (begin[first, a] + begin[second, b]).item()
            continue
        earlier, later = (first, second) if order == "left_to_right" or surest == first else (second, first)
        token = {first: a, second: b}
        filled = ids.clone()
        filled[earlier] = token[earlier]
        joint[a, b] = (begin[earlier, token[earlier]] + log_probabilities(model, filled)[later, token[later]]).item()
    return joint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "is_stock", "order"),
    [(BERT, False, "left_to_right"), (BERT, False, "at_once"), (BERT, True, "confidence")]
    + [(family, False, "confidence") for family in FILL_MASKS],
)
def test_all_beams_are_exhaustive_search_on_two_masks(family, is_stock, order):
    model, tokenizer = make_pair(family, is_stock)
    expected = joint_probabilities(model, tokenizer, order)
    texts = fill_masks(model, tokenizer, TEXT.format(tokenizer.mask_token), order, num_beams=len(expected))
    assert len(texts) == len(expected)
    scores = [text.log_probability for text in texts]
    assert scores == sorted(scores, reverse=True)
    for text in texts:
        key = tuple(tokenizer.convert_tokens_to_ids(text.tokens))
        assert text.log_probability == pytest.approx(expected[key], abs=1e-5)
    best = max(expected, key=expected.get)
    assert tokenizer.convert_ids_to_tokens(list(best)) == texts[0].tokens


@pytest.mark.parametrize("order", ["left_to_right", "confidence"])
def test_greedy_takes_the_best_token_of_each_step(order):
    model, tokenizer = make_pair(BERT, is_stock=False)
    ids = tokenizer("[MASK] cat [MASK] [MASK]", return_tensors="pt")["input_ids"][0]
    expected, steps = 0.0, []
    ordinary = torch.tensor([token not in tokenizer.all_special_ids for token in range(len(tokenizer))])
    while (open_places := (ids == tokenizer.mask_token_id).nonzero().squeeze(1)).numel():
        table = log_probabilities(model, ids).masked_fill(~ordinary, -math.inf)
        best = table[open_places].amax(dim=-1)
        place = open_places[best.argmax() if order == "confidence" else 0]
        expected += table[place].max().item()
        ids[place] = table[place].argmax()
        steps.append(place.item())
    (filled,) = fill_masks(model, tokenizer, "[MASK] cat [MASK] [MASK]", order)
    assert filled.tokens == tokenizer.convert_ids_to_tokens(ids[[1, 3, 4]].tolist())
    assert filled.log_probability == pytest.approx(expected, abs=1e-5)
    assert filled.text == tokenizer.decode(ids[1:-1])
    if order == "left_to_right":
        assert steps == [1, 3, 4]


def test_orders_differ_except_for_one_mask():
    model, tokenizer = make_pair(BERT, is_stock=False)
    orders = ("left_to_right", "confidence", "at_once")
    single = [fill_masks(model, tokenizer, "the [MASK] slept", order, num_beams=3) for order in orders]
    assert single[0] == single[1] == single[2]
    several = {fill_masks(model, tokenizer, "[MASK] cat [MASK] [MASK]", order)[0].log_probability for order in orders}
    assert len(several) == 3


def test_unknown_words_of_the_text_stay_and_special_tokens_are_not_filled_in():
    model, tokenizer = make_pair(BERT, is_stock=False)
    with torch.no_grad():
        model.get_output_embeddings().bias[tokenizer.all_special_ids] = 100.0
    (filled,) = fill_masks(model, tokenizer, "the zebra [MASK]")
    assert filled.text.startswith("the [UNK] ")
    assert filled.tokens[0] not in tokenizer.all_special_tokens


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("the cat", {}, r"text has no \[MASK\]"),
        ("[MASK] " * 42, {}, "text has 44 tokens, the model takes 43"),
        ("[MASK]", {"order": "random"}, "order='random'"),
        ("[MASK]", {"num_beams": 0}, "num_beams=0"),
    ],
)
def test_wrong_masks_are_a_value_error(text, arguments, message):
    model, tokenizer = make_pair(BERT, is_stock=False)
    with pytest.raises(ValueError, match=message):
        fill_masks(model, tokenizer, text, **arguments)


def test_lone_surrogates_are_replaced():
    model, tokenizer = make_pair(BERT, is_stock=False)
    texts = [f"The {letter} {tokenizer.mask_token} sat." for letter in ("\ud83d", "\ufffd")]
    assert fill_masks(model, tokenizer, texts[0]) == fill_masks(model, tokenizer, texts[1])
    scores = [pseudo_log_likelihoods(model, tokenizer, [f"The {letter} sat."]) for letter in ("\ud83d", "\ufffd")]
    assert scores[0] == scores[1]


def test_tokens_after_a_gap_between_ids_are_filled_in():
    model, tokenizer = make_pair(BERT, is_stock=False)
    last = max(tokenizer.get_vocab().values())
    fields = json.loads(tokenizer._tokenizer.to_str())
    word = next(token for token, number in fields["model"]["vocab"].items() if number == last)
    fields["model"]["vocab"][word] = last + 1
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(fields))
    model.resize_token_embeddings(last + 2)
    with torch.no_grad():
        model.get_output_embeddings().bias[last + 1] = 50.0
        model.get_output_embeddings().bias[last] = 60.0  # of no token
    assert fill_masks(model, tokenizer, f"The {tokenizer.mask_token} sat.")[0].tokens == [word]


@pytest.mark.parametrize("family", [BERT, ALBERT], ids=lambda family: family.name)
@pytest.mark.parametrize("longest", [12, 40])
def test_words_are_hidden_in_sentences_that_the_model_takes(family, longest, caplog, capsys):
    """A model of short inputs sees short sentences only; of longer ones nobody is warned."""
    model, tokenizer = make_pair(family, is_stock=False)
    tokenizer.model_max_length = longest
    short, middle, too_long = "the cat sat on a mat , the dog", "the dog and " * 7 + "the cat", "the dog and " * 20
    sentences = [short, middle, too_long] * 2
    capsys.readouterr()
    hidden = hide_words(model, tokenizer, sentences, number=3, seed=0)
    assert "longer than" not in caplog.text and capsys.readouterr().err == ""
    assert hide_words(model, tokenizer, sentences, number=3, seed=0, progress=True) == hidden
    assert "Hiding words:   0%" in capsys.readouterr().err
    assert {text.count(" ") for text, _, _ in hidden} <= {
        short.count(" "),
        *([middle.count(" ")] if longest > 12 else []),
    }
    assert len(hidden) == (2 if longest == 12 else 3)
    for text, word, guesses in hidden:
        assert word in ("the", "cat", "sat", "on", "a", "mat", "dog", "and")
        assert text.count(tokenizer.mask_token) == 1 and len(guesses) == 3
