"""The base classes of all models: loading, saving, and the forward pass of an encoder without a head."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.output_capturing import capture_outputs

from .encoder_attention import EncoderSelfAttention
from .encoder_blocks import PredictionHead, SinusoidalEmbedding, sinusoidal_positions
from .encoder_checkpoints import load_checked
from .encoder_configuration import EncoderConfig
from .encoder_tokens import FlatTokens, HiddenStateRecorder, flat_tokens, on_host


INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
# What transformers' Trainer, collators and pipelines pass to any model, and an encoder does not need: heads that count
# items name the count, and keys are the same tokens as queries.
WITHOUT_EFFECT = {"num_items_in_batch", "cu_seq_lens_k", "max_length_q", "max_length_k", "return_dict", "use_cache"}
# What wrappers pass to encoders too, switched off.
ONLY_OFF = {"cache_position", "encoder_attention_mask", "encoder_hidden_states", "head_mask", "is_causal"}
ONLY_OFF |= {"output_router_logits", "past_key_values", "seq_idx"}
VARIADIC = {"self", "args", "inputs", "kwargs"}
SPAN_LABELS = ("start_positions", "end_positions")
SAME_WORD = 0.85  # of `difflib`: a letter too many or too few, or two letters swapped


@dataclass
class FlatEncoderOutput(ModelOutput):
    """Hold what heads read from the encoder, without padding.

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

    @property
    def first_tokens(self) -> torch.Tensor:
        """Return the first token of each sequence, `(S, D)`."""
        return self.tokens.first_of_each_sequence(self.last_hidden_state)

    @property
    def recorded(self) -> dict[str, tuple[torch.Tensor, ...] | None]:
        """Return the fields that the outputs of all heads have."""
        return {"hidden_states": self.hidden_states, "attentions": self.attentions}


