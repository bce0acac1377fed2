"""Pre-train, fine-tune and publish BERT, RoBERTa and ALBERT encoders with the Hugging Face stack."""

import os
import sys


if os.path.basename(sys.argv[0]) in ("hf-encoders", "hf-encoders.exe", "-m"):
    # The command alone, before torch loads OpenMP: threads that wait for others are to sleep instead of spin. Beside
    # other work, spinning ones take the core from the one that they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from hf_encoders.models.configuration_albert import HfeAlbertConfig
from hf_encoders.models.configuration_bert import HfeBertConfig
from hf_encoders.models.configuration_roberta import HfeRobertaConfig
from hf_encoders.models.modeling_albert import (
    HfeAlbertForMaskedLM,
    HfeAlbertForMultipleChoice,
    HfeAlbertForPreTraining,
    HfeAlbertForQuestionAnswering,
    HfeAlbertForSequenceClassification,
    HfeAlbertForTokenClassification,
    HfeAlbertModel,
)
from hf_encoders.models.modeling_bert import (
    HfeBertForMaskedLM,
    HfeBertForMultipleChoice,
    HfeBertForNextSentencePrediction,
    HfeBertForPreTraining,
    HfeBertForQuestionAnswering,
    HfeBertForSequenceClassification,
    HfeBertForTokenClassification,
    HfeBertModel,
)
from hf_encoders.models.modeling_roberta import (
    HfeRobertaForMaskedLM,
    HfeRobertaForMultipleChoice,
    HfeRobertaForQuestionAnswering,
    HfeRobertaForSequenceClassification,
    HfeRobertaForTokenClassification,
    HfeRobertaModel,
)
from hf_encoders.registration import register, take_over_auto_classes


__version__ = "0.1.0"

register()

__all__ = [
    "HfeAlbertConfig",
    "HfeAlbertForMaskedLM",
    "HfeAlbertForMultipleChoice",
    "HfeAlbertForPreTraining",
    "HfeAlbertForQuestionAnswering",
    "HfeAlbertForSequenceClassification",
    "HfeAlbertForTokenClassification",
    "HfeAlbertModel",
    "HfeBertConfig",
    "HfeBertForMaskedLM",
    "HfeBertForMultipleChoice",
    "HfeBertForNextSentencePrediction",
    "HfeBertForPreTraining",
    "HfeBertForQuestionAnswering",
    "HfeBertForSequenceClassification",
    "HfeBertForTokenClassification",
    "HfeBertModel",
    "HfeRobertaConfig",
    "HfeRobertaForMaskedLM",
    "HfeRobertaForMultipleChoice",
    "HfeRobertaForQuestionAnswering",
    "HfeRobertaForSequenceClassification",
    "HfeRobertaForTokenClassification",
    "HfeRobertaModel",
    "__version__",
    "take_over_auto_classes",
]
