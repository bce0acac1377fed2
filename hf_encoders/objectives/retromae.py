"""RetroMAE (Xiao et al. 2022, https://arxiv.org/abs/2205.12035): all tokens are predicted from the first one's state.

An encoder predicts masked tokens. A decoder of one layer, which has little but the encoder's state of the first token,
predicts all tokens of the same text. So that state comes to hold what the text says, as retrieval needs it. The
decoder is used for training only.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from hf_encoders.loading import load_own_weights
from hf_encoders.models.encoder_blocks import EncoderIntermediate, EncoderOutput, activation
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_losses import ObjectiveSums, mean_loss, pair_share_of_batch
from hf_encoders.models.encoder_rotary import FULL, positions_of, rotated, rotations
from hf_encoders.models.encoder_tokens import FlatTokens
from hf_encoders.objectives.batch import IGNORED, Row
from hf_encoders.objectives.dataset import Example, with_options_of
from hf_encoders.objectives.mlm import MASKED_TOKENS, DataCollatorForMaskedLM, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.randomness import RandomStream, generator


DECODER_FILE = "retromae_decoder.safetensors"  # of a checkpoint; no other loader reads it
DECODED_TOKENS = LossTerm("decoder", "tokens predicted from the state of the first one")
SETS = 63  # hidden sets of an example, one for each bit of a positive int64; min(length, 256) in the original code
# `src/pretrain/data.py` of staoxiao/RetroMAE: whole words, 30 % for the encoder and 50 % for the decoder.
MASKING = {"mask_probability": 0.3, "unit": "word"}
DECODER_MASK_PROBABILITY = 0.5


# --- data ---


def hidden_sets(starts: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Draw `SETS` random sets of whole words with a share of the tokens, each with a bit of the result.

    Words are taken in random order, each if the set has room for all of its tokens.

    Args:
        starts (`np.ndarray` of `bool`, shape `(C,)`): Whether each token begins a word.
        share (`float`): Of the tokens; what is not a whole number is rounded at random, up or down.

    Returns:
        `np.ndarray` of `int64`, shape `(C,)`: bit k is set where the k-th set hides the token.

    >>> sets = hidden_sets(np.array([1, 0, 1, 1], dtype=bool), 0.5, np.random.default_rng(0))
    >>> [(sets >> k & 1).tolist() for k in range(4)]
    [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]]
    """
    firsts = starts.nonzero()[0]
    lengths = np.diff(np.append(firsts, len(starts)))
    room = np.floor(share * len(starts) + random.random(SETS)).astype(np.int64)
    order = random.random((len(lengths), SETS)).argsort(axis=0)
    is_hidden = np.zeros((len(lengths), SETS), dtype=bool)
    every = np.arange(SETS)
    for words in order:  # the next word of each set
        fits = lengths[words] <= room
        is_hidden[words, every] = fits
        room -= np.where(fits, lengths[words], 0)
    bits = (is_hidden << every.astype(np.int64)).sum(axis=1)
    return bits.repeat(lengths)


