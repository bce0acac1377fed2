"""Vocabulary scores at the wanted tokens of a batch only: the V scores per token are most of the work.

Models of this package do not compute padding either. transformers' own are reduced before their last projection.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.loading import longest_input
from hf_encoders.models.encoder_arguments import on_host
from hf_encoders.models.encoder_heads import EncoderForMaskedLM
from hf_encoders.models.encoder_tokens import places_of


_LOCK = threading.RLock()


def masked_token_scores(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, is_wanted: torch.Tensor
) -> torch.Tensor:
    """Run an MLM model, of this package or of transformers, and project the wanted tokens to the vocabulary.

    Args:
        input_ids, attention_mask (`torch.LongTensor` of shape `(B, T)`): As for the model.
        is_wanted (`torch.BoolTensor` of shape `(B, T)`): True at P tokens, none of them padding.

    Returns:
        `torch.FloatTensor` of shape `(P, V)`, float32, in the order of the rows.
    """
    if isinstance(model, EncoderForMaskedLM):
        outputs = model.encode(input_ids, attention_mask)
        wanted = places_of(outputs.tokens.flatten(is_wanted), on_host(is_wanted))
        return model.mlm_head(outputs.last_hidden_state.index_select(0, wanted)).float()
    if model.get_output_embeddings() is None:
        raise ValueError(f"a {type(model).__name__} has no MLM head: load it with AutoModelForMaskedLM.")

    def reduce(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Reduce the decoder's input from `(B, T, D)` to `(P, D)`."""
        hidden_states, *others = inputs
        if hidden_states.dim() == 3:
            hidden_states = hidden_states[is_wanted.to(hidden_states.device)]
        return (hidden_states, *others)

    with _LOCK, model.get_output_embeddings().register_forward_pre_hook(reduce):
        outputs = model(input_ids=input_ids, attention_mask=attention_mask)
    scores = outputs.logits if "logits" in outputs else outputs.prediction_logits
    # A model may call its decoder in a way the hook does not see.
    return (scores if scores.dim() == 2 else scores[is_wanted.to(scores.device)]).float()


@contextmanager
def evaluating(model: PreTrainedModel, stance: str = "force_eager") -> Iterator[None]:
    """Put a model into `eval()` without gradients, and restore its modes afterwards.

    Threads that share a model take turns. Compiled graphs run with `stance="default"` only: one compiled with the hook
    of `masked_token_scores` would keep it.

    Raises:
        ValueError: For a model with PEFT's prompts: what is read from its states would be of other tokens.
    """
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise ValueError(
            f"model has prompts ({type(adapter).__name__}), whose virtual tokens are not the text's: disable the "
            "adapter, or use one of the layers, such as LoRA."
        )
    with _LOCK, torch.no_grad(), torch.compiler.set_stance(stance):
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def check_length(name: str, num_tokens: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a text is longer than model and tokenizer take."""
    longest = longest_input(model.config, tokenizer)
    if num_tokens > longest:
        raise ValueError(f"{name} has {num_tokens} tokens, the model takes {longest}: split it into sentences.")
