"""Fills several masks of a text, one after the other.

A masked language model knows p(token | everything else), not p(text). So this is no text generation: the number of
masks fixes the number of tokens, the result depends on the order, and the product of the conditionals is a probability
under that order only. Good for gaps of one to a few tokens; what comes out of longer ones repeats itself (see Wang and
Cho 2019, https://arxiv.org/abs/1902.04094).
"""

from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.data.special_tokens import mask_and_padding
from hf_encoders.evaluation.masked_scores import check_length, for_evaluation, masked_token_scores


ORDERS = ("left_to_right", "confidence", "at_once")


class FilledText(NamedTuple):
    """A text without masks.

    Args:
        text (`str`): as the tokenizer decodes it, which need not be the given text's spelling (`[CLS]` and the like,
            which the tokenizer had put around it, left out).
        tokens (`list` of `str`): what stands at the masks, in the order of the text.
        log_probability (`float`): sum over the masks, in nats, each under the text as it was when that mask was
            filled; with `at_once` of the masks' own distributions, as if they did not know of each other.
    """

    text: str
    tokens: list[str]
    log_probability: float


class _Hypothesis(NamedTuple):
    """Ids at the masks, None for a mask still open, and the sum of their log-probabilities."""

    filled: tuple[int | None, ...]
    log_probability: float


def fill_masks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    order: str = "left_to_right",
    num_beams: int = 1,
) -> list[FilledText]:
    """Replace every mask token of a text by a token.

    Args:
        model (`PreTrainedModel`): with an MLM head; a copy of its modules is used in `eval()`, and it stays as it is.
        tokenizer (`PreTrainedTokenizerBase`): the model's.
        text (`str`): with `tokenizer.mask_token` at one place or more.
        order (`str`): `left_to_right`; `confidence`, the mask whose best token is most probable first, asked anew
            after each; `at_once`, all from the text with all masks: one pass, and neighbours may not agree.
        num_beams (`int`): partly filled texts to keep; 1 takes the best token each time. Each goes on with its own
            best masks and tokens, and with as many beams as there are tokens two masks are searched exhaustively.

    Returns:
        `num_beams` texts, or all that there are, the most probable first; none of them with special tokens at the
        masks.

    Raises:
        ValueError: for a text without a mask or longer than the model takes, another `order`, `num_beams` below 1.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r}: must be one of {', '.join(ORDERS)}.")
    if num_beams < 1:
        raise ValueError(f"num_beams={num_beams}: must be at least 1.")
    filler = _MaskFiller(for_evaluation(model), tokenizer, text)
    with torch.no_grad():
        return filler.search(order, num_beams)


class _MaskFiller:
    """The encoded text, and a beam search over what stands at its M masks."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str):
        mask_id, _ = mask_and_padding(tokenizer)
        encoded = tokenizer(text, return_special_tokens_mask=True, return_tensors="pt", verbose=False)
        self.model, self.tokenizer = model, tokenizer
        self.ids = encoded["input_ids"][0]
        self.places = (self.ids == mask_id).nonzero().squeeze(1)
        self.is_text = (encoded["special_tokens_mask"][0] == 0) | (self.ids == mask_id)
        check_length("text", len(self.ids), model, tokenizer)
        if len(self.places) == 0:
            raise ValueError(f"text has no {tokenizer.mask_token}: put one where a token is to be filled in.")
        self.mask_id = mask_id

    def search(self, order: str, num_beams: int) -> list[FilledText]:
        """Fill one mask of every hypothesis at a time and keep the best."""
        beams = [_Hypothesis((None,) * len(self.places), 0.0)]
        first = self.log_probabilities(beams)[0]
        for step in range(len(self.places)):
            if order == "at_once":
                tables = [first] * len(beams)
            else:
                tables = [first] if step == 0 else self.log_probabilities(beams)
            found = {}
            for beam, table in zip(beams, tables, strict=True):
                for longer in self.continuations(beam, table, order, num_beams):
                    # Two ways to the same text are one text; the more probable way counts.
                    if longer.filled not in found or found[longer.filled].log_probability < longer.log_probability:
                        found[longer.filled] = longer
            beams = sorted(found.values(), key=lambda beam: -beam.log_probability)[:num_beams]
        return [self.result(beam) for beam in beams]

    def log_probabilities(self, beams: list[_Hypothesis]) -> torch.Tensor:
        """`(beams, M, V)`: at every place that was a mask in the given text, special tokens at -inf."""
        rows = self.ids.repeat(len(beams), 1)
        for row, beam in zip(rows, beams, strict=True):
            row[self.places] = torch.tensor([self.mask_id if one is None else one for one in beam.filled])
        is_wanted = torch.zeros_like(rows, dtype=torch.bool)
        is_wanted[:, self.places] = True
        batch = (rows, torch.ones_like(rows), is_wanted)
        scores = masked_token_scores(self.model, *(tensor.to(self.model.device) for tensor in batch)).cpu()
        scores = scores.log_softmax(dim=-1)
        scores[:, [one for one in self.tokenizer.all_special_ids if one < scores.shape[1]]] = -torch.inf
        scores[:, len(self.tokenizer) :] = -torch.inf  # rows that a vocabulary was padded with
        return scores.view(len(beams), len(self.places), -1)

    def continuations(self, beam: _Hypothesis, table: torch.Tensor, order: str, num_beams: int) -> list[_Hypothesis]:
        """The best tokens at the next mask of a hypothesis; `table` is `(M, V)`."""
        open_masks = [mask for mask, one in enumerate(beam.filled) if one is None]
        mask = open_masks[0]
        if order == "confidence":
            mask = open_masks[int(table[open_masks].amax(dim=-1).argmax())]
        best = table[mask].topk(min(num_beams, int(table[mask].isfinite().sum())))
        return [
            _Hypothesis((*beam.filled[:mask], token, *beam.filled[mask + 1 :]), beam.log_probability + value)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def result(self, beam: _Hypothesis) -> FilledText:
        """The hypothesis as text."""
        ids = self.ids.clone()
        ids[self.places] = torch.tensor(beam.filled)
        tokens = self.tokenizer.convert_ids_to_tokens(list(beam.filled))
        return FilledText(self.tokenizer.decode(ids[self.is_text]), tokens, beam.log_probability)
