"""Masked language modelling and sentence-order prediction (ALBERT, section 3.1)."""

from hf_encoders.objectives.pair_collators import DataCollatorForSentenceOrderPrediction
from hf_encoders.objectives.pairs import SentencePairObjective


class SentenceOrderPrediction(SentencePairObjective):
    """Classify whether two consecutive segments are in order (label 0) or swapped (label 1)."""

    name = "sop"
    title = "sentence-order prediction"
    label_1 = "of the pairs swapped"
    single_label_1 = ", or a single sentence with one from elsewhere"
    collator_class = DataCollatorForSentenceOrderPrediction
