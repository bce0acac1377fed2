"""Masked language models on text: pseudo-likelihoods, and tokens for masks.

`pseudo_likelihood.py` scores sentences, `fill_masks.py` fills several masks, `minimal_pairs.py` reads and compares
pairs of sentences; all use `masked_scores.py`: vocabulary scores at masked tokens only.
"""

from hf_encoders.evaluation.fill_masks import FilledText, fill_masks
from hf_encoders.evaluation.pseudo_likelihood import (
    pseudo_log_likelihoods,
    pseudo_perplexity,
    token_log_probabilities,
)


__all__ = [
    "FilledText",
    "fill_masks",
    "pseudo_log_likelihoods",
    "pseudo_perplexity",
    "token_log_probabilities",
]
