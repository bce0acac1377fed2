"""XLM-R (Conneau et al. 2019, https://arxiv.org/abs/1911.02116): RoBERTa's classes under the names of XLM-R."""

from .configuration_xlm_roberta import HfeXLMRobertaConfig
from .modeling_roberta import (
    HfeRobertaForMaskedLM,
    HfeRobertaForMultipleChoice,
    HfeRobertaForQuestionAnswering,
    HfeRobertaForSequenceClassification,
    HfeRobertaForTokenClassification,
    HfeRobertaModel,
    HfeRobertaPreTrainedModel,
)


class HfeXLMRobertaPreTrainedModel(HfeRobertaPreTrainedModel):
    """The configuration and the base model of the XLM-R models; parameter names are RoBERTa's, as in transformers."""

    config_class = HfeXLMRobertaConfig

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.roberta = HfeXLMRobertaModel(self.config, add_pooling_layer)


class HfeXLMRobertaModel(HfeXLMRobertaPreTrainedModel, HfeRobertaModel):
    """XLM-R without a head."""


class HfeXLMRobertaForMaskedLM(HfeXLMRobertaPreTrainedModel, HfeRobertaForMaskedLM):
    """XLM-R with the MLM head, its only pre-training head."""


class HfeXLMRobertaForSequenceClassification(HfeXLMRobertaPreTrainedModel, HfeRobertaForSequenceClassification):
    """XLM-R for labels or numbers of whole sequences."""


class HfeXLMRobertaForTokenClassification(HfeXLMRobertaPreTrainedModel, HfeRobertaForTokenClassification):
    """XLM-R for labels of tokens."""


class HfeXLMRobertaForQuestionAnswering(HfeXLMRobertaPreTrainedModel, HfeRobertaForQuestionAnswering):
    """XLM-R for answers in a text."""


class HfeXLMRobertaForMultipleChoice(HfeXLMRobertaPreTrainedModel, HfeRobertaForMultipleChoice):
    """XLM-R for the best of several continuations."""