class DataCollatorForRetroMAE(DataCollatorForMaskedLM):
    """Mask whole words for an encoder, and draw what each row of the decoder may see.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        decoder_mask_probability (`float`, *optional*, defaults to 0.5): Share of the tokens that a row of the decoder
            does not see, in (0, 1); special tokens are always seen.
        options: `packed`, `unit` and the other arguments of `DataCollatorForMaskedLM`; `mask_probability` is 0.3, and
            `unit` is "word".

    Output: as that of `DataCollatorForMaskedLM`, and, each `int64` of the shape of `input_ids`: `decoder_labels`, the
        original ids of all tokens but special ones; `hidden_sets`, whose bit k is set where the k-th of `SETS` sets
        hides a token; `hidden_set`, the number of the set that each row of the decoder does not see.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK]:

    >>> from hf_encoders.objectives.randomness import Key
    >>> collator = DataCollatorForRetroMAE(doctest_tokenizer(), mask_probability=0.5, unit="token")
    >>> batch = collator([Example([np.array([10, 11, 12, 13])], Key(seed=0, epoch=0, example=5))])
    >>> batch["input_ids"].tolist(), batch["decoder_labels"].tolist()
    ([[1, 4, 11, 4, 13, 2]], [[-100, 10, 11, 12, 13, -100]])
    >>> hidden = batch["hidden_sets"][:, None] >> batch["hidden_set"][..., None] & 1  # of each row of the decoder
    >>> hidden[0].tolist()[1:3]
    [[0, 0, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0]]
    """

    needs_whole_texts = True

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        decoder_mask_probability: float = DECODER_MASK_PROBABILITY,
        **options: Any,
    ):
        super().__init__(tokenizer, **{**MASKING, **options})
        self.decoder_mask_probability = checked_share(decoder_mask_probability)
        self.padding["decoder_labels"] = IGNORED

    def arguments(self, example: Example, row: Row) -> Row:
        """Return the arguments of the model for one example, with the sets that the decoder does not see."""
        ids, word_starts = row["input_ids"], row.get("word_starts")
        masker = self.masker_of(example.phase)
        is_ordinary = masker.is_ordinary.take(ids)
        random = generator(example.key, RandomStream.HIDDEN_SETS)
        sets = np.zeros(len(ids), dtype=np.int64)
        if is_ordinary.any():
            starts = masker.unit_starts(ids, word_starts)
            sets[is_ordinary] = hidden_sets(starts, self.decoder_mask_probability, random)
        chosen = random.integers(SETS, size=len(ids))
        labels = np.where(is_ordinary, ids, IGNORED)
        made = super().arguments(example, row)
        return {**made, "decoder_labels": labels, "hidden_sets": sets, "hidden_set": chosen}


def checked_share(share: float) -> float:
    """Return the share of hidden tokens; ValueError unless it is in (0, 1)."""
    if not 0 < share < 1:
        raise ValueError(f"decoder_mask_probability={share} must be above 0 and below 1, such as 0.5.")
    return share


# --- model ---


@dataclass
class RetroMAEOutput(ModelOutput):
    """Output of `RetroMAEModel`.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): that of masked tokens and that of the decoder, each over its
            own tokens; when labels are given.
        logits (`torch.Tensor` of shape `(B, T, V)`, *optional*): the encoder's scores, if they were asked for.
        mlm, decoder (`ObjectiveSums`, *optional*): sums over the predicted tokens of both; `nll` with gradient.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    decoder: ObjectiveSums | None = None


class RetroMAEDecoder(nn.Module):
    """A layer of BERT's shape: each row's query is the text's state and the row's position (section 3.2).

    Keys and values are the embeddings of the tokens that the row sees, and that state in place of the first token.
    A family with rotary positions has no position embedding: its queries and keys are rotated.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config, self.heads = config, config.num_attention_heads
        width = config.hidden_size
        embedding_width = getattr(config, "embedding_size", None) or width
        self.widen = nn.Linear(embedding_width, width) if embedding_width != width else nn.Identity()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention = EncoderOutput(config, width)
        self.intermediate = EncoderIntermediate(config)
        self.output = EncoderOutput(config, config.intermediate_size, activation(config.hidden_act))

    def forward(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor | None,
        states: torch.Tensor,
        tokens: FlatTokens,
        sees: torch.Tensor,
    ) -> torch.Tensor:
        """Decode the texts.

        Args:
            embeddings, positions (`torch.Tensor` of shape `(N, E)`): Of the original tokens, and of their places; None
                without a table of positions.
            states (`torch.Tensor` of shape `(S, D)`): Of the texts.
            tokens (`FlatTokens`): Layout of the N tokens.
            sees (`torch.BoolTensor` of shape `(S, L, L)`): Whether a row sees a token.

        Returns:
            `torch.Tensor` of shape `(N, D)`.
        """
        content = tokens.to_sequences(self.widen(embeddings))
        is_first = first_tokens(tokens, content.device)[..., None]
        content = tokens.from_sequences(torch.where(is_first, states[:, None], content))
        queries = tokens.from_sequences(states[:, None].expand(-1, tokens.longest, -1))
        if positions is not None:
            queries = queries + self.widen(positions)
        query, key, value = (
            linear(rows).unflatten(-1, (self.heads, -1))
            for linear, rows in ((self.query, queries), (self.key, content), (self.value, content))
        )
        if positions is None:
            turns = rotations(self.config, FULL, tokens, positions_of(tokens, query.device))
            query, key = rotated(query, *turns), rotated(key, *turns)
        context = nn.functional.scaled_dot_product_attention(
            *(tokens.to_sequences(rows).transpose(1, 2) for rows in (query, key, value)),
            attn_mask=sees[:, None],
            dropout_p=self.config.attention_probs_dropout_prob if self.training else 0.0,
        )
        context = tokens.from_sequences(context.transpose(1, 2)).flatten(1)
        hidden_states = self.attention(context, queries)
        return self.output(self.intermediate(hidden_states), hidden_states)


