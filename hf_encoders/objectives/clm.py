"""Causal language modelling: each token predicts the next one. A detour for encoders (https://arxiv.org/abs/2605.12438)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hf_encoders.objectives.mlm import MASKED_TOKENS, MaskedLanguageModelling


NEXT_TOKENS = replace(MASKED_TOKENS, items="next tokens", task="text-generation")  # by the same head


class CausalLanguageModelling(MaskedLanguageModelling):
    """Predict the next token of each from those before it, with the weights and the head of masked language modelling.

    In a phase of a recipe for `mlm` this is `masking: {next_token: true}`.
    """

    name = "clm"
    terms = (NEXT_TOKENS,)
    token_term = NEXT_TOKENS
    default_masking = {"next_token": True}
    parallel_class = None
    fills_masks = False
    is_of_heads = False

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe what was predicted; metrics are with `is_causal=True` of the model."""
        return {"causal language modelling": "the next token of each, from those before it (`is_causal=True`)"}
