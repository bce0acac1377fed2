"""Masked language modelling alone (RoBERTa, section 4.1)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_encoders.objectives.blocks import SentenceBlocks
from hf_encoders.objectives.collators import DataCollatorForMaskedLM
from hf_encoders.objectives.masking import describe_masking
from hf_encoders.objectives.objective import LossTerm, Objective
from hf_encoders.objectives.parallel import ParallelPairs


MASKED_TOKENS = LossTerm("mlm", "masked tokens")


class MaskedLanguageModelling(Objective):
    """Predict masked tokens of blocks of sentences; of parallel text, also from the translation (XLM, section 3.4)."""

    name = "mlm"
    terms = (MASKED_TOKENS,)
    token_term = MASKED_TOKENS  # whose baseline is the unigram distribution
    auto_class = "AutoModelForMaskedLM"
    dataset_class = SentenceBlocks
    collator_class = DataCollatorForMaskedLM
    parallel_class = ParallelPairs

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked."""
        own = {i + 1: masker for i, masker in enumerate(collator.phase_maskers) if masker is not collator.masker}
        # The share that was logged is over all phases, so it is that of no masking where some have their own.
        described = describe_masking(collator.masker.masking, mask_rates, None if own else logged.get("mask_rate"))
        of_phases = [f"phase {i}: {describe_masking(masker.masking, mask_rates, None)}" for i, masker in own.items()]
        is_of_evaluation_only = len(own) == len(collator.phase_maskers) > 0
        described = [*of_phases, f"evaluation: {described}"] if is_of_evaluation_only else [described, *of_phases]
        return {"masked language modelling": "; ".join(described)}

    def describe_parallel(self, sources: Sequence[str]) -> dict[str, str]:
        """Translation language modelling."""
        words = f"the same in pairs of {', '.join(sources)}: both sides masked, positions begin again at the second"
        return {"translation language modelling": words}

    def results(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> list[dict[str, Any]]:
        """Perplexity beside that of the unigram distribution, and accuracies."""
        baseline = f"unigram {math.exp(unigram_cross_entropy):.1f}"
        value = round(metrics["eval_perplexity"], 2)
        perplexity = {"task": self.token_term.task, "metric": "perplexity", "value": value, "baseline": baseline}
        return [perplexity, *super().results(metrics, unigram_cross_entropy)]

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """The unigram cross-entropy."""
        return {f"{self.token_term.name}_loss": ("unigram cross-entropy", unigram_cross_entropy)}

    def summary(self, metrics: Mapping[str, float], unigram_cross_entropy: float) -> str:
        """As the base class, with the perplexity."""
        perplexity = f"{metrics['eval_perplexity']:.1f} (unigram {math.exp(unigram_cross_entropy):.1f})"
        tokens, separator, others = super().summary(metrics, unigram_cross_entropy).partition("; ")
        return f"{tokens}, perplexity {perplexity}{separator}{others}"
