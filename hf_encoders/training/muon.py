"""Muon (https://kellerjordan.github.io/posts/muon/) for the matrices of layers, AdamW for all other weights."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from transformers import Trainer, TrainingArguments

from hf_encoders.training.distributed import requests_sharding


class Muon(Optimizer):
    """One optimizer of `torch.optim.Muon` and `torch.optim.AdamW`, each for groups of its own.

    Updates of matrices are as large as AdamW's (`match_rms_adamw`: Liu et al. 2025, section 2.2,
    https://arxiv.org/abs/2502.16982), so both use one learning rate and one weight decay.

    Args:
        params (iterable of `dict`): Groups. `parts` above 0 means Muon: as many equal blocks of rows of each matrix
            are orthogonalised by themselves; 0 means AdamW.
        lr (`float`), betas (`tuple[float, float]`), eps (`float`): Learning rate of all; the others are AdamW's.

    Raises:
        ValueError: Without a group for Muon.
    """

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "parts": 0})
        if not any(group["parts"] for group in self.param_groups):
            raise ValueError("params: no group has parts above 0, so all would be AdamW's: use set_muon_groups.")
        self.blocks: list[list[nn.Parameter]] = []
        self.inner: list[Optimizer] = []
        for group in self.param_groups:
            blocks = [nn.Parameter(rows) for weight in group["params"] for rows in blocks_of(weight, group["parts"])]
            self.blocks.append(blocks)
            if blocks:
                self.inner.append(torch.optim.Muon(blocks, lr=lr, adjust_lr_fn="match_rms_adamw"))
            else:
                self.inner.append(AdamW(group["params"], lr=lr, betas=betas, eps=eps, fused=True))

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """Update all weights that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, blocks, inner in zip(self.param_groups, self.blocks, self.inner, strict=True):
            inner.param_groups[0].update(lr=group["lr"], weight_decay=group["weight_decay"])
            rows = iter(blocks)
            for weight in group["params"] if blocks else ():
                missing = [None] * group["parts"]
                gradients = missing if weight.grad is None else blocks_of(weight.grad, group["parts"])
                # A weight may have moved to a device since.
                for data, gradient in zip(blocks_of(weight, group["parts"]), gradients, strict=True):
                    block = next(rows)
                    block.data, block.grad = data, gradient
            inner.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the groups, and the state of each group's optimizer."""
        states = {number: inner.state_dict()["state"] for number, inner in enumerate(self.inner)}
        return {"state": states, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        for number, (group, inner) in enumerate(zip(self.param_groups, self.inner, strict=True)):
            saved = state_dict["param_groups"][number]
            group.update({name: value for name, value in saved.items() if name != "params"})
            groups = inner.state_dict()["param_groups"]
            inner.load_state_dict({"state": state_dict["state"][number], "param_groups": groups})


def blocks_of(matrix: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
    """Return views of equal blocks of rows, of two dimensions each; none for 0 parts."""
    return matrix.detach().flatten(1).chunk(parts) if parts else ()


def parts_of_matrices(model: nn.Module) -> dict[str, int]:
    """Return the matrices of a model's layers by name, and of how many matrices each consists.

    Tables, biases, norms and heads are not among them. A module with several matrices in one says so by `fused_parts`.

    >>> from hf_encoders import HfeModernBertConfig, HfeModernBertForMaskedLM
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = HfeModernBertForMaskedLM(HfeModernBertConfig(vocab_size=64, **sizes))
    >>> for name, parts in parts_of_matrices(model).items():
    ...     print(name, parts)
    model.layers.0.attn.Wqkv.weight 3
    model.layers.0.attn.Wo.weight 1
    model.layers.0.mlp.Wi.weight 2
    model.layers.0.mlp.Wo.weight 1
    """
    parts = {}
    for prefix, module in model.named_modules():
        for name, weight in module.named_parameters(prefix, recurse=False):
            is_of_layer = any(step.isdigit() for step in name.split("."))
            # XLNet's biases of attention and its table of segments have two and more dimensions.
            if is_of_layer and weight.dim() > 1 and "bias" not in name and "embed" not in name:
                parts[name] = getattr(module, "fused_parts", 1)
    return parts


def muon(arguments: TrainingArguments) -> tuple[type, dict[str, Any]]:
    """Return the class and options of Muon; `set_muon_groups` adds the parameters of a model.

    Raises:
        ValueError: with FSDP, whose shards are no whole matrices, and for torch before 2.9.
    """
    if requests_sharding(arguments):
        raise ValueError("optimizer muon does not run with fsdp, whose shards are no whole matrices: use DDP.")
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"optimizer muon needs torch 2.9 or later, and this is {torch.__version__}: upgrade it.")
    betas = (arguments.adam_beta1, arguments.adam_beta2)
    return Muon, {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}


def set_muon_groups(trainer: Trainer) -> None:
    """Divide the parameters of the trainer's model into those of Muon and those of AdamW, if Muon trains it."""
    optimizer, options = trainer.optimizer_cls_and_kwargs or (None, {})
    if optimizer is not Muon:
        return
    parts, decayed = parts_of_matrices(trainer.model), set(trainer.get_decay_parameter_names(trainer.model))
    groups: dict[tuple[int, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trainer.model.named_parameters():
        if parameter.requires_grad:
            groups[parts.get(name, 0), name in decayed].append(parameter)
    parameters = [
        {"params": group, "parts": count, "weight_decay": trainer.args.weight_decay if is_decayed else 0.0}
        for (count, is_decayed), group in groups.items()
    ]
    trainer.optimizer_cls_and_kwargs = optimizer, {**options, "params": parameters}
