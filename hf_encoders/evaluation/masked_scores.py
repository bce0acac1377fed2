"""The vocabulary's scores at some tokens of a batch, and nowhere else: V numbers a token are most of the work.

Models of this package compute nothing on padding either. transformers' own are stopped before their last projection.
"""

from collections import OrderedDict
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.loading import longest_input
from hf_encoders.models.encoder_heads import EncoderForMaskedLM


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
    if isinstance(model, EncoderForMaskedLM):
        outputs = model.encode(input_ids, attention_mask)
        return model.mlm_head(outputs.last_hidden_state[outputs.tokens.flatten(is_wanted)]).float()
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"model is a {type(model).__name__}, which has no MLM head: load it with AutoModelForMaskedLM."
        )

    def reduce(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Let the decoder see `(P, D)` of the `(B, T, D)` it is called with."""
        hidden_states, *others = inputs
        if hidden_states.dim() == 3:
            hidden_states = hidden_states[is_wanted.to(hidden_states.device)]
        return (hidden_states, *others)

    # The hook is the copy's: another thread that uses the model does not see it.
    model = copy_of_modules(model)
    model.get_output_embeddings().register_forward_pre_hook(reduce)
    outputs = model(input_ids=input_ids, attention_mask=attention_mask)
    scores = outputs.logits if "logits" in outputs else outputs.prediction_logits
    # A model may call its decoder in a way the hook does not see (compiled graphs, flat tokens).
    return (scores if scores.dim() == 2 else scores[is_wanted.to(scores.device)]).float()


def for_evaluation(model: PreTrainedModel) -> PreTrainedModel:
    """The model in `eval()`: a copy without weights of its own, so that the given one stays as it is.

    Threads may evaluate one model at the same time, and go on training it, each in its own mode.
    """
    return copy_of_modules(model).eval()


def copy_of_modules(model: nn.Module) -> nn.Module:
    """A copy of all modules of a model, with hooks and modes of their own, over the very same weights and buffers.

    Compiled modules come back as what was compiled.
    """
    copies: dict[nn.Module, nn.Module] = {}

    def copied(module: nn.Module | None) -> nn.Module | None:
        if module is None or module in copies:
            return copies.get(module)
        if "_orig_mod" in module._modules:
            return copied(module._orig_mod)
        copies[module] = copy = type(module).__new__(type(module))
        for name, value in vars(module).items():
            # Hooks: only the copy's own may be added to it.
            copy.__dict__[name] = value.copy() if isinstance(value, OrderedDict) else _rebound(value, module, copy)
        copy.__dict__["_modules"] = {name: copied(child) for name, child in module._modules.items()}
        copy.__dict__.pop("_compiled_call_impl", None)
        return copy

    return copied(model)


def _rebound(value: Any, module: nn.Module, copy: nn.Module) -> Any:
    """What a module keeps of itself, of its copy: accelerate and torch.compile put a `forward` there."""
    value = getattr(value, "_torchdynamo_orig_callable", value)
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, copy)
    if isinstance(value, partial):
        return partial(value.func, *(copy if one is module else one for one in value.args), **value.keywords)
    return value


def check_length(name: str, num_tokens: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a text is longer than model and tokenizer take."""
    longest = longest_input(model.config, tokenizer)
    if num_tokens > longest:
        raise ValueError(
            f"{name} has {num_tokens} tokens with special tokens, the model takes {longest}: split it into sentences."
        )
