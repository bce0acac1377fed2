"""What the objectives of sentence pairs share: chunks of documents, a pair label beside the masked tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.objectives.chunk_arrays import DocumentChunks
from hf_encoders.objectives.chunk_examples import ChunkRule
from hf_encoders.objectives.mlm import MASKED_TOKENS, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.pair_collators import SentencePairCollator


SENTENCE_PAIRS = LossTerm(
    "pair", "sentence pairs", task="text-classification", is_per_example=True, baseline="chance 0.5"
)
SAME_HALF = 0.02  # difference from one half that is rounding, and sampling of few examples


class SentencePairObjective(MaskedLanguageModelling):
    """Masked tokens and one binary label per sentence pair.

    Attributes:
        title (`str`): The pair task, for the card.
        label_1 (`str`): Which pairs have label 1, for the card, after the share that has it.
        single_label_1 (`str`): Added if chunks of one sentence get a random second segment and label 1.
        collator_class (`type`): Makes the pairs.
    """

    title: ClassVar[str]
    label_1: ClassVar[str]
    single_label_1: ClassVar[str]
    terms = (MASKED_TOKENS, SENTENCE_PAIRS)
    auto_class = "AutoModelForPreTraining"
    dataset_class = DocumentChunks
    parallel_class = None
    example_options = ChunkRule
    collator_class: ClassVar[type[SentencePairCollator]]

    def make_collator(
        self, tokenizer: PreTrainedTokenizerBase, model_class: type[PreTrainedModel], **options: Any
    ) -> SentencePairCollator:
        """The data collator, with the model's name for the pair label."""
        label_name = model_class.loss_terms[SENTENCE_PAIRS.name]
        return self.collator_class(tokenizer, label_name=label_name, **options)

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """How tokens were masked, and which pairs had label 1, or that there were none."""
        share = logged.get("pair_label_1_share", 0.5)
        words = "half" if abs(share - 0.5) <= SAME_HALF else f"{100 * share:.0f} %"
        pairs = f"{words} {self.label_1}{self.single_label_1 if examples.get('original_code') else ''} (label 1)"
        if logged.get("pair_share") == 0:
            pairs = "not trained, because no example had two segments"
        return {**super().describe(collator, mask_rates, examples, logged), self.title: pairs}

    def loss_baselines(self, unigram_cross_entropy: float) -> dict[str, tuple[str, float]]:
        """The unigram cross-entropy, and that of a coin toss for pairs."""
        return {**super().loss_baselines(unigram_cross_entropy), "pair_loss": ("chance", math.log(2))}
