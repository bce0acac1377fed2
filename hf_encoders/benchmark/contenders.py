"""What is measured beside what: this package and transformers' own classes, from the same weights.

Every contender runs as its own code has it: transformers' classes compute their loss over all tokens' logits, and
their batches are padded to the longest row and made by `DataCollatorForLanguageModeling`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_encoders.benchmark.rows import Batch, Pool
from hf_encoders.benchmark.settings import Setting, pair_label_name
from hf_encoders.models.encoder_configuration import EncoderConfig


BASELINE = "transformers sdpa"
OURS = "hf_encoders"
# By the names that --against takes; the baseline and this package are always there.
OPPONENTS = {
    "eager": "transformers eager",
    "grouped": "transformers sdpa, by length",
    "modernbert": "transformers ModernBERT, by length",
}
LEARNING_RATE = 1e-5  # small, so that all rounds see about the same weights


@dataclass
class Contender:
    """A model with its batches.

    Args:
        name (`str`): as in the table.
        model: in the mode of the task, on the device; several contenders may share one.
        optimizer (*optional*): of the model; None for inference.
        batches (`list[Batch]`): the pool in this contender's order.
        collate: makes the tensors of a batch anew of `Batch.features`, with masks of its own; used for training only.
        attention (`str`): transformers' name of the kernel.
        pads (`bool`): whether the model computes padding too.
    """

    name: str
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer | None
    batches: list[Batch]
    collate: Callable[[list[Any]], dict[str, torch.Tensor]]
    attention: str = "sdpa"
    pads: bool = True

    def select_attention(self) -> None:
        """Make the model use this contender's kernel."""
        if self.model.config._attn_implementation != self.attention:
            self.model.set_attn_implementation(self.attention)


def model_class(setting: Setting) -> Any:
    """The Auto class of what the setting computes."""
    if not setting.trains:
        return AutoModel
    return getattr(transformers, setting.pretrains.auto_class)


def stock_config(config: EncoderConfig) -> PreTrainedConfig:
    """The same configuration in transformers' own class."""
    own_fields = ("auto_map", "architectures", "model_type", "position_embedding_type", "transformers_version")
    fields = {name: value for name, value in config.to_dict().items() if name not in own_fields}
    return AutoConfig.for_model(config.model_type, **fields)


def modernbert_config(config: EncoderConfig, length: int) -> ModernBertConfig:
    """ModernBERT of the same depth, width, vocabulary and number of weights in a layer, with its own best settings.

    Its gated feed-forward part has three matrices instead of two, so each is two thirds as wide (rounded to 16). It
    drops nothing out, which is its default, and predicts masked tokens only (`sparse_prediction`).
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


def make_contenders(
    config: EncoderConfig, setting: Setting, pool: Pool, tokenizer: PreTrainedTokenizerBase, against: list[str]
) -> list[Contender]:
    """All contenders of a setting.

    Args:
        config (`EncoderConfig`): of this package's model.
        setting (`Setting`): task, objective, type of the arithmetic, seed.
        pool (`Pool`): the rows.
        tokenizer: for transformers' collator.
        against (`list[str]`): names in `OPPONENTS`.

    Returns:
        The baseline first, this package last.
    """
    torch.manual_seed(setting.seed)
    auto = model_class(setting)
    without_pooler = {} if setting.trains else {"add_pooling_layer": False}
    stock = auto.from_config(stock_config(config), attn_implementation="sdpa", **without_pooler)
    ours = auto.from_config(config, attn_implementation="sdpa", **without_pooler)
    ours.load_state_dict(stock.state_dict())
    label_name = pair_label_name(setting)
    plain, grouped = (stock_batches(batches, tokenizer, label_name) for batches in (pool.plain, pool.grouped))
    collate = DataCollatorForLanguageModeling(tokenizer)
    optimizer = prepare(stock, setting)
    contenders = [Contender(BASELINE, stock, optimizer, plain, collate)]
    if "eager" in against:
        contenders.append(Contender(OPPONENTS["eager"], stock, optimizer, plain, collate, attention="eager"))
    if "grouped" in against:
        contenders.append(Contender(OPPONENTS["grouped"], stock, optimizer, grouped, collate))
    if "modernbert" in against:
        modern = auto.from_config(modernbert_config(config, setting.length), attn_implementation="sdpa")
        contenders.append(Contender(OPPONENTS["modernbert"], modern, prepare(modern, setting), grouped, collate))
    contenders.append(Contender(OURS, ours, prepare(ours, setting), pool.plain, pool.collator, pads=False))
    return contenders


def prepare(model: PreTrainedModel, setting: Setting) -> torch.optim.Optimizer | None:
    """Bring a model to its device, type and mode; its optimizer, if it trains."""
    model.to(setting.device)
    if not setting.trains:
        model.to(setting.torch_dtype).eval()
        return None
    model.train()
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def stock_batches(batches: list[Batch], tokenizer: PreTrainedTokenizerBase, label_name: str | None) -> list[Batch]:
    """The same batches for transformers' collator: a mapping of lists a row, as a data set gives them.

    Special tokens are marked beforehand, which spares it time and is what transformers' examples do. It
    draws no pairs: they are in the rows.
    """
    return [replace(batch, features=stock_features(batch, tokenizer, label_name)) for batch in batches]


def stock_features(batch: Batch, tokenizer: PreTrainedTokenizerBase, label_name: str | None) -> list[dict[str, Any]]:
    """The rows of a batch before masking."""
    features = []
    for row in batch.rows:
        ids = row.original_ids.tolist()
        feature = {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "special_tokens_mask": tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True),
        }
        if row.token_type_ids is not None:
            feature["token_type_ids"] = row.token_type_ids.tolist()
        if label_name is not None:
            feature[label_name] = row.pair_label
        features.append(feature)
    return features
