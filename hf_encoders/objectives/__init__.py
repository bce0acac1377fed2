"""Pre-training objectives, one per file; `register_objective` adds one from outside of the package."""

from hf_encoders.objectives.dialogue_objective import DialogueLanguageModelling
from hf_encoders.objectives.distillation import Distillation
from hf_encoders.objectives.mlm import MaskedLanguageModelling
from hf_encoders.objectives.nsp import NextSentencePrediction
from hf_encoders.objectives.objective import (
    OBJECTIVES,
    LossTerm,
    Objective,
    get_objective,
    register_objective,
)
from hf_encoders.objectives.plm_objective import PermutationLanguageModelling
from hf_encoders.objectives.rtd import ReplacedTokenDetection
from hf_encoders.objectives.sop import SentenceOrderPrediction


register_objective(MaskedLanguageModelling())
register_objective(NextSentencePrediction())
register_objective(SentenceOrderPrediction())
register_objective(DialogueLanguageModelling())
register_objective(PermutationLanguageModelling())
register_objective(ReplacedTokenDetection())
register_objective(Distillation())

__all__ = ["OBJECTIVES", "LossTerm", "Objective", "get_objective", "register_objective"]
