"""LAMB as ALBERT was trained with it, on top of `pytorch_optimizer`."""

import math
from typing import Any

from pytorch_optimizer import Lamb


class AlbertLamb(Lamb):
    """LAMB (You et al. 2019, https://arxiv.org/abs/1904.00962) as in google-research/albert, `lamb_optimizer.py`.

    Weight decay is part of the update whose norm the trust ratio has in its denominator; weights of any norm count
    (the library stops at 10); no bias correction; and parameters without weight decay (biases, LayerNorms), the
    groups with `weight_decay=0`, take Adam's step without a ratio.

    Arguments as in `pytorch_optimizer.Lamb`.
    """

    clamp = math.inf
    PUBLISHED_NAME = "LAMB"

    def __init__(self, params: Any, **options: Any):
        groups = list(params)
        if groups and not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        decay = options.get("weight_decay", 0.0)
        groups = [{**group, "adam": group.get("weight_decay", decay) == 0} for group in groups]
        # `adam_debias` leaves out the correction of the first moment too, which would make the first steps ten times
        # as long.
        super().__init__(groups, weight_decouple=False, adam_debias=True, **options)
