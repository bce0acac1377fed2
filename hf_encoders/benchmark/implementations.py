"""This package's model and transformers' own classes as baselines, with the same weights and the same rows.

Every implementation runs as its own code does: transformers' classes compute their loss over the logits of all tokens,
and their batches are padded to the longest row by `DataCollatorForLanguageModeling`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import is_flash_attn_2_available

from hf_encoders.benchmark.choices import BASELINES
from hf_encoders.benchmark.rows import Batch, Pool, original_ids
from hf_encoders.benchmark.settings import Setting
from hf_encoders.compilation import has_operator
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.publishing.files import may_have_pooler


REFERENCE = "transformers sdpa"
OURS = "hf_encoders"
# Further implementations by the names that --against takes.
FLASH = "flash_attention_2"
LEARNING_RATE = 1e-5  # small: all rounds have about the same weights


@dataclass
class Implementation:
    """A model with its batches.

    Args:
        name (`str`): Name in the table.
        model (`PreTrainedModel`): In the mode of the task, on the device; may be shared by several implementations.
        compiled (`nn.Module`, *optional*): What is called in its place.
        optimizer (`Optimizer`, *optional*): Of the model; None for inference.
        batches (`list[Batch]`): The pool of rows in the order of this implementation.
        collate (`Callable`): Makes the tensors of a batch from `Batch.features`, with new masks; for training only.
        attention (`str`, *optional*, defaults to `"sdpa"`): transformers' name of the attention implementation.
        pads (`bool`, *optional*, defaults to `True`): Whether the model computes padding.
    """

    name: str
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer | None
    batches: list[Batch]
    collate: Callable[[list[Any]], dict[str, torch.Tensor]]
    attention: str = "sdpa"
    pads: bool = True
    compiled: nn.Module | None = None

    @property
    def callable(self) -> nn.Module:
        """What computes a batch."""
        return self.model if self.compiled is None else self.compiled

    def select_attention(self) -> None:
        """Set the attention implementation of the model."""
        if self.model.config._attn_implementation != self.attention:
            self.model.set_attn_implementation(self.attention)


def model_class(setting: Setting) -> Any:
    """The Auto class of a setting."""
    if not setting.trains:
        return AutoModel
    return getattr(transformers, setting.training_objective.auto_class)


def stock_config(config: EncoderConfig) -> PreTrainedConfig:
    """Convert a configuration to transformers' own class."""
    own_fields = ("auto_map", "architectures", "model_type", "position_embedding_type", "transformers_version")
    fields = {name: value for name, value in config.to_dict().items() if name not in own_fields}
    return AutoConfig.for_model(config.model_type, **fields)


def modernbert_config(config: EncoderConfig, length: int) -> ModernBertConfig:
    """ModernBERT of the same depth, width, vocabulary and number of weights per layer, with its best settings.

    Its gated feed-forward has three matrices instead of two, so each is two thirds as wide (rounded to 16). It has no
    dropout, which is its default, and predicts masked tokens only (`sparse_prediction`).
    """
    return ModernBertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=16 * max(1, round(config.intermediate_size * 2 / 3 / 16)),
        max_position_embeddings=length,
        sparse_prediction=True,
        **{f"{name}_token_id": config.pad_token_id for name in ("pad", "bos", "eos", "cls", "sep")},
    )


def make_implementations(
    config: EncoderConfig, setting: Setting, pool: Pool, tokenizer: PreTrainedTokenizerBase, against: list[str]
) -> list[Implementation]:
    """Make the implementations of a setting.

    The reference is the first, then come those of `against` (names in `BASELINES`), and this package's is the last.
    """
    torch.manual_seed(setting.seed)
    auto = model_class(setting)
    without_pooler = {"add_pooling_layer": False} if may_have_pooler(auto._model_mapping[type(config)]) else {}
    native = stock_config(config)
    kernel = "sdpa" if auto._model_mapping[type(native)]._supports_sdpa else "eager"  # the best that it has
    stock = auto.from_config(native, attn_implementation=kernel, **without_pooler)
    ours = auto.from_config(config, attn_implementation="sdpa", **without_pooler)
    ours.load_state_dict(stock.state_dict())
    plain, grouped = (
        [replace(batch, features=stock_features(batch, tokenizer, setting.pair_label_name)) for batch in batches]
        for batches in (pool.plain, pool.grouped)
    )
    collate = DataCollatorForLanguageModeling(tokenizer)
    optimizer = prepare(stock, setting)
    reference = REFERENCE.replace("sdpa", kernel)
    implementations = [Implementation(reference, stock, optimizer, plain, collate, attention=kernel)]
    if "eager" in against and kernel != "eager":
        implementations.append(Implementation(BASELINES["eager"], stock, optimizer, plain, collate, attention="eager"))
    if "flash" in against:
        implementations.append(Implementation(BASELINES["flash"], stock, optimizer, plain, collate, attention=FLASH))
    if "grouped" in against:
        name = BASELINES["grouped"].replace("sdpa", kernel)
        implementations.append(Implementation(name, stock, optimizer, grouped, collate, attention=kernel))
    if "modernbert" in against:
        model = auto.from_config(modernbert_config(config, setting.length), attn_implementation="sdpa")
        implementations.append(
            Implementation(
                BASELINES["modernbert"],
                model,
                prepare(model, setting),
                grouped,
                collate,
                attention=best_kernel(setting),
            )
        )
    of_ours = (ours, prepare(ours, setting), pool.plain, pool.collator)
    if "compiled" in against:
        compiled = torch.compile(ours)
        implementations.append(
            Implementation(BASELINES["compiled"], *of_ours, pads=not has_operator(ours), compiled=compiled)
        )
    implementations.append(Implementation(OURS, *of_ours, pads=False))
    return implementations


def can_use_flash(device: str, dtypes: list[str]) -> bool:
    """Whether transformers' classes can run with flash attention: in 16 bits, on CUDA, where it is installed."""
    return device == "cuda" and "float32" not in dtypes and is_flash_attn_2_available()


def best_kernel(setting: Setting) -> str:
    """The attention implementation that ModernBERT is fastest with."""
    return FLASH if can_use_flash(setting.device, [setting.dtype]) else "sdpa"


def prepare(model: PreTrainedModel, setting: Setting) -> torch.optim.Optimizer | None:
    """Set device, data type and mode of a model. Returns its optimizer if it trains."""
    model.to(setting.device)
    if not setting.trains:
        model.to(setting.torch_dtype).eval()
        return None
    model.train()
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def stock_features(batch: Batch, tokenizer: PreTrainedTokenizerBase, label_name: str | None) -> list[dict[str, Any]]:
    """The rows of a batch before masking, for transformers' collator, with special tokens marked."""
    features = []
    for row in batch.rows:
        ids = original_ids(row).tolist()
        feature = {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "special_tokens_mask": tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True),
        }
        feature |= {name: row[name].tolist() for name in ("token_type_ids", label_name) if name in row}
        features.append(feature)
    return features
