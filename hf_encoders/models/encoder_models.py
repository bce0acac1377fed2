"""The base classes of all models: loading, saving, and the forward pass of an encoder without a head."""

import re
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.output_capturing import capture_outputs

from .encoder_arguments import (
    arguments_of,
    check_configuration,
    check_ids,
    own_configuration,
    refuse_unknown_arguments,
)
from .encoder_attention import EncoderSelfAttention
from .encoder_checkpoints import load_checked
from .encoder_configuration import EncoderConfig
from .encoder_outputs import FlatEncoderOutput
from .encoder_tokens import FlatTokens, HiddenStateRecorder, flat_tokens


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
        """As in transformers, but from complete safetensors files only, and without random encoder weights.

        Errors and arguments as in `load_checked`. A new head is initialised randomly, which transformers logs.
        """
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

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """As in transformers, but never under the parameter names of 2018 (`LayerNorm.gamma`)."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)


class EncoderModel:
    """Base model of a family, mixed into its class: border -> flat tokens -> layers -> border.

    A family's class sets `embeddings`, `encoder` and, if `add_pooling_layer`, `pooler`; one with modules of other
    names has `embed`, `run_layers` and `longest_row` of its own.
    """

    arguments: frozenset[str]  # names that `forward` takes
    embedding_arguments: ClassVar[tuple[str, ...]] = ()  # of those, what only this family's `embed` reads

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
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
        """Tokens of the longest sequence that the position table has rows for."""
        return self.config.max_position_embeddings - self.embeddings.first_position

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
        check_ids("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings")

    def _check_length(
        self, tokens: FlatTokens, input_ids: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> None:
        if position_ids is not None and self.config.position_embedding_type == "absolute":
            return
        length = max(tokens.sequence_lengths) if tokens.is_packed else tokens.row_length
        if length > self.longest_row():
            raise ValueError(
                f"{'inputs_embeds' if input_ids is None else 'input_ids'} has sequences of {length} tokens, but "
                f"max_position_embeddings={self.config.max_position_embeddings} allows {self.longest_row()}: truncate "
                f"(max_length={self.longest_row()}) or configure a longer table."
            )


class SinusoidalEmbedding(nn.Embedding):
    """Positions that begin as sine and cosine (Vaswani et al. 2017, section 3.5); `_init_weights` knows the class."""


def sinusoidal_positions(rows: int, width: int) -> torch.Tensor:
    """Return sines in even and cosines in odd columns, `(rows, width)`."""
    columns = torch.arange(width)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] / 10000 ** (2 * (columns // 2) / width).double()
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())
