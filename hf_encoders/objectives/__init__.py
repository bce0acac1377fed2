"""Pre-training objectives, one per file; `register_objective` adds one from outside of the package."""

from hf_encoders.objectives.dialogue import DialogueLanguageModelling
from hf_encoders.objectives.distillation import Distillation
from hf_encoders.objectives.mlm import MaskedLanguageModelling
from hf_encoders.objectives.objective import (
    OBJECTIVES,
    LossTerm,
    Objective,
    get_objective,
    register_objective,
)
from hf_encoders.objectives.plm import PermutationLanguageModelling
from hf_encoders.objectives.rtd import ReplacedTokenDetection
from hf_encoders.objectives.sentence_pairs import NextSentencePrediction, SentenceOrderPrediction


register_objective(MaskedLanguageModelling())
register_objective(NextSentencePrediction())
register_objective(SentenceOrderPrediction())
register_objective(DialogueLanguageModelling())
register_objective(PermutationLanguageModelling())
register_objective(ReplacedTokenDetection())
register_objective(Distillation())

__all__ = ["OBJECTIVES", "LossTerm", "Objective", "get_objective", "register_objective"]
