"""Masked language models on text: pseudo-likelihoods, minimal pairs, and tokens for masks."""

from hf_encoders.evaluation.fill_masks import FilledText, fill_masks
from hf_encoders.evaluation.pseudo_likelihood import pseudo_log_likelihoods, pseudo_perplexity, token_log_probabilities


__all__ = ["FilledText", "fill_masks", "pseudo_log_likelihoods", "pseudo_perplexity", "token_log_probabilities"]
