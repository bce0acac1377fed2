"""Masking for the MLM objective, vectorised over a batch of flat tokens.

15 % of the tokens are predicted; of those, 80 % are replaced by the mask token, 10 % by a random token and 10 % stay
(BERT, section 3.1). Differs from the original code in: special tokens are neither counted, masked nor put in as random
tokens; the number of predictions is rounded at random, so that its mean is the rate in short examples too.
"""

from typing import NamedTuple

import numpy as np

from hf_encoders.data.randomness import uniforms


IGNORED = -100
# Streams of random numbers, one a decision; `sentence_pairs` uses those below 16.
CHOICE_STREAM, COUNT_STREAM, REPLACEMENT_STREAM, RANDOM_TOKEN_STREAM = range(16, 20)


class MaskingRule(NamedTuple):
    """How tokens are chosen and replaced.

    Args:
        mask_probability (`float`): share of the tokens that is predicted, in (0, 1].
        mask_replace_probability (`float`): share of those replaced by the mask token, in [0, 1].
        random_replace_probability (`float`): share of those replaced by a random token; the rest stays.
        mask_token_id (`int`): id of the mask token.
        replacement_ids (`np.ndarray`): ids that random tokens are drawn from.
        special_ids (`np.ndarray`): ids that are never chosen.
    """

    mask_probability: float
    mask_replace_probability: float
    random_replace_probability: float
    mask_token_id: int
    replacement_ids: np.ndarray
    special_ids: np.ndarray


def mask_tokens(
    ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray, rule: MaskingRule
) -> tuple[np.ndarray, np.ndarray]:
    """Choose tokens to predict and replace them.

    Args:
        ids (`np.ndarray` of shape `(N,)`): token ids of all examples, one after the other.
        lengths (`np.ndarray` of shape `(B,)`): tokens of each example.
        keys (`np.ndarray` of shape `(B,)`): key of each example's draws.
        rule (`MaskingRule`): what to do.

    Returns:
        `(N,)` masked ids and `(N,)` labels: the original id where a token is predicted, -100 elsewhere. Every example
        that has a token to choose has at least one prediction.
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    columns = np.arange(len(ids)) - starts[rows]
    chosen = choose_tokens(~np.isin(ids, rule.special_ids), rows, columns, keys, rule.mask_probability)
    labels = np.where(chosen, ids, IGNORED)

    places = np.flatnonzero(chosen)
    place_keys, place_columns = keys[rows[places]], columns[places]
    decision = uniforms(place_keys, REPLACEMENT_STREAM, place_columns)
    becomes_mask = decision < rule.mask_replace_probability
    becomes_random = ~becomes_mask & (decision < rule.mask_replace_probability + rule.random_replace_probability)
    masked = ids.copy()
    masked[places[becomes_mask]] = rule.mask_token_id
    drawn = uniforms(place_keys[becomes_random], RANDOM_TOKEN_STREAM, place_columns[becomes_random])
    masked[places[becomes_random]] = rule.replacement_ids[(drawn * len(rule.replacement_ids)).astype(np.int64)]
    return masked, labels


def choose_tokens(
    is_candidate: np.ndarray, rows: np.ndarray, columns: np.ndarray, keys: np.ndarray, probability: float
) -> np.ndarray:
    """Which tokens are predicted: in each example the candidates with the smallest draws, up to its quota.

    Args:
        is_candidate (`np.ndarray` of shape `(N,)`): True where a token may be chosen.
        rows, columns (`np.ndarray` of shape `(N,)`): example of each token and position in it; rows ascend.
        keys (`np.ndarray` of shape `(B,)`): key of each example.
        probability (`float`): share of the candidates.

    Returns:
        `np.ndarray` of shape `(N,)`, True where chosen.
    """
    candidates = np.bincount(rows[is_candidate], minlength=len(keys))
    rounding = uniforms(keys, COUNT_STREAM, 0)
    quota = np.minimum(np.maximum(np.floor(candidates * probability + rounding), 1), candidates)

    places = np.flatnonzero(is_candidate)
    candidate_rows = rows[places]
    draws = uniforms(keys[candidate_rows], CHOICE_STREAM, columns[places])
    # Rows ascend, so one sort orders the candidates by draw within each example.
    order = np.argsort(candidate_rows + draws, kind="stable")
    rank = np.arange(len(places)) - (np.cumsum(candidates) - candidates)[candidate_rows]
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[places[order[rank < quota[candidate_rows]]]] = True
    return chosen
