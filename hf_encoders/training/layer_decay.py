"""Learning rates that fall from the last layer to the embeddings.

A layer's rate is `layer_decay` times that of the layer above it; heads and pooler have the whole rate, embeddings the
lowest. Sources: Howard and Ruder 2018 (https://arxiv.org/abs/1801.06146, section 3.2), and `_get_layer_lrs` in
`model/optimization.py` of google-research/electra, whose last layer is two steps below the heads instead of one; it
fine-tunes with 0.8, large models with 0.9.
"""

import re
from collections import defaultdict

from torch import nn
from transformers import PreTrainedModel, Trainer

from hf_encoders.training.distributed import requests_sharding


NUMBER = re.compile(r"(?:^|\.)(\d+)\.")
ABOVE_LAYERS = ("pooler", "sequence_summary")
OWN_GROUPS = ("params", "model", "optimizer_dict")  # arguments of optimizers that group parameters themselves


def check_layer_decay(layer_decay: float, option: str) -> None:
    """Raise ValueError unless it is in (0, 1]."""
    if not 0 < layer_decay <= 1:
        raise ValueError(f"{option} {layer_decay}: it must be in (0, 1]; 1 is one rate for all, ELECTRA's is 0.8.")


def set_layer_decay(trainer: Trainer, layer_decay: float) -> None:
    """Give each layer its learning rate, before the trainer creates its optimizer; 1 changes nothing.

    Raises:
        ValueError: with FSDP, and for an optimizer that groups parameters itself.
    """
    if layer_decay == 1:
        return
    if requests_sharding(trainer.args):
        raise ValueError("layer decay needs the parameters before fsdp shards them: leave one of the two out.")
    model = trainer.model
    optimizer, options = trainer.optimizer_cls_and_kwargs or Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if any(name in options for name in OWN_GROUPS):
        raise ValueError(f"layer decay does not go with optimizer {trainer.args.optim}: use adamw, or leave it out.")
    shares, decayed = rate_shares(model, layer_decay), set(trainer.get_decay_parameter_names(model))
    groups: dict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[shares[name], name in decayed].append(parameter)
    parameters = [
        {
            "params": group,
            "lr": share * trainer.args.learning_rate,
            "weight_decay": trainer.args.weight_decay if is_decayed else 0.0,
        }
        # The first group's rate is what is logged: that of the heads, as the run was given it.
        for (share, is_decayed), group in sorted(groups.items(), key=lambda item: -item[0][0])
    ]
    trainer.optimizer_cls_and_kwargs = optimizer, {**options, "params": parameters}


def rate_shares(model: PreTrainedModel, layer_decay: float) -> dict[str, float]:
    """The share of the learning rate that each parameter has, by name.

    A parameter's layer is the first number in its name, which is the same for all parameters of a layer, and for all
    layers that share their weights (ALBERT).

    >>> from hf_encoders import HfeBertConfig, HfeBertForMaskedLM
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    >>> shares = rate_shares(HfeBertForMaskedLM(HfeBertConfig(vocab_size=16, **sizes)), 0.5)
    >>> for name in ("bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.weight"):
    ...     print(shares[name])
    0.125
    0.25
    >>> shares["bert.encoder.layer.1.output.dense.weight"], shares["cls.predictions.bias"]
    (0.5, 1.0)
    """
    prefix = f"{model.base_model_prefix}." if model is not model.base_model else ""
    layers = {}
    for name, _ in model.named_parameters():
        own = name.removeprefix(prefix)
        number = NUMBER.search(own)
        if not name.startswith(prefix) or own.startswith(ABOVE_LAYERS):
            layers[name] = None
        else:
            layers[name] = int(number[1]) if number else -1
    top = 1 + max((layer for layer in layers.values() if layer is not None), default=-1)
    return {name: 1.0 if layer is None else layer_decay ** (top - layer) for name, layer in layers.items()}
