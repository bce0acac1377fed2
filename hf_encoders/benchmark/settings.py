"""Settings of one table of the benchmark: model, rows, data type, effort."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from hf_encoders.benchmark.choices import LONG, SIZES
from hf_encoders.corpus.tokenizer_training import padded_vocab_size
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.objective import Objective, get_objective
from hf_encoders.registration import config_class_of
from hf_encoders.runs.recipe import tokenizer_fields


@dataclass(frozen=True)
class Setting:
    """One table.

    Args:
        family (`str`): A model type.
        size (`str`): A name in `SIZES`, or the folder of a configuration.
        examples (`str`): A name in `EXAMPLES`, or `PAIRS`.
        length (`int`): Longest row in tokens, including special tokens.
        batch_size, rounds, steps, seed (`int`): As on the command line.
        task (`str`): `pretraining` (forward, backward, update) or `inference` (forward without a head).
        dtype (`str`): A name in `DTYPES`; pre-training has float32 weights under autocast, inference casts weights.
        objective (`str`): Name of an objective.
        dropout (`float`, *optional*): Probability in [0, 1) on hidden states and attention weights; None as in the
            configuration.
        device (`str`): A torch device.
    """

    family: str
    size: str
    examples: str
    length: int
    batch_size: int
    task: str
    dtype: str
    objective: str
    dropout: float | None
    rounds: int
    steps: int
    device: str
    seed: int

    @property
    def trains(self) -> bool:
        """Whether the task is pre-training."""
        return self.task == "pretraining"

    @property
    def training_objective(self) -> Objective:
        """The objective."""
        return get_objective(self.objective)

    @property
    def pair_label_name(self) -> str | None:
        """Argument of `forward` for the labels of sentence pairs; None for objectives without pairs."""
        return self.training_objective.example_label(config_class_of(self.family))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type as torch's."""
        return getattr(torch, self.dtype)

    def __str__(self) -> str:
        what = f"{self.task} ({self.objective})" if self.trains else self.task
        return (
            f"{what}, {self.family} {self.size}, {self.batch_size} x {self.length}, {self.examples}, {self.dtype}, "
            f"{self.device}"
        )


def default_batch_size(size: str, length: int, device: str) -> int:
    """Rows per batch of a size; a given configuration gets those of base."""
    preset = SIZES.get(size, SIZES["base"])
    short, long = preset[3:5] if device == "cpu" else preset[5:]
    return short if length <= LONG else long


def make_config(setting: Setting, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> EncoderConfig:
    """The configuration of a setting, with at least `vocab_size` entries; a given configuration keeps its own number.

    Raises:
        ValueError: If a given configuration does not fit the rows or the tokenizer, or is not native.
    """
    dropouts = {}
    if setting.dropout is not None:
        dropouts = {"hidden_dropout_prob": setting.dropout, "attention_probs_dropout_prob": setting.dropout}
    config_class = config_class_of(setting.family)
    if setting.size not in SIZES:
        config = config_class.from_pretrained(setting.size, **dropouts)
        check_own_config(config, setting, tokenizer)
        return config
    size = SIZES[setting.size]
    return config_class(
        vocab_size=max(vocab_size, padded_vocab_size(tokenizer, 1)),
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_hidden_layers,
        num_attention_heads=size.num_attention_heads,
        intermediate_size=4 * size.hidden_size,
        **tokenizer_fields(config_class, tokenizer, setting.length),
        **dropouts,
    )


def check_own_config(config: EncoderConfig, setting: Setting, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a configuration that does not fit rows or tokenizer, or that transformers' own class cannot express."""
    where = f"--model '{setting.size}'"
    if not config.is_native:
        raise ValueError(
            f"{where}: {', '.join(f'{name}={value!r}' for name, value in config.fields_beyond_native.items())} does "
            "not exist in transformers, so there is no baseline: leave it out."
        )
    if config.vocab_size < (entries := padded_vocab_size(tokenizer, 1)):
        raise ValueError(
            f"{where}: vocab_size={config.vocab_size}, but the tokenizer has {entries} entries: give its own "
            f"tokenizer with --tokenizer, or train one with --vocab-size {config.vocab_size}."
        )
    if config.pad_token_id is not None and config.pad_token_id != tokenizer.pad_token_id:
        raise ValueError(
            f"{where}: pad_token_id={config.pad_token_id}, but the tokenizer's is {tokenizer.pad_token_id}: give its "
            "own tokenizer with --tokenizer."
        )
    needed = config.position_rows(setting.length, tokenizer.pad_token_id)
    if config.max_position_embeddings < needed:
        raise ValueError(
            f"{where}: max_position_embeddings={config.max_position_embeddings}, and rows of {setting.length} tokens "
            f"need {needed}: lower --length."
        )
