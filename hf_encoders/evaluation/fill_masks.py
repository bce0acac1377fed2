"""Fill several masks of a text, one after the other.

This is not text generation: a masked language model has p(token | everything else), so the result depends on the order
of the masks, and the product is a probability under that order only. It suits gaps of one to a few tokens; longer ones
become repetitive (see Wang and Cho 2019, https://arxiv.org/abs/1902.04094).
"""

from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.special_tokens import mask_and_padding
from hf_encoders.evaluation.pseudo_likelihood import check_length, evaluating, masked_token_scores
from hf_encoders.inputs import replace_lone_surrogates


ORDERS = ("left_to_right", "confidence", "at_once")
# Ids at the masks, the mask's own if not filled yet -> sum of their log-probabilities; the most probable first.
Beams = dict[tuple[int, ...], float]


class FilledText(NamedTuple):
    """A text without masks."""

    text: str  # as decoded by the tokenizer, so that the spelling may change; without the special tokens that it adds
    tokens: list[str]  # the tokens at the masks, in the order of the text
    log_probability: float  # sum over the masks, in nats, each given the text when it was filled


def fill_masks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    order: str = "left_to_right",
    num_beams: int = 1,
) -> list[FilledText]:
    """Replace every mask token of a text by a token.

    Args:
        model (`PreTrainedModel`): With an MLM head; evaluated without dropout, and left as it is.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        text (`str`): With `tokenizer.mask_token` at one or more positions.
        order (`str`, *optional*, defaults to `"left_to_right"`): Or `confidence`: the mask whose best token is most
            probable first, computed again after each; or `at_once`: all in one pass from the text with all masks, so
            that neighbours may not agree.
        num_beams (`int`, *optional*, defaults to 1): Partly filled texts to keep; 1 is greedy. Each continues with its
            own best masks and tokens; with as many beams as tokens, the search over two masks is exhaustive.

    Returns:
        `num_beams` texts, or all that exist, the most probable first; never with special tokens at the masks.

    Raises:
        ValueError: For a text without a mask or longer than the model takes, another `order`, `num_beams` below 1.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r}: must be one of {', '.join(ORDERS)}.")
    if num_beams < 1:
        raise ValueError(f"num_beams={num_beams}: must be at least 1.")
    mask_id, _ = mask_and_padding(tokenizer)
    encoded = tokenizer(
        replace_lone_surrogates(text), return_special_tokens_mask=True, return_tensors="pt", verbose=False
    )
    ids = encoded["input_ids"][0]
    masks = (ids == mask_id).nonzero().squeeze(1)
    check_length("text", len(ids), model, tokenizer)
    if len(masks) == 0:
        raise ValueError(f"text has no {tokenizer.mask_token}: put one where a token is to be filled in.")
    beams: Beams = {(mask_id,) * len(masks): 0.0}
    is_word = torch.zeros(model.config.vocab_size, dtype=torch.bool)  # without padding of the vocabulary, and gaps
    words = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids)
    is_word[[word for word in words if word < len(is_word)]] = True
    with evaluating(model):
        for step in range(len(masks)):
            if step == 0 or order != "at_once":
                tables = _log_probabilities(model, ids, masks, beams).masked_fill(~is_word, -torch.inf)
            longer: Beams = {}
            for (filled, log_probability), table in zip(beams.items(), tables.expand(len(beams), -1, -1), strict=True):
                for tokens, added in _continuations(filled, table, mask_id, order, num_beams):
                    # Two orders may give the same text; the more probable one counts.
                    longer[tokens] = max(longer.get(tokens, -torch.inf), log_probability + added)
            beams = dict(sorted(longer.items(), key=lambda beam: -beam[1])[:num_beams])
    is_text = (encoded["special_tokens_mask"][0] == 0) | (ids == mask_id)
    texts = []
    for filled, log_probability in beams.items():
        ids[masks] = torch.tensor(filled)
        tokens = tokenizer.convert_ids_to_tokens(list(filled))
        texts.append(FilledText(tokenizer.decode(ids[is_text]), tokens, log_probability))
    return texts


def _log_probabilities(model: PreTrainedModel, ids: torch.Tensor, masks: torch.Tensor, beams: Beams) -> torch.Tensor:
    """Compute those at all M masks of the given text, `(beams, M, V)`."""
    rows = ids.repeat(len(beams), 1)
    rows[:, masks] = torch.tensor(list(beams))
    is_wanted = torch.zeros_like(rows, dtype=torch.bool)
    is_wanted[:, masks] = True
    batch = (rows, torch.ones_like(rows), is_wanted)
    scores = masked_token_scores(model, *(tensor.to(model.device) for tensor in batch)).cpu().log_softmax(dim=-1)
    return scores.view(len(beams), len(masks), -1)


def _continuations(
    filled: tuple[int, ...], table: torch.Tensor, mask_id: int, order: str, num_beams: int
) -> list[tuple[tuple[int, ...], float]]:
    """Fill the next mask with its best tokens; `table` is `(M, V)`. Returns ids and the token's log-probability."""
    open_masks = [mask for mask, token in enumerate(filled) if token == mask_id]
    mask = open_masks[0]
    if order == "confidence":
        mask = open_masks[int(table[open_masks].amax(dim=-1).argmax())]
    best = table[mask].topk(min(num_beams, int(table[mask].isfinite().sum())))
    return [
        ((*filled[:mask], token, *filled[mask + 1 :]), value)
        for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
