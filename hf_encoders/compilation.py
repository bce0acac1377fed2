"""Compile the layers of models, without padding, and not what is around them.

How many tokens are real decides all shapes once padding is removed, so a graph of a whole model would compute it.
Instead a model that is being compiled (`torch.compile(model)`, `model.compile()`, Trainer's `torch_compile`) runs
eagerly and hands its layers to the compiler: one graph for all layers of a kind and any number of tokens and
sequences, in which attention is one operator that reads the bounds of the sequences. A checkpoint's own code
(`trust_remote_code`) does without this file: there the whole model is one graph, with padding.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._dynamo.decorators import skip
from torch._dynamo.eval_frame import set_eval_frame, skip_code
from transformers import PreTrainedModel

from hf_encoders.cuda_kernels import bounds_of, flash_attention, one_copy_of_each_parameter, padded_heads
from hf_encoders.models import encoder_blocks
from hf_encoders.models.encoder_attention import EncoderSelfAttention
from hf_encoders.models.encoder_kernels import (
    attend_to_sequences,
    gradients_of_attention,
    matmul_dtype,
    views_of_sequences,
)
from hf_encoders.models.encoder_tokens import FlatTokens


REASON = "the tokens of a batch are counted outside of a graph: compile the model itself, or pass keep_padding=True"
_compiler: ContextVar[Callable | None] = ContextVar("compiler", default=None)


def compile_layers_only(model_class: type[PreTrainedModel]) -> None:
    """Let a compiler that is given a model of the class compile its layers; called when the class is registered."""
    if not hasattr(model_class.forward, "around_layers"):
        model_class.forward = around_layers(model_class.forward)


def around_layers(forward: Callable) -> Callable:
    """Return a model's `forward` that is no part of a graph unless padding is asked for, or the layers need it.

    They do with relative positions, another kernel than `sdpa`, and attention that is not `EncoderSelfAttention`.
    Packed batches of such models run eagerly: a whole graph has the lengths of its sequences as constants.
    """

    @wraps(forward)
    def chosen(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        compiles_layers = has_operator(self)
        is_whole = not compiles_layers and kwargs.get("cu_seq_lens_q") is None
        if is_whole or kwargs.get("keep_padding") or torch.compiler.is_exporting():
            return forward(self, *args, **kwargs)
        return _run_eagerly(forward, compiles_layers, self, args, kwargs)

    skip_code(chosen.__code__)  # as the first frame it is no graph, and needs no guards
    chosen.around_layers = True
    return chosen


def has_operator(model: PreTrainedModel) -> bool:
    """Return whether layers can be compiled around the model's attention; if not, the model is compiled whole."""
    config = model.config
    is_plain = config.has_position_table and config._attn_implementation == "sdpa"
    return is_plain and model._can_record_outputs.get("attentions") is EncoderSelfAttention


