"""Output classes, every field with its shape. Fields of transformers' own outputs come first and in its order."""

from dataclasses import MISSING, dataclass
from typing import Any

import torch
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import ModelOutput

from .encoder_losses import ObjectiveSums
from .encoder_tokens import FlatTokens


@dataclass
class FlatEncoderOutput(ModelOutput):
    """What heads read from the encoder, without padding.

    Args:
        last_hidden_state (`torch.Tensor` of shape `(N, D)`): flat tokens.
        pooler_output (`torch.Tensor` of shape `(S, D)`, *optional*): one row per sequence.
        hidden_states, attentions: as in transformers, `(B, T, D)` and `(S, A, L, L)` each.
        tokens (`FlatTokens`): the layout, which maps back to the border.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    tokens: FlatTokens | None = None


class LogitsOnRequest:
    """Mixed into outputs whose scores are not computed while training: says so where these are read as in a dict.

    `outputs.logits` and `outputs.get("logits", None)` are None then: copying, pickling and DDP read every attribute.
    """

    def __getitem__(self, key: Any) -> Any:
        if key in ("logits", "prediction_logits") and key not in self:
            raise KeyError(f"{key} are not computed while training with labels: pass return_logits=True to the model.")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = MISSING) -> Any:
        """As in a dict, but scores that were not computed are a KeyError unless a default is given, also None."""
        if default is MISSING and key in ("logits", "prediction_logits"):
            return self[key]
        return super().get(key, None if default is MISSING else default)


@dataclass
class HfeMaskedLMOutput(LogitsOnRequest, MaskedLMOutput):
    """Output of the MLM heads.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): summed negative log-likelihood of the predicted tokens over
            their number in the whole batch; when `labels` are given.
        logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): scores, zero at padding. None while training with
            labels, where only predicted tokens are projected; `return_logits=True` asks for them.
        hidden_states, attentions: as in transformers.
        mlm (`ObjectiveSums`, *optional*): sums over this call's predicted tokens; `nll` with gradient.
    """

    mlm: ObjectiveSums | None = None


@dataclass
class HfeForPreTrainingOutput(LogitsOnRequest, ModelOutput):
    """Output of BERT's pre-training head.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): sum of the losses whose labels were given.
        prediction_logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): as `logits` of `HfeMaskedLMOutput`.
        seq_relationship_logits (`torch.Tensor` of shape `(S, 2)`): scores of the two classes of the pair label.
        hidden_states, attentions: as in transformers.
        mlm_loss, pair_loss (`torch.Tensor` of shape `()`, *optional*): the terms of `loss`, without gradient.
        mlm, pair (`ObjectiveSums`, *optional*): sums over this call's predicted tokens and pairs; `nll` with
            gradient.
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    pair_loss: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    pair: ObjectiveSums | None = None
