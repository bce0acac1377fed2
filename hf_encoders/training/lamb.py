"""ALBERT's LAMB, on top of `pytorch_optimizer`."""

import math
from typing import Any

from pytorch_optimizer import Lamb


class AlbertLamb(Lamb):
    """LAMB (You et al. 2019, https://arxiv.org/abs/1904.00962) as in google-research/albert, `lamb_optimizer.py`.

    Differences from `pytorch_optimizer.Lamb`, whose arguments it has: weight decay is part of the update whose norm is
    the trust ratio's denominator; weight norms are not clamped (to 10 there); there is no bias correction; and groups
    with `weight_decay=0` (biases, LayerNorms) take Adam's step without a trust ratio.
    """

    clamp = math.inf
    PUBLISHED_NAME = "LAMB"

    def __init__(self, params: Any, **options: Any):
        groups = list(params)
        if groups and not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        decay = options.get("weight_decay", 0.0)
        groups = [{**group, "adam": group.get("weight_decay", decay) == 0} for group in groups]
        # `adam_debias` also omits the correction of the first moment, which would make the first steps ten times as
        # large.
        super().__init__(groups, weight_decouple=False, adam_debias=True, **options)
