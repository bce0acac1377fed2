"""An objective from outside of the package, with the collator it needs."""

from hf_encoders import DataCollatorForMaskedLM, LossTerm, Objective, SentenceBlocks, register_objective
from hf_encoders.registration import add_family
from tests.objectives.configuration_toy import ToyConfig


class OddCollator(DataCollatorForMaskedLM):
    """Masked tokens, and for every third example no label beside them."""

    label_arguments = {"odd": "odd_label"}

    def prepare(self, example):
        example.labels["odd"] = -100 if example.key.example % 3 == 0 else int(example.segments[0][0]) % 2
        return example


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
