"""The vocabulary's scores at some tokens of a batch, and nowhere else: V numbers a token are most of the work.

Models of this package compute nothing on padding either. transformers' own are stopped before their last projection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.loading import longest_input
from hf_encoders.models.encoder_heads import MaskedTokenPrediction


def masked_token_scores(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, is_wanted: torch.Tensor
) -> torch.Tensor:
    """Run an MLM model and project the wanted tokens to the vocabulary.

    Args:
        model (`PreTrainedModel`): with an MLM head, of this package or of transformers.
        input_ids (`torch.LongTensor` of shape `(B, T)`): token ids, masks in place.
        attention_mask (`torch.LongTensor` of shape `(B, T)`): 1 for real tokens, 0 for padding.
        is_wanted (`torch.BoolTensor` of shape `(B, T)`): True at P tokens, none of them padding.

    Returns:
        `torch.FloatTensor` of shape `(P, V)`, float32, in the order of the rows.

    Raises:
        ValueError: if the model has no MLM head.
    """
    if isinstance(model, MaskedTokenPrediction):
        outputs = model.encode(
            attention_mask, input_ids=input_ids, token_type_ids=None, position_ids=None, inputs_embeds=None
        )
        return model.mlm_head(outputs.last_hidden_state[outputs.tokens.flatten(is_wanted)]).float()
    decoder = model.get_output_embeddings()
    if decoder is None:
        raise ValueError(
            f"model is a {type(model).__name__}, which has no MLM head: load it with AutoModelForMaskedLM."
        )
    with _input_reduced_to(decoder, is_wanted):
        outputs = model(input_ids=input_ids, attention_mask=attention_mask)
    scores = outputs.logits if "logits" in outputs else outputs.prediction_logits
    # A model may call its decoder in a way the hook does not see (compiled graphs, flat tokens).
    return (scores if scores.dim() == 2 else scores[is_wanted.to(scores.device)]).float()


@contextmanager
def _input_reduced_to(decoder: nn.Module, is_wanted: torch.Tensor) -> Iterator[None]:
    """Let a decoder see `(P, D)` of the `(B, T, D)` it is called with."""

    def reduce(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden_states, *others = inputs
        if hidden_states.dim() == 3:
            hidden_states = hidden_states[is_wanted.to(hidden_states.device)]
        return (hidden_states, *others)

    handle = decoder.register_forward_pre_hook(reduce)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """`eval()` and no gradients, and the mode the model was in afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def check_length(name: str, num_tokens: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a text is longer than model and tokenizer take."""
    longest = longest_input(model.config, tokenizer)
    if num_tokens > longest:
        raise ValueError(
            f"{name} has {num_tokens} tokens with special tokens, the model takes {longest}: split it into sentences."
        )
