"""BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805).

The reference family: the shared blocks as they are, under transformers' parameter names. Leaves out: decoder use.
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_bert import HfeBertConfig
from .encoder_blocks import Encoder, EncoderEmbeddings, EncoderModel, EncoderPreTrainedModel, Pooler, activation
from .encoder_heads import HeadModel, MaskedLanguageModel, NextSentenceModel, PreTrainingModel
from .encoder_outputs import HfeForPreTrainingOutput
from .encoder_tasks import ChoiceModel, QuestionAnswerer, SequenceClassifier, TokenClassifier


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


class BertPredictions(nn.Module):
    """The MLM head; `decoder.weight` is the word embedding and `decoder.bias` is `bias`."""

    def __init__(self, config: HfeBertConfig):
        super().__init__()
        self.transform = BertPredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(P, D)` -> `(P, V)`."""
        return self.decoder(self.transform(hidden_states))


class BertHeads(nn.Module):
    """Holds the pre-training heads under transformers' names."""

    def __init__(self, config: HfeBertConfig, tokens: bool, pairs: bool):
        super().__init__()
        if tokens:
            self.predictions = BertPredictions(config)
        if pairs:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


class HfeBertPreTrainedModel(EncoderPreTrainedModel):
    """Names and initialisation of the BERT models."""

    config_class = HfeBertConfig
    base_model_prefix = "bert"
    pretraining_heads = (
        r"(bert\.)?pooler\.dense\.(weight|bias)",
        r"cls\.predictions\.(bias|(decoder|transform\.(dense|LayerNorm))\.(weight|bias))",
        r"cls\.seq_relationship\.(weight|bias)",
    )
    _no_split_modules = ["EncoderEmbeddings", "EncoderLayer"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, BertPredictions):
            init.zeros_(module.bias)


class HfeBertModel(HfeBertPreTrainedModel, EncoderModel):
    """BERT without a head."""

    def __init__(self, config: HfeBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = EncoderEmbeddings(config, config.hidden_size)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()


class HfeBertHeadModel(HfeBertPreTrainedModel, HeadModel):
    """A BERT with something on top."""

    encoder_class = HfeBertModel
    mlm_head_name = "cls.predictions"

    def score_pairs(self, pooled: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, 2)`."""
        return self.cls.seq_relationship(pooled)


TIED_DECODER = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


class HfeBertForPreTraining(HfeBertHeadModel, PreTrainingModel):
    """BERT with the heads it is pre-trained with: masked tokens and next sentence."""

    _tied_weights_keys = TIED_DECODER
    loss_terms = {"mlm": "labels", "pair": "next_sentence_label"}
    pair_label_name = "next_sentence_label"

    def __init__(self, config: HfeBertConfig):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=True)
        self.cls = BertHeads(config, tokens=True, pairs=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> HfeForPreTrainingOutput:
        r"""Predict masked tokens and whether segment B follows segment A.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: as in `HfeBertModel`.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): ids to predict, -100 elsewhere.
            next_sentence_label (`torch.LongTensor` of shape `(B,)`, *optional*): 0 = B follows A, 1 = B is random.
            num_items_in_batch (*optional*): predicted tokens in the whole batch, over accumulation steps and
                processes. `PreTrainingTrainer` also counts the pairs, and divides the sums in `mlm` and `pair` itself.
            return_logits (`bool`, *optional*): whether every token is projected to the vocabulary; None means yes,
                unless the model is training and has labels.
            kwargs: passed to the base model.
        """
        return self.pretrain(
            attention_mask,
            labels,
            next_sentence_label,
            num_items_in_batch,
            return_logits,
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


class HfeBertForMaskedLM(HfeBertHeadModel, MaskedLanguageModel):
    """BERT with the MLM head alone."""

    _tied_weights_keys = TIED_DECODER

    def __init__(self, config: HfeBertConfig):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=False)
        self.cls = BertHeads(config, tokens=True, pairs=False)
        self.post_init()


class HfeBertForNextSentencePrediction(HfeBertHeadModel, NextSentenceModel):
    """BERT with the next-sentence head alone."""

    def __init__(self, config: HfeBertConfig):
        super().__init__(config)
        self.add_encoder(add_pooling_layer=True)
        self.cls = BertHeads(config, tokens=False, pairs=True)
        self.post_init()


class HfeBertForSequenceClassification(HfeBertHeadModel, SequenceClassifier):
    """BERT for labels or numbers of whole sequences."""


class HfeBertForTokenClassification(HfeBertHeadModel, TokenClassifier):
    """BERT for labels of tokens."""


class HfeBertForQuestionAnswering(HfeBertHeadModel, QuestionAnswerer):
    """BERT for answers in a text."""


class HfeBertForMultipleChoice(HfeBertHeadModel, ChoiceModel):
    """BERT for the best of several continuations."""
