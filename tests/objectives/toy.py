"""An objective from outside of the package, with the collator it needs."""

import numpy as np
import torch

from hf_encoders import DataCollatorForMaskedLM, LossTerm, Objective, SentenceBlocks, register_objective
from hf_encoders.registration import add_family
from tests.objectives.configuration_toy import ToyConfig


class OddCollator(DataCollatorForMaskedLM):
    """Masked tokens, and for every third example no label beside them."""

    def make_rows(self, features):
        rows, labels = super().make_rows(features)
        first = np.cumsum(rows.lengths) - rows.lengths + 1
        odd = np.where(rows.keys % 3 == 0, -100, rows.ids[first] % 2)
        return rows, {**labels, "odd_label": torch.from_numpy(odd.astype(np.int64))}


class OddFirstToken(Objective):
    name = "odd"
    terms = (
        LossTerm("mlm", "masked tokens", weight=0.5),
        LossTerm("odd", "first tokens", weight=3.0, task="text-classification", is_per_example=True),
    )
    dataset_class = SentenceBlocks
    collator_class = OddCollator


def add_toys() -> None:
    """What a user's script does before it calls the command."""
    add_family(ToyConfig)
    register_objective(OddFirstToken())
