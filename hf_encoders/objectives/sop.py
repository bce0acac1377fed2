"""Masked language modelling and sentence-order prediction (ALBERT, section 3.1)."""

from hf_encoders.data.collators import DataCollatorForSentenceOrderPrediction
from hf_encoders.objectives.pairs import SentencePairObjective


class SentenceOrderPrediction(SentencePairObjective):
    """Classify whether two consecutive segments are in order (label 0) or swapped (label 1)."""

    name = "sop"
    title = "sentence-order prediction"
    collator_class = DataCollatorForSentenceOrderPrediction

    def describe_pairs(self, share: str, single_has_label_1: bool) -> str:
        """Which pairs had label 1, in words.

        >>> SentenceOrderPrediction().describe_pairs("55 %", True)
        '55 % of the pairs swapped, or a single sentence with one from elsewhere'
        """
        single = ", or a single sentence with one from elsewhere" if single_has_label_1 else ""
        return f"{share} of the pairs swapped{single}"
