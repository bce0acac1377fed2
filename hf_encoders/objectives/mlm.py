"""Masked language modelling alone (RoBERTa, section 4.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_encoders.data.blocks import SentenceBlocks
from hf_encoders.data.collators import DataCollatorForMaskedLM
from hf_encoders.data.masking import Masking
from hf_encoders.objectives.objective import LossTerm, Objective


MASKED_TOKENS = LossTerm("mlm", "masked tokens")
SAME_RATE = 0.005  # difference of two mask rates that is rounding, and sampling of few examples


class MaskedLanguageModelling(Objective):
    """Predict masked tokens of blocks of sentences."""

    name = "mlm"
    terms = (MASKED_TOKENS,)
    auto_class = "AutoModelForMaskedLM"
    dataset_class = SentenceBlocks
    collator_class = DataCollatorForMaskedLM

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked."""
        masking = collator.masker.masking
        return {"masked language modelling": describe_masking(masking, mask_rates, logged.get("mask_rate"))}

    def results(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> list[dict[str, Any]]:
        """Perplexity beside that of the unigram distribution, and accuracies."""
        baseline = f"unigram {math.exp(unigram_cross_entropy):.1f}"
        value = round(metrics["eval_perplexity"], 2)
        perplexity = {"task": MASKED_TOKENS.task, "metric": "perplexity", "value": value, "baseline": baseline}
        return [perplexity, *super().results(metrics, unigram_cross_entropy)]

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """The unigram cross-entropy."""
        return {"mlm_loss": ("unigram cross-entropy", unigram_cross_entropy)}

    def summary(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> str:
        """As the base class, with the perplexity."""
        perplexity = f"{metrics['eval_perplexity']:.1f} (unigram {math.exp(unigram_cross_entropy):.1f})"
        tokens, separator, others = super().summary(metrics, unigram_cross_entropy).partition("; ")
        return f"{tokens}, perplexity {perplexity}{separator}{others}"


def describe_masking(masking: Masking, rates: Sequence[float], logged: float | None) -> str:
    """How tokens were masked, in words.

    Args:
        masking (`Masking`): The options.
        rates (`Sequence[float]`): First and last rate of a schedule; empty for that of `masking`.
        logged (`float`, *optional*): Share of the tokens that were predicted. A limit, and special tokens that count,
            make it differ from the option.

    >>> describe_masking(Masking(max_predictions=20, unit="ngram"), (), 0.043)  # doctest: +NORMALIZE_WHITESPACE
    '4.3 % of the tokens (15 %, but at most 20 per example), chosen by ngram, of those 80 % [MASK], 10 % random,
    10 % kept'
    """
    replaced, random = 100 * masking.mask_replace_probability, 100 * masking.random_replace_probability
    kept = 100 - replaced - random
    rates = rates or [masking.mask_probability]
    rate = f"{' to '.join(f'{100 * one:.0f}' for one in rates)} %"
    limit = "" if masking.max_predictions is None else f"at most {masking.max_predictions} per example"
    special = ", special ones included" if masking.mask_special_tokens else ""
    if logged is None or min(rates) - SAME_RATE <= logged <= max(rates) + SAME_RATE:
        share = f"{rate} of the tokens{special}{limit and f', {limit}'}"
    else:
        meant = f"{rate}, but {limit}" if limit else f"{rate} requested"
        share = f"{100 * logged:.1f} % of the tokens{special} ({meant})"
    units = "" if masking.unit == "token" else f", chosen by {masking.unit}"
    return f"{share}{units}, of those {replaced:.0f} % [MASK], {random:.0f} % random, {kept:.0f} % kept"
