"""The blocks of every encoder here: embeddings, layers, poolers, and the model that runs them over flat tokens."""

import re
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.output_capturing import capture_outputs

from .encoder_arguments import WITHOUT_EFFECT, arguments_of, check_configuration, check_ids, refuse_unknown_arguments
from .encoder_attention import EncoderSelfAttention
from .encoder_checkpoints import load_checked
from .encoder_dropout import EncoderDropout
from .encoder_matmul import project, with_spare_rows
from .encoder_outputs import FlatEncoderOutput
from .encoder_tokens import FlatTokens, HiddenStateRecorder, flat_tokens


def activation(name: str) -> nn.Module:
    """The activation of that name in transformers; the tanh form of GELU by torch's kernel.

    transformers writes `gelu_new` out in Python, which computes the same and takes 4 to 7 times as long.
    """
    return nn.GELU(approximate="tanh") if name == "gelu_new" else ACT2FN[name]


class EncoderEmbeddings(nn.Module):
    """Sum of word, token type and (absolute) position embeddings, then LayerNorm and dropout.

    Args:
        config: an `EncoderConfig`.
        width (`int`): E, width of the tables.
        first_position (`int`): position of a sequence's first token.
        position_padding (`int`, *optional*): row of the position table that stays zero.
    """

    def __init__(
        self, config: PreTrainedConfig, width: int, first_position: int = 0, position_padding: int | None = None
    ):
        super().__init__()
        self.first_position = first_position
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        if config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(
                config.max_position_embeddings, width, padding_idx=position_padding
            )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.hidden_dropout_prob)

    def forward(
        self,
        tokens: FlatTokens,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Border tensors `(B, T)` (`inputs_embeds` `(B, T, E)`) -> flat embeddings `(N, E)`."""
        if inputs_embeds is None:
            embeddings = self.word_embeddings(tokens.flatten(input_ids))
        else:
            embeddings = tokens.flatten(inputs_embeds)
        if token_type_ids is None:
            # A call of the module, not a read of its weight: offloaded weights are there during the call only.
            embeddings = embeddings + self.token_type_embeddings(embeddings.new_zeros(1, dtype=torch.long))
        else:
            token_type_ids = token_type_ids.expand(tokens.batch_size, tokens.row_length)
            embeddings = embeddings + self.token_type_embeddings(tokens.flatten(token_type_ids))
        if hasattr(self, "position_embeddings"):
            positions = self._positions(tokens, input_ids, position_ids, embeddings.device)
            embeddings = embeddings + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(embeddings))

    def _positions(
        self,
        tokens: FlatTokens,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor:
        """Position of each flat token: `(N,)`."""
        if position_ids is not None:
            return tokens.flatten(position_ids.expand(tokens.batch_size, tokens.row_length))
        return tokens.columns(device) + self.first_position


class AddAndNorm(nn.Module):
    """Projection, dropout, residual, LayerNorm: how each sub-layer ends.

    Args:
        config: an `EncoderConfig`.
        input_width (`int`): width of what is projected to D.
    """

    def __init__(self, config: PreTrainedConfig, input_width: int):
        super().__init__()
        self.dense = nn.Linear(input_width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = EncoderDropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor, activation: nn.Module | None = None
    ) -> torch.Tensor:
        """`(N, input_width)`, before its `activation` if one is given, and the residual `(N, D)` -> `(N, D)`."""
        projected = project(self.dense, hidden_states, activation)
        return self.LayerNorm(self.dropout(projected, residual))


class EncoderAttention(nn.Module):
    """Self-attention and its projection."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.self = EncoderSelfAttention(config)
        self.output = AddAndNorm(config, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        context, _ = self.self(hidden_states, tokens, output_attentions)
        return self.output(context, hidden_states)


class EncoderIntermediate(nn.Module):
    """First half of the feed-forward part: widen. `AddAndNorm` activates on the way to the second.

    So what a hook sees here is not activated yet, unlike in transformers.
    """

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(N, D)` -> `(N, intermediate_size)`."""
        return project(self.dense, hidden_states)


class EncoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each followed by residual and LayerNorm (post-norm)."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = EncoderAttention(config)
        self.intermediate = EncoderIntermediate(config)
        self.activation = activation(config.hidden_act)
        self.output = AddAndNorm(config, config.intermediate_size)

    def forward(
        self, hidden_states: torch.Tensor, tokens: FlatTokens, output_attentions: bool = False
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`."""
        hidden_states = self.attention(hidden_states, tokens, output_attentions)
        return in_chunks(self._feed_forward, hidden_states, self.chunk_size)

    def _feed_forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.output(self.intermediate(hidden_states), hidden_states, self.activation)


def in_chunks(function: Any, hidden_states: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Apply a token-wise function to `chunk_size` tokens at a time, to all at once when it is 0."""
    if chunk_size == 0:
        return function(hidden_states)
    return torch.cat([function(chunk) for chunk in hidden_states.split(chunk_size)])


class LayerStack(nn.Module):
    """Runs layers one after the other and lets hidden states be recorded on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder = HiddenStateRecorder()

    def run(
        self,
        layers: list[nn.Module],
        hidden_states: torch.Tensor,
        tokens: FlatTokens,
        output_attentions: bool,
        output_hidden_states: bool,
    ) -> torch.Tensor:
        """`(N, D)` -> `(N, D)` through `layers`, which in 16 bits on a CPU see some rows of zeros behind the N."""
        if not output_hidden_states:
            hidden_states = with_spare_rows(hidden_states)
            for layer in layers:
                hidden_states = layer(hidden_states, tokens, output_attentions)
            return hidden_states[: tokens.num_tokens]
        padded = tokens.pad(hidden_states)
        for layer in layers:
            hidden_states = layer(tokens.to(padded.device).flatten(padded), tokens, output_attentions)
            padded = self.recorder(padded, hidden_states, tokens)
        return tokens.to(padded.device).flatten(padded)


class Encoder(LayerStack):
    """A stack of layers with parameters of their own."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.layer = nn.ModuleList([EncoderLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden_states: torch.Tensor, tokens: FlatTokens, **flags: bool) -> torch.Tensor:
        """`(N, D)` -> `(N, D)`; `flags` as in `LayerStack.run`."""
        return self.run(list(self.layer), hidden_states, tokens, **flags)


class Pooler(nn.Module):
    """Projection and tanh of a sequence's first token."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.dense(first_tokens).tanh()


class EncoderPreTrainedModel(PreTrainedModel):
    """What all models here tell transformers about themselves."""

    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": HiddenStateRecorder, "attentions": EncoderSelfAttention}
    # Checkpoints of before 2023 hold a table of positions 0..T-1 that is no parameter.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]
    # The terms that a pre-training loss is the sum of: name -> the argument of `forward` with its labels.
    loss_terms: ClassVar[dict[str, str]] = {}
    # Patterns of all names of the weights in a family's pooler and heads of pre-training.
    pretraining_heads: tuple[str, ...] = ()
    left_heads: frozenset[str] = frozenset()  # those weights of the checkpoint that this class has no place for

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any):
        check_configuration(type(self), config)
        super().__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but from whole safetensors files only, and with no encoder weight drawn at random.

        A new head is drawn at random, and transformers' report on it is logged.

        Raises:
            OSError: for a file that is missing, damaged, or no safetensors file.
            ValueError: for weights of another architecture or of other shapes, and for encoder weights that are not
                there, unless `output_loading_info=True` returns the report on them.
        """
        return load_checked(super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """Keep heads of pre-training that this class does not have out of the report that transformers logs.

        To leave them is what loading a pre-trained checkpoint for something else means. `output_loading_info=True` has
        all names (see `load_checked`).
        """
        super()._adjust_missing_and_unexpected_keys(loading_info)
        heads = re.compile("|".join(self.pretraining_heads))
        self.left_heads = frozenset(name for name in loading_info.unexpected_keys if heads.fullmatch(name))
        loading_info.unexpected_keys -= self.left_heads

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """As in transformers, under today's parameter names whatever names the checkpoint was loaded from.

        transformers would write a checkpoint of 2018 back as `LayerNorm.gamma` and `LayerNorm.beta`.
        """
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)


class EncoderModel(EncoderPreTrainedModel):
    """The forward pass of every family's base model: border -> flat tokens -> layers -> border.

    A family's model sets `embeddings`, `encoder` and, if `add_pooling_layer`, `pooler`.
    """

    # Names that `forward` takes.
    arguments: frozenset[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.arguments = arguments_of(cls)

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.embeddings.word_embeddings = value

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
            attention_mask (`torch.Tensor` of shape `(B, T)`, *optional*): non-zero for real tokens; None means all
                are.
            token_type_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): segment of each token, below
                `type_vocab_size`; None means 0.
            position_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): rows of the position table.
            inputs_embeds (`torch.Tensor` of shape `(B, T, E)`, *optional*): instead of `input_ids`.
            cu_seq_lens_q (`torch.Tensor` of shape `(S + 1,)`, *optional*): boundaries of packed sequences in one row.
            keep_padding (`bool`): compute padding too, for losses that read it.
            flat_output (`bool`): return flat tokens instead of padded ones.
            output_attentions, output_hidden_states: as in transformers; None means as the configuration says.
            kwargs: arguments of transformers that change nothing here, such as `max_length_q` and `use_cache`.

        Returns:
            `last_hidden_state` of shape `(B, T, D)`, zero at padding, and `pooler_output` of shape `(S, D)`.

        Raises:
            ValueError: for missing or conflicting inputs, a row longer than the position table, ids outside of
                a table, and arguments that nothing reads.
        """
        refuse_unknown_arguments(self, kwargs, WITHOUT_EFFECT)
        self._check_inputs(input_ids, token_type_ids, position_ids, inputs_embeds)
        source = input_ids if inputs_embeds is None else inputs_embeds
        tokens = flat_tokens(
            source.shape[0], source.shape[1], source.device, attention_mask, cu_seq_lens_q, keep_padding=keep_padding
        )
        self._check_length(tokens, input_ids, position_ids)
        hidden_states = self.embeddings(tokens, input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden_states = self.encoder(
            hidden_states,
            tokens,
            output_attentions=bool(self.config.output_attentions if output_attentions is None else output_attentions),
            # `[0]` is a selection of layers, not "no": only False and None are.
            output_hidden_states=output_hidden_states not in (None, False)
            if output_hidden_states is not None
            else bool(self.config.output_hidden_states),
        )
        tokens = tokens.to(hidden_states.device)
        pooled = None if self.pooler is None else self.pool(tokens.first_of_each_sequence(hidden_states))
        if flat_output:
            return FlatEncoderOutput(last_hidden_state=hidden_states, pooler_output=pooled, tokens=tokens)
        return BaseModelOutputWithPooling(last_hidden_state=tokens.pad(hidden_states), pooler_output=pooled)

    def pool(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """`(S, D)` -> `(S, D)`."""
        return self.pooler(first_tokens)

    def longest_row(self) -> int:
        """The longest sequence that the position table has rows for, in tokens."""
        return self.config.max_position_embeddings - self.embeddings.first_position

    def _check_inputs(
        self,
        input_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> None:
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither is" if input_ids is None else "both are"
            raise ValueError(f"You must specify exactly one of input_ids or inputs_embeds: {given} given.")
        if input_ids is not None and input_ids.dim() != 2:
            raise ValueError(
                f"input_ids has shape {tuple(input_ids.shape)}: pass a batch of shape (batch_size, sequence_length)."
            )
        width = self.get_input_embeddings().embedding_dim
        if inputs_embeds is not None and (inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width):
            raise ValueError(
                f"inputs_embeds has shape {tuple(inputs_embeds.shape)}: pass (batch_size, sequence_length, {width})."
            )
        rows = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        for name, ids in (("token_type_ids", token_type_ids), ("position_ids", position_ids)):
            if ids is not None and ids.shape not in (rows, (1, rows[1]), rows[1:]):
                raise ValueError(f"{name} has shape {tuple(ids.shape)}: pass one a token, of shape {tuple(rows)}.")
        check_ids("input_ids", input_ids, self.get_input_embeddings().num_embeddings, "vocab_size")
        check_ids("token_type_ids", token_type_ids, self.config.type_vocab_size, "type_vocab_size")
        check_ids("position_ids", position_ids, self.config.max_position_embeddings, "max_position_embeddings")

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