def first_tokens(tokens: FlatTokens, device: torch.device) -> torch.Tensor:
    """Return whether each place of the sequences has their first token, `(S, L)`."""
    real = tokens.sequence_mask()
    if real is None:
        return torch.arange(tokens.longest, device=device).eq(0).expand(tokens.num_sequences, -1)
    return (real.cumsum(dim=1) == 1) & real


class RetroMAEModel(PreTrainedModel):
    """An encoder with its masked-LM head, and a decoder that predicts by the same head.

    It is saved as the encoder, which any loader reads, with the decoder's weights in a file next to it.

    Args:
        config (`EncoderConfig`): The encoder's, of a family with a masked-LM head and positions of its own.
        encoder (`PreTrainedModel`, *optional*): A trained one to continue with; None makes a new one.
    """

    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = _supports_attention_backend = True
    loss_terms = {MASKED_TOKENS.name: "labels", DECODED_TOKENS.name: "decoder_labels"}

    def __init__(self, config: EncoderConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = encoder or masked_lm_class(type(config))(config)
        self.decoder = RetroMAEDecoder(config)
        self.post_init()

    @property
    def trained_models(self) -> tuple[PreTrainedModel, ...]:
        """Return the models that a token passes through."""
        return (self.encoder,)

    def counted_passes(self, tokens: int, predicted: int) -> list[tuple[int, EncoderConfig, int]]:
        """Return forward passes (a backward pass counts as two), their configuration and projected tokens."""
        layer = copy.deepcopy(self.config)
        layer.num_hidden_layers = 1
        return [(3, self.config, predicted), (3, layer, tokens)]

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Return the projection to the vocabulary."""
        return self.encoder.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers."""
        embeddings = self.encoder.resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = self.encoder.config.vocab_size
        return embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        decoder_labels: torch.Tensor | None = None,
        hidden_sets: torch.Tensor | None = None,
        hidden_set: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Any,
    ) -> RetroMAEOutput:
        r"""Predict masked tokens, and all tokens again from the state of the first one.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, T)`): with mask tokens.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): original ids where the encoder predicts them,
                -100 elsewhere.
            decoder_labels (`torch.LongTensor` of shape `(B, T)`, *optional*): original ids of the tokens that the
                decoder predicts. Without them the encoder alone reads the text.
            hidden_sets, hidden_set (`torch.LongTensor` of shape `(B, T)`, *optional*): what a row of the decoder does
                not see, as `DataCollatorForRetroMAE` draws them; needed with `decoder_labels`.
            num_items_in_batch (*optional*): predicted tokens in the whole batch. `PreTrainingTrainer` counts both
                kinds, and divides the sums in `mlm` and `decoder` itself.
            return_logits (`bool`, *optional*): whether the encoder's scores of every token are computed.
            kwargs: passed to the encoder, like `attention_mask`, `token_type_ids` and `position_ids`.

        Raises:
            ValueError: for `decoder_labels` without `labels`, `hidden_sets` and `hidden_set` of their shape; as in the
                encoder.
        """
        inputs = (token_type_ids, position_ids)
        outputs = self.encoder.encode(input_ids, attention_mask, *inputs, token_labels=labels, **kwargs)
        states, tokens = outputs.last_hidden_state, outputs.tokens
        logits, mlm = self.encoder.predict_tokens(states, tokens, labels, return_logits)
        loss = mean_loss(mlm, num_items_in_batch)
        if decoder_labels is None:
            return RetroMAEOutput(loss=loss, logits=logits, mlm=mlm)
        drawn = {"labels": labels, "hidden_sets": hidden_sets, "hidden_set": hidden_set}
        for name, value in drawn.items():
            if value is None or value.shape != decoder_labels.shape:
                problem = "missing" if value is None else f"of shape {tuple(value.shape)}"
                raise ValueError(
                    f"{name} is {problem}, and decoder_labels have shape {tuple(decoder_labels.shape)}: pass what "
                    "DataCollatorForRetroMAE draws."
                )
        base = self.encoder.base_model
        originals = torch.where(labels != IGNORED, labels, input_ids)
        own_ids = {name: kwargs[name] for name in base.embedding_arguments if name in kwargs}
        embeddings = base.embed(tokens, originals, *inputs, None, **own_ids)
        decoded = self.decoder(
            embeddings,
            self._positions(position_ids, tokens, embeddings.device),
            tokens.first_of_each_sequence(states),
            tokens,
            seen_tokens(tokens, tokens.flatten(hidden_sets), tokens.flatten(hidden_set)),
        )
        _, decoder = self.encoder.predict_tokens(decoded, tokens, decoder_labels, return_logits=False)
        return RetroMAEOutput(loss + pair_share_of_batch(decoder, mlm, num_items_in_batch), logits, mlm, decoder)

    def _positions(
        self, position_ids: torch.Tensor | None, tokens: FlatTokens, device: torch.device
    ) -> torch.Tensor | None:
        """Return the embedding of each token's place, `(N, E)`; None without a table of positions."""
        if not self.config.has_position_table:
            return None
        base = self.encoder.base_model
        (table,) = [part for name, part in base.named_modules() if name.rpartition(".")[2] == "position_embeddings"]
        if position_ids is not None:
            return table(tokens.flatten_ids(position_ids))
        return table(tokens.columns(device) + self.config.max_position_embeddings - base.longest_row())

    # --- files ---

    def save_pretrained(
        self, save_directory: str | os.PathLike, state_dict: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Save the encoder, and the decoder's weights in a file of their own; arguments as in transformers."""
        weights = self.state_dict() if state_dict is None else state_dict
        parts: dict[str, dict[str, torch.Tensor]] = {"encoder": {}, "decoder": {}}
        for name, value in weights.items():
            part, _, key = name.partition(".")
            parts[part][key] = value
        self.encoder.save_pretrained(save_directory, state_dict=parts["encoder"], **kwargs)
        decoder = {name: value.detach().contiguous().cpu() for name, value in parts["decoder"].items()}
        save_file(decoder, Path(save_directory, DECODER_FILE))

    def load_folder(self, folder: str | os.PathLike) -> None:
        """Load the weights that `save_pretrained` wrote, into this model.

        Raises:
            ValueError: for weights of another model.
        """
        load_own_weights(self.encoder, Path(folder))
        file = Path(folder, DECODER_FILE)
        if not file.is_file():
            raise ValueError(f"{folder} has no {DECODER_FILE}: resume from a checkpoint of this objective.")
        self.decoder.load_state_dict(load_file(file))


def seen_tokens(tokens: FlatTokens, sets: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return whether a row of the decoder sees a token, `(S, L, L)`, from the flat sets and number, `(N,)`.

    A row sees the first token, and the others of its sequence that its set does not hide, except its own.
    """
    sets, number = tokens.to_sequences(sets), tokens.to_sequences(number)
    hidden = (sets[:, None] & (1 << number)[..., None]) != 0
    hidden = hidden | torch.eye(tokens.longest, dtype=torch.bool, device=sets.device)
    hidden = hidden & ~first_tokens(tokens, sets.device)[:, None]
    real = tokens.sequence_mask()
    return ~hidden if real is None else ~hidden & real[:, None]


# --- objective ---


@dataclass(frozen=True)
class RetroMAEOptions:
    """Options of the objective.

    Args:
        decoder_mask_probability (`float`, *optional*, defaults to 0.5): Share of the tokens that a row of the decoder
            does not see, in (0, 1).
    """

    decoder_mask_probability: float = DECODER_MASK_PROBABILITY

    def __post_init__(self):
        checked_share(self.decoder_mask_probability)


def masked_lm_class(config_class: type[EncoderConfig]) -> type[PreTrainedModel] | None:
    """Return a family's class with a masked-LM head, if it has one."""
    return MaskedLanguageModelling().find_model_class(config_class)[0]


class RetroMAE(MaskedLanguageModelling):
    """Predict masked tokens, and all tokens again from the state of the first one and half of the others.

    Args:
        options: As of `RetroMAEOptions`.
    """

    name = "retromae"
    terms = (MASKED_TOKENS, DECODED_TOKENS)
    collator_class = DataCollatorForRetroMAE
    parallel_class = None
    default_masking = MASKING
    options_class = RetroMAEOptions
    is_in_transformers = False
    is_of_heads = False

    def __init__(self, **options: Any):
        self.options = RetroMAEOptions(**options)

    def find_model_class(self, config_class: type[EncoderConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        """Return the model around the family's class for masked LM, and what that has no head for."""
        model_class, missing = MaskedLanguageModelling().find_model_class(config_class)
        return (None, missing) if missing else (RetroMAEModel, [])

    def new_model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return a new model, or one whose encoder is the checkpoint's, with the checkpoint's decoder if it has one.

        Raises:
            ValueError: for an encoder that knows distances only, and neither a table of positions nor rotations.
        """
        if not config.has_position_table and not getattr(config, "rope_parameters", None):
            raise ValueError(
                f"model: the decoder of {self.name} asks by position, which a {config.model_type} of distances has "
                "not: use an encoder with absolute positions."
            )
        encoder = super().new_model(config)
        model = RetroMAEModel(config, encoder)
        if self.initial is not None and encoder.device.type != "meta":
            model.new_weights = frozenset(f"encoder.{name}" for name in encoder.new_weights)
            model.unused_weights = encoder.unused_weights
            if (file := self.initial.file(DECODER_FILE)) is not None:
                model.decoder.load_state_dict(load_file(file))
        return model

    def make_collator(
        self, tokenizer: PreTrainedTokenizerBase, model_class: type[PreTrainedModel], **options: Any
    ) -> DataCollatorForRetroMAE:
        """Return the data collator, with the objective's options."""
        share = self.options.decoder_mask_probability
        return DataCollatorForRetroMAE(tokenizer, decoder_mask_probability=share, **options)

    def saved_model(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the encoder."""
        return model.encoder

    def scores(
        self, term: LossTerm, metrics: Mapping[str, float], unigram_cross_entropy: float
    ) -> list[dict[str, Any]]:
        """As in the base class, of the encoder: the decoder is left behind, and its accuracy says little."""
        return [] if term == DECODED_TOKENS else super().scores(term, metrics, unigram_cross_entropy)

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe how tokens were masked for the encoder, and hidden from the decoder."""
        (masked,) = super().describe(collator, mask_rates, examples, logged).values()
        share = f"{100 * self.options.decoder_mask_probability:g} %"
        return {
            "masked language modelling": masked,
            "RetroMAE": f"all tokens, by a decoder of one layer from the state of the first token; each row does not "
            f"see its own token and {share} of the words",
        }
