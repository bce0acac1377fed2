"""Pseudo-likelihood of sentences under a masked language model (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).

Every token is predicted from all others, in a masked copy of the sentence per token; the logarithms are summed. It
ranks sentences. It is not a probability of the sentence (the factors are not a chain of conditionals), and it compares
only models that share a tokenizer.
"""

import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.segmentation import replace_lone_surrogates
from hf_encoders.corpus.special_tokens import mask_and_padding
from hf_encoders.evaluation.masked_scores import check_length, evaluating, masked_token_scores
from hf_encoders.objectives.batches import to_device


# Per batch. Smaller ones suit a CPU's caches (2048 took a tenth less time than 8192 there), larger ones a GPU.
MAX_TOKENS = 4096


class ScoredText(NamedTuple):
    """A tokenized text with the tokens to score."""

    ids: tuple[int, ...]  # with special tokens
    places: tuple[int, ...]  # positions of the tokens to score: all but the special tokens around the text
    ends: tuple[int, ...]  # for each of them, the end of the run of masks that begins with it


def token_log_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_rest_of_word: bool = False,
    max_tokens: int = MAX_TOKENS,
    progress: bool = False,
) -> list[np.ndarray]:
    """The log-probability of each token of each text, given all other tokens of that text.

    Costs one forward pass per token. Only the masked token of each copy is projected to the vocabulary. Texts with the
    same tokens are computed once, so that their scores are identical.

    Args:
        model (`PreTrainedModel`): With an MLM head; evaluated without dropout, and left as it is.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        texts (`Sequence` of `str`): Sentences.
        mask_rest_of_word (`bool`, *optional*, defaults to `False`): Also mask the later tokens of the predicted
            token's word, so that the end of a rare word does not reveal it ("PLL-word-l2r" of Kauf and Ivanova 2023,
            https://arxiv.org/abs/2305.10588). Words are the tokenizer's `word_ids`.
        max_tokens (`int`, *optional*, defaults to 4096): Most tokens in a batch of masked copies; at least one copy.
        progress (`bool`, *optional*, defaults to `False`): Whether to show a progress bar, in masked copies.

    Returns:
        For each text `np.ndarray` of `float64` and shape `(tokens,)`, in nats, without special tokens.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens={max_tokens}: must be at least 1.")
    mask_id, pad_id = mask_and_padding(tokenizer)
    rows = _scored_texts(model, tokenizer, texts, mask_id, mask_rest_of_word)
    distinct = list(dict.fromkeys(rows))
    copies = MaskedCopies(distinct, mask_id, pad_id)
    found = np.empty(len(copies.text))
    with evaluating(model), tqdm(total=len(found), disable=not progress, unit="copy", leave=False) as bar:
        for chosen in copies.batches(max_tokens):
            targets = torch.from_numpy(copies.targets[chosen])
            batch = to_device({**copies.make_batch(chosen), "targets": targets}, model.device)
            targets = batch.pop("targets")
            scores = masked_token_scores(model, **batch)
            targets = targets.to(scores.device)
            found[chosen] = -torch.nn.functional.cross_entropy(scores, targets, reduction="none").cpu().numpy()
            bar.update(len(chosen))
    bounds = offsets_of(np.array([len(text.places) for text in distinct]))
    of_text = {text: found[bounds[i] : bounds[i + 1]] for i, text in enumerate(distinct)}
    return [of_text[row] for row in rows]


def pseudo_log_likelihoods(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_rest_of_word: bool = False,
    max_tokens: int = MAX_TOKENS,
    progress: bool = False,
) -> np.ndarray:
    """The sum of each text's `token_log_probabilities`, with the same arguments: `float64` of shape `(texts,)`."""
    scores = token_log_probabilities(model, tokenizer, texts, mask_rest_of_word, max_tokens, progress)
    return np.array([text.sum() for text in scores])