@torch.compiler.disable(recursive=False, reason=REASON)
@skip
def _run_eagerly(
    forward: Callable, compiles_layers: bool, model: PreTrainedModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    compiler = set_eval_frame(None)
    if compiler is None:
        with one_copy_of_each_parameter(model):
            return forward(model, *args, **kwargs)
    token = _compiler.set(compiler if compiles_layers else None)
    try:
        return forward(model, *args, **kwargs)
    finally:
        _compiler.reset(token)
        set_eval_frame(compiler)


def run_layer(
    layer: Callable, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool
) -> torch.Tensor:
    """Run a layer, `(N, D)` -> `(N, D)`, compiled if the model is.

    Layers run eagerly for attention weights, causal attention, padding among the tokens, and in float32 on CUDA, where
    torch 2.13 cannot compile its kernel for sequences of any length.
    """
    compiler = None if torch.compiler.is_compiling() else _compiler.get()
    is_eager = compiler is None or output_attentions or tokens.is_causal or tokens.attention_mask is not None
    if is_eager or not _has_kernel(hidden_states):
        return layer(hidden_states, tokens, output_attentions)
    if "compiled" not in tokens.derived:
        tokens.derived["compiled"] = CompiledTokens.of(tokens, hidden_states.device)
    # `maybe`: a batch of one token is a graph of its own.
    torch._dynamo.maybe_mark_dynamic(hidden_states, 0)
    set_eval_frame(compiler)
    try:
        return layer(hidden_states, tokens.derived["compiled"], False)
    finally:
        set_eval_frame(None)


encoder_blocks.run_layer = run_layer


def _has_kernel(hidden_states: torch.Tensor) -> bool:
    is_16_bit = torch.finfo(matmul_dtype(hidden_states)).bits == 16
    return hidden_states.device.type == "cpu" or (hidden_states.device.type == "cuda" and is_16_bit)


# --- attention in a graph ---


@dataclass
class CompiledTokens(FlatTokens):
    """Hold the parts of a layout that a compiled layer reads: `cu_seq_lens`, and on CUDA `row_length`, the longest.

    Other fields would be constants of its graph.
    """

    @classmethod
    def of(cls, tokens: FlatTokens, device: torch.device) -> "CompiledTokens":
        """Return the parts of a full, ragged or packed layout."""
        bounds, _ = bounds_of(tokens, device)
        torch._dynamo.maybe_mark_dynamic(bounds, 0)
        return cls(tokens.batch_size, tokens.longest, cu_seq_lens=bounds)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float, dropout: float
    ) -> torch.Tensor:
        """Attend within sequences, `(rows, A, H)` each -> `(rows, A, H)`, zero from the end of the last one on."""
        if query.device.type == "cpu":
            seed = torch.randint(2**32, ()) if dropout > 0 else self.cu_seq_lens[0]
            return _attend(query, key, value, self.cu_seq_lens, seed, scaling, dropout)
        heads = padded_heads((query, key, value))
        return flash_attention(heads, self.cu_seq_lens, self.row_length, scaling, dropout)[..., : query.shape[-1]]


INPUTS = "Tensor query, Tensor key, Tensor value, Tensor bounds, Tensor seed, float scaling, float dropout"


@torch.library.custom_op("hf_encoders::attend", mutates_args=(), schema=f"({INPUTS}) -> Tensor")
@torch.autocast("cpu", enabled=False)
def _attend(*inputs: Any) -> torch.Tensor:
    *heads, bounds, seed, scaling, dropout = inputs
    heads = tuple(heads)
    lengths, context = bounds.diff().tolist(), torch.zeros_like(heads[0])
    if dropout > 0:
        attend_to_sequences(context, heads, lengths, seed, scaling, dropout)
        return context
    for query, key, value, its_context in zip(*views_of_sequences(lengths, *heads, context), strict=True):
        its_heads = (x.unsqueeze(0) for x in (query, key, value))
        its_context.copy_(nn.functional.scaled_dot_product_attention(*its_heads, scale=scaling).squeeze(0))
    return context


OUTPUTS = "(Tensor, Tensor, Tensor)"


@torch.library.custom_op(
    "hf_encoders::attend_backward", mutates_args=(), schema=f"(Tensor gradient, {INPUTS}) -> {OUTPUTS}"
)
@torch.autocast("cpu", enabled=False)
def _attend_backward(*inputs: Any) -> tuple[torch.Tensor, ...]:
    gradient, *heads, bounds, seed, scaling, dropout = inputs
    return gradients_of_attention(gradient, heads, bounds.diff().tolist(), seed, scaling, dropout)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.scaling, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return *_attend_backward(gradient, *ctx.saved_tensors, ctx.scaling, ctx.dropout), None, None, None, None


_attend.register_fake(lambda query, *_: torch.empty_like(query))
_attend_backward.register_fake(lambda _, *inputs: tuple(torch.empty_like(x) for x in inputs[:3]))
_attend.register_autograd(_differentiate, setup_context=_save_for_backward)
