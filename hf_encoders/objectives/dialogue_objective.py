"""Masked language modelling of dialogues, and telling fake ones from real ones (ERNIE 1.0, section 3.3)."""

import dataclasses

from hf_encoders.objectives.dialogues import DataCollatorForDialogueLM, DialogueRule, Dialogues
from hf_encoders.objectives.mlm import MASKED_TOKENS
from hf_encoders.objectives.pairs import SENTENCE_PAIRS, SentencePairObjective


class DialogueLanguageModelling(SentencePairObjective):
    """Predict masked tokens of three turns, and whether one of the turns is from another dialogue (label 1).

    The label is that of the family's pair head.
    """

    name = "dialogue"
    title = "dialogue language modelling"
    label_1 = "of the examples (three turns; token types 0 query, 1 response) with a turn from another dialogue"
    single_label_1 = ""
    terms = (MASKED_TOKENS, dataclasses.replace(SENTENCE_PAIRS, items="dialogues"))
    dataset_class = Dialogues
    example_options = DialogueRule
    collator_class = DataCollatorForDialogueLM
    turns_column = "turns"
    least_documents = 2  # fakes take a turn of another dialogue of the same part
