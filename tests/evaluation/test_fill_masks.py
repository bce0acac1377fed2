"""Filled masks: exhaustive search on two masks, the orders step by step, what comes back."""

import itertools
import json
import math

import pytest
import torch
from tokenizers import Tokenizer

from hf_encoders import fill_masks, pseudo_log_likelihoods
from tests.evaluation.models import make_pair
from tests.hub.tiny_checkpoints import BERT, FILL_MASKS


TEXT = "The {0} sat on {0} mat."


def log_probabilities(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)


def joint_probabilities(model, tokenizer, order: str) -> dict[tuple[int, int], float]:
    """Of all pairs of ordinary tokens at two masks, each by the definition of the order."""
    ids = tokenizer(TEXT.format(tokenizer.mask_token), return_tensors="pt")["input_ids"][0]
    first, second = (ids == tokenizer.mask_token_id).nonzero().squeeze(1).tolist()
    ordinary = [one for one in range(len(tokenizer)) if one not in tokenizer.all_special_ids]
    begin = log_probabilities(model, ids)
    surest = max((first, second), key=lambda place: begin[place, ordinary].max().item())
    found = {}
    for a, b in itertools.product(ordinary, repeat=2):
        if order == "at_once":
            found[a, b] = (begin[first, a] + begin[second, b]).item()
            continue
        earlier, later = (first, second) if order == "left_to_right" or surest == first else (second, first)
        token = {first: a, second: b}
        filled = ids.clone()
        filled[earlier] = token[earlier]
        found[a, b] = (begin[earlier, token[earlier]] + log_probabilities(model, filled)[later, token[later]]).item()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_stock", "order"),
    [(False, "left_to_right"), (False, "confidence"), (False, "at_once"), (True, "confidence")],
    ids=["ours-left_to_right", "ours-confidence", "ours-at_once", "stock-confidence"],
)
@pytest.mark.parametrize("family", FILL_MASKS, ids=lambda family: family.name)
def test_all_beams_are_exhaustive_search_on_two_masks(family, is_stock, order):
    """Every order with our classes; the search only calls the model, so one order with the stock ones."""
    model, tokenizer = make_pair(family, is_stock)
    expected = joint_probabilities(model, tokenizer, order)
    found = fill_masks(model, tokenizer, TEXT.format(tokenizer.mask_token), order, num_beams=len(expected))
    assert len(found) == len(expected)
    scores = [one.log_probability for one in found]
    assert scores == sorted(scores, reverse=True)
    for one in found:
        key = tuple(tokenizer.convert_tokens_to_ids(one.tokens))
        assert one.log_probability == pytest.approx(expected[key], abs=1e-5)
    best = max(expected, key=expected.get)
    assert tokenizer.convert_ids_to_tokens(list(best)) == found[0].tokens


@pytest.mark.parametrize("order", ["left_to_right", "confidence"])
def test_greedy_takes_the_best_token_of_each_step(order):
    model, tokenizer = make_pair(BERT, is_stock=False)
    ids = tokenizer("[MASK] cat [MASK] [MASK]", return_tensors="pt")["input_ids"][0]
    expected, steps = 0.0, []
    ordinary = torch.tensor([one not in tokenizer.all_special_ids for one in range(len(tokenizer))])
    while (open_places := (ids == tokenizer.mask_token_id).nonzero().squeeze(1)).numel():
        table = log_probabilities(model, ids).masked_fill(~ordinary, -math.inf)
        best = table[open_places].amax(dim=-1)
        place = open_places[best.argmax() if order == "confidence" else 0]
        expected += table[place].max().item()
        ids[place] = table[place].argmax()
        steps.append(place.item())
    (found,) = fill_masks(model, tokenizer, "[MASK] cat [MASK] [MASK]", order)
    assert found.tokens == tokenizer.convert_ids_to_tokens(ids[[1, 3, 4]].tolist())
    assert found.log_probability == pytest.approx(expected, abs=1e-5)
    assert found.text == tokenizer.decode(ids[1:-1])
    if order == "left_to_right":
        assert steps == [1, 3, 4]


def test_more_beams_never_find_less_on_two_masks_left_to_right():
    model, tokenizer = make_pair(BERT, is_stock=False)
    text = TEXT.format("[MASK]")
    best = [fill_masks(model, tokenizer, text, num_beams=beams)[0].log_probability for beams in (1, 3, 14)]
    assert best == sorted(best)
    assert [len(fill_masks(model, tokenizer, text, num_beams=beams)) for beams in (1, 3, 500)] == [1, 3, 14 * 14]


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
    (found,) = fill_masks(model, tokenizer, "the zebra [MASK]")
    assert found.text.startswith("the [UNK] ")
    assert found.tokens[0] not in tokenizer.all_special_tokens


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("the cat", {}, r"text has no \[MASK\]"),
        ("[MASK] " * 42, {}, "text has 44 tokens, the model takes 43"),
        ("[MASK]", {"order": "random"}, "order='random'"),
        ("[MASK]", {"num_beams": 0}, "num_beams=0"),
    ],
)
def test_wrong_input_is_a_value_error(text, arguments, message):
    model, tokenizer = make_pair(BERT, is_stock=False)
    with pytest.raises(ValueError, match=message):
        fill_masks(model, tokenizer, text, **arguments)


def test_lone_surrogates_are_replaced():
    model, tokenizer = make_pair(BERT, is_stock=False)
    texts = [f"The \ud83d {tokenizer.mask_token} sat.", f"The \ufffd {tokenizer.mask_token} sat."]
    assert fill_masks(model, tokenizer, texts[0]) == fill_masks(model, tokenizer, texts[1])
    scores = [pseudo_log_likelihoods(model, tokenizer, [text]) for text in ("The \ud83d sat.", "The \ufffd sat.")]
    assert scores[0] == scores[1]


def test_tokens_behind_a_gap_between_ids_are_filled_in():
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
