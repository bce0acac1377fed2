"""Permutation language modelling (XLNet, https://arxiv.org/abs/1906.08237, section 2.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_encoders.objectives.chunk_examples import ChunkRule
from hf_encoders.objectives.mlm import MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.permutation import Permutation
from hf_encoders.objectives.permutation_collator import DataCollatorForPermutationLM, ReusedChunks


PREDICTED_TOKENS = LossTerm("plm", "predicted tokens", task="text-generation")


class PermutationLanguageModelling(MaskedLanguageModelling):
    """Predict tokens one after the other in a random order, each from those before it and all that are not predicted.

    Its options under `masking` are those of `Permutation`.
    """

    name = "plm"
    terms = (PREDICTED_TOKENS,)
    token_term = PREDICTED_TOKENS
    auto_class = "AutoModelForPreTraining"
    dataset_class = ReusedChunks
    collator_class = DataCollatorForPermutationLM
    parallel_class = None
    example_options = ChunkRule
    masking_options = Permutation
    fills_masks = False
    is_in_transformers = False  # its collator is another procedure
    least_documents = 2  # random second segments are from another document of the same part

    def held_out_options(self, examples: Mapping[str, Any]) -> dict[str, Any]:
        """The text before a chunk."""
        return {name: value for name, value in examples.items() if name == "reuse"}

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Which tokens were predicted, and in which order."""
        options = collator.permuter.options
        share = f"{logged['mask_rate']:.1%} of the tokens" if "mask_rate" in logged else "tokens"
        fill = ", filled up with single tokens" if options.fill_up else ""
        words = (
            f"{share} in a random order, in spans of up to {options.max_span}{fill}; pairs of segments, half random"
        )
        reused = "; each after the text before it, in an order of its own" if examples.get("reuse") else ""
        return {"permutation language modelling": f"{words}{reused}; {options.reversed_share:.0%} read in reverse"}
