"""Pre-train, fine-tune and publish BERT, RoBERTa and ALBERT encoders with the Hugging Face stack."""

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
