"""BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805): the shared blocks, under transformers' names."""

import torch
from torch import nn
from transformers.processing_utils import Unpack
from transformers.utils.generic import can_return_tuple

from .configuration_bert import HfeBertConfig
from .encoder_blocks import Encoder, EncoderEmbeddings, Pooler, PredictionHead, activation
from .encoder_heads import (
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderForNextSentencePrediction,
    EncoderForPreTraining,
    EncoderForQuestionAnswering,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderInputs,
    HfeForPreTrainingOutput,
)
from .encoder_models import EncoderModel, EncoderPreTrainedModel


class BertPredictionTransform(nn.Module):
    """Dense, activation and LayerNorm in front of the vocabulary projection."""

    def __init__(self, config: HfeBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, D)`."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class BertPredictions(PredictionHead):
    """The MLM head."""

    def __init__(self, config: HfeBertConfig):
        super().__init__()
        self.transform = BertPredictionTransform(config)
        self._add_decoder(config, config.hidden_size)


class BertHeads(nn.Module):
    """Holds the pre-training heads under transformers' names."""

    def __init__(self, config: HfeBertConfig, tokens: bool, pairs: bool):
        super().__init__()
        if tokens:
            self.predictions = BertPredictions(config)
        if pairs:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


class HfeBertPreTrainedModel(EncoderPreTrainedModel):
    """Names of the BERT models."""

    config_class = HfeBertConfig
    base_model_prefix = "bert"
    mlm_head_name = "cls.predictions"
    pair_head_name = "cls.seq_relationship"
    pretraining_heads = (
        r"(bert\.)?pooler\.dense\.(weight|bias)",
        r"cls\.predictions\.(bias|(decoder|transform\.(dense|LayerNorm))\.(weight|bias))",
        r"cls\.seq_relationship\.(weight|bias)",
    )
    _no_split_modules = ["EncoderEmbeddings", "EncoderLayer"]

    def _add_encoder(self, add_pooling_layer: bool) -> None:
        self.bert = HfeBertModel(self.config, add_pooling_layer)


class HfeBertModel(EncoderModel, HfeBertPreTrainedModel):
    """BERT without a head."""

    def __init__(self, config: HfeBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = EncoderEmbeddings(config, config.hidden_size)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()


TIED_DECODER = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


class HfeBertForPreTraining(EncoderForPreTraining, HfeBertPreTrainedModel):
    """BERT with the heads it is pre-trained with: masked tokens and next sentence."""

    _tied_weights_keys = TIED_DECODER
    loss_terms = {"mlm": "labels", "pair": "next_sentence_label"}

    def _add_head(self) -> None:
        self.cls = BertHeads(self.config, tokens=True, pairs=True)

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[EncoderInputs],
    ) -> HfeForPreTrainingOutput:
        r"""Predict masked tokens and whether segment B follows segment A.

        Args:
            labels, num_items_in_batch, return_logits (*optional*): as in `EncoderForMaskedLM`.
            next_sentence_label (`torch.LongTensor` of shape `(B,)`, *optional*): 0 = B follows A, 1 = B is random.
            kwargs: as in `EncoderForMaskedLM`.
        """
        return self.pretrain(labels, next_sentence_label, num_items_in_batch, return_logits, **kwargs)


class HfeBertForMaskedLM(EncoderForMaskedLM, HfeBertPreTrainedModel):
    """BERT with the MLM head alone."""

    _tied_weights_keys = TIED_DECODER

    def _add_head(self) -> None:
        self.cls = BertHeads(self.config, tokens=True, pairs=False)


class HfeBertForNextSentencePrediction(EncoderForNextSentencePrediction, HfeBertPreTrainedModel):
    """BERT with the next-sentence head alone."""

    def _add_head(self) -> None:
        self.cls = BertHeads(self.config, tokens=False, pairs=True)


class HfeBertForSequenceClassification(EncoderForSequenceClassification, HfeBertPreTrainedModel):
    """BERT for labels or numbers of whole sequences."""


class HfeBertForTokenClassification(EncoderForTokenClassification, HfeBertPreTrainedModel):
    """BERT for labels of tokens."""


class HfeBertForQuestionAnswering(EncoderForQuestionAnswering, HfeBertPreTrainedModel):
    """BERT for answers in a text."""


class HfeBertForMultipleChoice(EncoderForMultipleChoice, HfeBertPreTrainedModel):
    """BERT for the best of several continuations."""
