"""Masked language modelling and next-sentence prediction (BERT, section 3.1)."""

from hf_encoders.objectives.pair_collators import DataCollatorForNextSentencePrediction
from hf_encoders.objectives.pairs import SentencePairObjective


class NextSentencePrediction(SentencePairObjective):
    """Classify whether segment B follows segment A (label 0) or is from another document (label 1)."""

    name = "nsp"
    title = "next-sentence prediction"
    label_1 = "of the second segments from another document"
    single_label_1 = ", including all after a chunk of one sentence"
    collator_class = DataCollatorForNextSentencePrediction
    least_documents = 2  # random second segments are from another document of the same part