def pseudo_perplexity(log_probabilities: Sequence[np.ndarray]) -> float:
    """Exp of the mean negative log-probability per token over all texts; at least 1.

    >>> pseudo_perplexity([np.log([0.5, 0.125]), np.log([0.25])])
    4.0
    """
    total, count = sum(text.sum() for text in log_probabilities), sum(map(len, log_probabilities))
    return math.exp(-total / count)


class MaskedCopies:
    """A masked copy for each scored token of the texts, text by text, made when a batch is.

    >>> copies = MaskedCopies([ScoredText((1, 7, 8, 2), (1, 2), (2, 3)), ScoredText((1, 9, 2), (1,), (2,))], 4, 0)
    >>> copies.targets.tolist()
    [7, 8, 9]
    >>> [chosen.tolist() for chosen in copies.batches(max_tokens=9)]
    [[0, 1], [2]]
    >>> copies.make_batch(np.array([1, 2]))["input_ids"].tolist()
    [[1, 7, 4, 2], [1, 4, 2, 0]]
    """

    def __init__(self, texts: list[ScoredText], mask_id: int, pad_id: int):
        self.texts, self.mask_id, self.pad_id = texts, mask_id, pad_id
        self.text = np.repeat(np.arange(len(texts)), [len(text.places) for text in texts])
        self.places = np.array([place for text in texts for place in text.places])
        self.ends = np.array([end for text in texts for end in text.ends])
        self.lengths = np.array([len(text.ids) for text in texts])[self.text]
        self.targets = np.array([text.ids[place] for text in texts for place in text.places])

    def batches(self, max_tokens: int) -> Iterator[np.ndarray]:
        """Indices of copies, the longest first, at most `max_tokens` with padding per batch."""
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            chosen = order[start : start + max(1, max_tokens // self.lengths[order[start]])]
            start += len(chosen)
            yield chosen

    def make_batch(self, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` (`int64`), `is_wanted` (`bool`), all `(copies, longest)`."""
        lengths = self.lengths[chosen]
        ids = np.full((len(chosen), lengths.max()), self.pad_id)
        for row, copy in enumerate(chosen):
            ids[row, : lengths[row]] = self.texts[self.text[copy]].ids
        columns = np.arange(ids.shape[1])
        first, end = self.places[chosen, None], self.ends[chosen, None]
        ids[(columns >= first) & (columns < end)] = self.mask_id
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((columns < lengths[:, None]).astype(np.int64)),
            "is_wanted": torch.from_numpy(columns == first),
        }


def _scored_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    mask_id: int,
    mask_rest_of_word: bool,
) -> list[ScoredText]:
    if mask_rest_of_word and not tokenizer.is_fast:
        raise ValueError(f"mask_rest_of_word: {type(tokenizer).__name__} has no word_ids: use a fast tokenizer.")
    if len(texts) == 0:
        raise ValueError("texts is empty: pass at least one.")
    encoded = tokenizer(list(map(replace_lone_surrogates, texts)), return_special_tokens_mask=True, verbose=False)
    rows = []
    for number, ids in enumerate(encoded["input_ids"]):
        check_length(f"texts[{number}]", len(ids), model, tokenizer)
        places = [place for place, is_special in enumerate(encoded["special_tokens_mask"][number]) if not is_special]
        if not places or mask_id in ids:
            fault = f"contains the token {tokenizer.mask_token}" if places else "has no tokens"
            raise ValueError(f"texts[{number}]={reprlib.repr(texts[number])} {fault}: leave it out.")
        ends = _ends_of_words(encoded, number, places) if mask_rest_of_word else [place + 1 for place in places]
        rows.append(ScoredText(tuple(ids), tuple(places), tuple(ends)))
    return rows


def _ends_of_words(encoded: BatchEncoding, number: int, places: list[int]) -> list[int]:
    words = encoded.word_ids(number)
    ends = {}
    for place in reversed(places):
        continues = words[place] is not None and place + 1 in ends and words[place] == words[place + 1]
        ends[place] = ends[place + 1] if continues else place + 1
    return [ends[place] for place in places]