class EncoderPreTrainedModel(PreTrainedModel):
    """Base of a family's models. A family sets `config_class`, `base_model_prefix` and `pretraining_heads`."""

    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _input_embed_layer = "word_embeddings"  # of `embeddings`
    _can_record_outputs = {"hidden_states": HiddenStateRecorder, "attentions": EncoderSelfAttention}
    # Checkpoints of before 2023 hold the positions 0..T-1 as a buffer.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]
    # The terms that a pre-training loss is the sum of: name -> the argument of `forward` with its labels.
    loss_terms: ClassVar[dict[str, str]] = {}
    # Arguments of the base model that every `forward` names, in the order of transformers' signature.
    inputs: ClassVar[tuple[str, ...]] = INPUTS
    # Patterns of the names of all weights in a family's pooler and pre-training heads.
    pretraining_heads: tuple[str, ...] = ()
    unused_head_weights: frozenset[str] = frozenset()  # of those, the ones in the checkpoint that this class lacks

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.config_class is not None:
            # What `register_for_auto_class` would set: saving such a class copies its code beside the weights.
            names = {reference.rpartition(".")[2]: auto for auto, reference in cls.config_class.AUTO_MAP.items()}
            cls._auto_class = names.get(cls.__name__, cls._auto_class)

    def __init__(self, config: EncoderConfig, *args: Any, **kwargs: Any):
        check_configuration(type(self), config)
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Load as in transformers, but complete safetensors files only; errors and arguments as in `load_checked`."""
        kwargs["config"] = own_configuration(cls, config)
        return load_checked(super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> Any:
        return super()._from_config(own_configuration(cls, config), **kwargs)

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """Leave pre-training heads out of transformers' warning: a checkpoint loaded for another task has them."""
        super()._adjust_missing_and_unexpected_keys(loading_info)
        heads = re.compile("|".join(self.pretraining_heads))
        self.unused_head_weights = frozenset(name for name in loading_info.unexpected_keys if heads.fullmatch(name))
        loading_info.unexpected_keys -= self.unused_head_weights

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PredictionHead):
            init.zeros_(module.bias)
        if isinstance(module, SinusoidalEmbedding):
            init.copy_(module.weight, sinusoidal_positions(*module.weight.shape).to(module.weight))

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """As in transformers, but never under the parameter names of 2018 (`LayerNorm.gamma`)."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)


class EncoderModel:
    """Base model of a family, mixed into its class: border -> flat tokens -> layers -> border.

    A family's class sets `embeddings`, `encoder` and `pooler`, or has its own `embed` and `run_layers`.
    """

    arguments: frozenset[str]  # names that `forward` takes
    embedding_arguments: ClassVar[tuple[str, ...]] = ()  # of those, what only this family's `embed` reads

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.forward = with_inputs(cls.forward, cls.inputs)
        cls.arguments = arguments_of(cls)

    # `hidden_states[-1]` is recorded at the border; `last_hidden_state` may be flat.
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        keep_padding: bool = False,
        flat_output: bool = False,
        is_causal: bool = False,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> FlatEncoderOutput | BaseModelOutputWithPooling:
        r"""Encode tokens.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): token ids.
            attention_mask (`torch.Tensor` of shape `(B, T)`, *optional*): non-zero for real tokens; None: all are.
            token_type_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): segment of each token; None means 0.
            position_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): rows of the position table.
            inputs_embeds (`torch.Tensor` of shape `(B, T, E)`, *optional*): instead of `input_ids`.
            cu_seq_lens_q (`torch.Tensor` of shape `(S + 1,)`, *optional*): boundaries of packed sequences in one row.
            keep_padding (`bool`, *optional*, defaults to `False`): compute padding too, for losses that read it.
            flat_output (`bool`, *optional*, defaults to `False`): return flat tokens instead of padded ones.
            is_causal (`bool`, *optional*, defaults to `False`): let a token see itself and the tokens before it only.
            output_attentions, output_hidden_states: as in transformers; None means as the configuration says.
            kwargs: arguments of transformers without effect here, such as `max_length_q` and `use_cache`.

        Returns:
            `last_hidden_state` of shape `(B, T, D)`, zero at padding, and `pooler_output` of shape `(S, D)`.

        Raises:
            ValueError: for missing or conflicting inputs, sequences that are too long, ids out of range, and arguments
                that nothing reads.
        """
        own_ids = {name: kwargs.pop(name) for name in self.embedding_arguments if name in kwargs}
        if cu_seq_lens_q is not None:
            kwargs.pop("seq_idx", None)  # the same in another form, which sentence-transformers passes too
        refuse_unknown_arguments(self, kwargs, self.arguments)
        self._check_inputs(input_ids, token_type_ids, position_ids, inputs_embeds, **own_ids)
        source = input_ids if inputs_embeds is None else inputs_embeds
        tokens = flat_tokens(*source.shape[:2], source.device, attention_mask, cu_seq_lens_q, keep_padding)
        tokens.is_causal = is_causal
        self._check_length(tokens, input_ids, position_ids)
        config = self.config
        attentions = config.output_attentions if output_attentions is None else output_attentions
        states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        hidden_states = self.embed(tokens, input_ids, token_type_ids, position_ids, inputs_embeds, **own_ids)
        # `output_hidden_states=[0]` selects layers.
        hidden_states = self.run_layers(hidden_states, tokens, bool(attentions), states not in (None, False))
        tokens = tokens.to(hidden_states.device)
        pooled = None if self.pooler is None else self.pool(tokens.first_of_each_sequence(hidden_states))
        if flat_output:
            return FlatEncoderOutput(last_hidden_state=hidden_states, pooler_output=pooled, tokens=tokens)
        return BaseModelOutputWithPooling(last_hidden_state=tokens.pad(hidden_states), pooler_output=pooled)

    def embed(self, tokens: FlatTokens, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Border tensors, `(B, T)` and `inputs_embeds` `(B, T, E)` -> flat embeddings `(N, E)`."""
        embeddings = self.embeddings(*inputs, tokens=tokens)  # by name: hooks look for tensors among the others
        return embeddings if embeddings.dim() == 2 else tokens.to(embeddings.device).flatten(embeddings)

    def run_layers(self, hidden_states: torch.Tensor, tokens: FlatTokens, *flags: bool) -> torch.Tensor:
        """`(N, E)` -> `(N, D)`; `flags` are `output_attentions` and `output_hidden_states`."""
        return self.encoder(hidden_states, tokens, *flags)

    def pool(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.pooler(first_tokens)

    def longest_row(self) -> int:
        """Return the length of the longest sequence that the position table has rows for."""
        return self.config.max_position_embeddings

    def _check_inputs(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        **own_ids: torch.Tensor | None,
    ) -> None:
        if (input_ids is None) == (inputs_embeds is None):
            passed = "neither is" if input_ids is None else "both are"
            raise ValueError(f"You must specify exactly one of input_ids or inputs_embeds: {passed} given.")
        if input_ids is not None and input_ids.dim() != 2:
            raise ValueError(
                f"input_ids has shape {tuple(input_ids.shape)}: pass a batch of shape (batch_size, sequence_length)."
            )
        config = self.config  # not the embedding, which may be an adapter, or sharded
        width = getattr(config, "embedding_size", config.hidden_size)
        if inputs_embeds is not None and (inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width):
            raise ValueError(
                f"inputs_embeds has shape {tuple(inputs_embeds.shape)}: pass (batch_size, sequence_length, {width})."
            )
        rows = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        ids_per_token = {"token_type_ids": token_type_ids, "position_ids": position_ids, **own_ids}
        for name, ids in ids_per_token.items():
            if ids is not None and ids.shape not in (rows, (1, rows[1]), rows[1:]):
                raise ValueError(f"{name} has shape {tuple(ids.shape)}: pass one per token, of shape {tuple(rows)}.")
        check_ids("input_ids", input_ids, config.vocab_size, "vocab_size")
        check_ids("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
        if config.LIMITS_LENGTH:
            check_ids("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings")

    def _check_length(
        self, tokens: FlatTokens, input_ids: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> None:
        if position_ids is not None and self.config.position_embedding_type == "absolute":
            return
        length = max(tokens.sequence_lengths) if tokens.is_packed else tokens.row_length
        if length > self.longest_row() and self.config.LIMITS_LENGTH:
            raise ValueError(
                f"{'inputs_embeds' if input_ids is None else 'input_ids'} has sequences of {length} tokens, but "
                f"max_position_embeddings={self.config.max_position_embeddings} allows {self.longest_row()}: truncate "
                f"(max_length={self.longest_row()}) or configure a longer table."
            )


def with_inputs(forward: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a `forward` whose signature begins with `names`: Trainer drops the columns that a signature does not."""
    signature = inspect.signature(forward)
    first, *parameters = signature.parameters.values()
    last = parameters[-1].kind if parameters else None
    if "input_ids" in signature.parameters or last is not inspect.Parameter.VAR_KEYWORD:
        return forward  # it names its inputs itself
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = [inspect.Parameter(name, kind, default=None, annotation=torch.Tensor | None) for name in names]
    parameters = [*inputs, *(parameter for parameter in parameters if parameter.name not in names)]
    positional = [parameter.name for parameter in parameters[:-1]]

    @wraps(forward)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(positional):
            raise TypeError(f"{len(args)} arguments by position: only {', '.join(positional)} are known.")
        return forward(self, **dict(zip(positional, args, strict=False)), **kwargs)

    del named.__wrapped__  # accelerate would unwrap it
    named.__signature__ = signature.replace(parameters=[first, *parameters])
    return named


# --- checks of arguments ---


def arguments_of(model_class: type) -> frozenset[str]:
    """Return names of the arguments that a class's `forward` and those it overrides read, or that have no effect."""
    forwards = [vars(base)["forward"] for base in model_class.__mro__ if "forward" in vars(base)]
    return frozenset(WITHOUT_EFFECT).union(*(inspect.signature(forward).parameters for forward in forwards)) - VARIADIC


def refuse_unknown_arguments(model: nn.Module, arguments: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ValueError for one of the `arguments` of `model.forward` that is not `known`: nothing reads it."""
    unknown = {name for name in arguments if name not in known}  # torch.compile of 2.11 cannot subtract from keys
    if not unknown:
        return
    is_off = {name for name in unknown & ONLY_OFF if arguments[name] is None or arguments[name] is False}
    is_off |= {name for name in unknown if arguments[name] is None and is_label(name)}
    if unknown := sorted(unknown - is_off):
        raise ValueError(" ".join(_describe(name, model, known) for name in unknown))


def is_label(name: str) -> bool:
    """Return whether an argument has the name of a label."""
    return "label" in name or name in SPAN_LABELS


def _describe(name: str, model: nn.Module, known: frozenset[str]) -> str:
    parameters = [name for name in inspect.signature(type(model).forward).parameters if name not in VARIADIC]
    start = f"{type(model).__name__}.forward takes no {name!r}"
    if name in ONLY_OFF:
        return f"{start}, which an encoder does not use: leave it out."
    if alike := difflib.get_close_matches(name, [*parameters, *sorted(known)], n=1, cutoff=SAME_WORD):
        return f"{start}: did you mean {alike[0]!r}?"
    if not is_label(name):
        return f"{start}, and would ignore it: leave it out of the batch, or of the call."
    labels = [parameter for parameter in parameters if is_label(parameter)]
    takes = f"its labels are {' and '.join(map(repr, labels))}" if labels else "it has no head"
    remedy = "use a model with a head for it, or leave it out of the batch"
    for label in model.loss_terms.values():
        if label != "labels":
            remedy += f", or call it {label!r} (label_name={label!r} of a pair collator) to train that head"
    return f"{start}, and would be trained without it; {takes}: {remedy}."


def check_configuration(model_class: type, config: Any) -> None:
    """Raise ValueError unless `config` is of the class's family, by class name: remote code has an equal class."""
    needed = model_class.config_class
    is_one = any(base.__name__ == needed.__name__ for base in type(config).__mro__)
    # A family may be a subclass of another's. The type that a file named, an attribute, is checked after loading.
    if is_one and type(config).model_type == needed.model_type:
        return
    start = f"{model_class.__name__} needs a {needed.__name__}, and config is a {type(config).__name__}"
    if getattr(config, "model_type", None) == needed.model_type:
        raise ValueError(f"{start}: pass {needed.__name__}.from_dict(config.to_dict()).")
    raise ValueError(f"{start}: use the model class of its family, or a {needed.__name__}.")


def own_configuration(model_class: type, config: Any) -> Any:
    """Convert transformers' own configuration of the class's family, which tools keep; return any other as it is."""
    needed = model_class.config_class
    if type(config).__name__ != needed.__name__.removeprefix("Hfe"):
        return config
    converted = needed.from_dict(config.to_dict())
    converted.name_or_path, converted._attn_implementation = config.name_or_path, config._attn_implementation
    return converted


def check_ids(
    name: str,
    ids: torch.Tensor | None,
    size: int,
    size_name: str,
    remedy: str = "check that the tokenizer belongs to this model, or configure a larger table",
) -> None:
    """Raise ValueError for ids that are not integers, or without a row in their table (unknown in a traced graph)."""
    if ids is not None and ids.is_floating_point():
        raise ValueError(f"{name} has dtype {ids.dtype}: pass integers.")
    if ids is None or ids.numel() == 0 or torch.compiler.is_compiling() or torch.jit.is_tracing() or ids.is_meta:
        return
    low, high = (int(bound) for bound in on_host(ids).aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, outside of [0, {size - 1}] ({size_name}={size}): {remedy}."
        )
