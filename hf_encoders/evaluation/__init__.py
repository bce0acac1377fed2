"""What a masked language model says about text: how likely it is, and what could stand at a mask.

`pseudo_likelihood.py` scores sentences, `fill_masks.py` fills several masks, `minimal_pairs.py` reads and compares
pairs of sentences; `masked_scores.py` is what they share: the vocabulary's scores at masked tokens and nowhere else.
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
