"""Compares the outputs of two models on rows of random tokens."""

from itertools import permutations
from typing import NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from hf_encoders.models.encoder_configuration import EncoderConfig


# fp32 rounds to 6e-8; sums in another order over a dozen layers differ by up to 1e-5 of the largest output, a wrong
# weight or layer by 1e-2 and more.
FP32_TOLERANCE = 1e-4
CHOICES = "AutoModelForMultipleChoice"
# Outputs of shape `(B, T)`. Other two-dimensional outputs are of whole rows.
ANSWERS = ("start_logits", "end_logits")
# From this longest row on there is none, and a row is long enough to probe with.
UNLIMITED, LONG_ROW = 2**20, 512


class Difference(NamedTuple):
    """Difference between the outputs of two models at real tokens.

    Attributes:
        largest (`float`): Largest absolute difference.
        scale (`float`): Largest absolute output, at least 1.
        of_rms (`float`): Root mean square of the differences over that of the outputs.
    """

    largest: float
    scale: float
    of_rms: float

    def is_within(self, tolerance: float) -> bool:
        """Whether the largest difference is at most `tolerance` times the scale; False for NaN."""
        return self.largest <= tolerance * self.scale


def probe_batch(
    config: EncoderConfig, auto_class: str, longest_row: int, lengths: tuple[int, ...] = (13, 5, 8)
) -> dict[str, torch.Tensor]:
    """Padded rows of random ids: `input_ids`, `attention_mask`, and the two halves by `token_type_ids` and the like.

    Lengths are cut to `longest_row`, or `LONG_ROW` where there is no longest. Padding is on the side where the
    family's tokenizer puts it, since transformers' XLNet summarises the last column. For multiple choice, the rows are
    the choices of one example, `(1, rows, T)`.
    """
    generator = torch.Generator().manual_seed(0)
    real = torch.tensor(lengths).clamp(max=longest_row if longest_row < UNLIMITED else LONG_ROW)
    shape = (len(real), int(real.max()))
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    if config.pad_token_id is not None and config.vocab_size > 1:
        ids = torch.where(ids == config.pad_token_id, (config.pad_token_id + 1) % config.vocab_size, ids)
    columns = torch.arange(shape[1]).expand(shape)
    if getattr(transformers, config.TOKENIZER_CLASS).padding_side == "left":
        columns = columns - (shape[1] - real[:, None])
    mask = ((columns >= 0) & (columns < real[:, None])).long()
    padding = 0 if config.pad_token_id is None else config.pad_token_id
    batch = {"input_ids": ids.masked_fill(mask == 0, padding), "attention_mask": mask}
    second_half = columns >= real[:, None] // 2
    for name, size in config.extra_ids.items():
        if size > 1:
            batch[name] = (second_half & (mask == 1)).long()
    if auto_class == CHOICES:
        return {name: value[None] for name, value in batch.items()}
    return batch


def outputs_of(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that a model returns, by field, in float32 on the CPU."""
    with torch.no_grad():
        outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
    return {name: value.float().cpu() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def difference(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], attention_mask: torch.Tensor
) -> Difference:
    """Compare outputs at real tokens.

    Raises:
        ValueError: If names or shapes differ.
    """
    shapes = [{name: tuple(value.shape) for name, value in outputs.items()} for outputs in (found, expected)]
    if shapes[0] != shapes[1] or not expected:
        raise ValueError(f"the outputs are {shapes[0]}, but should be {shapes[1]}.")
    is_real = attention_mask.bool()
    values, differences = [], []
    for name, value in expected.items():
        pair = (value, found[name])
        # A discriminator has one score per token: at padding all are zero here, and none in transformers. A classifier
        # may have as many scores as there are tokens.
        at_padding = [one[~is_real] for one in pair] if value.shape == is_real.shape else []
        is_of_tokens = any(not one.any() and other.all() for one, other in permutations(at_padding, 2))
        if value.shape[:2] == is_real.shape and (value.ndim > 2 or name in ANSWERS or is_of_tokens):
            pair = (value[is_real], found[name][is_real])
        values.append(pair[0].flatten())
        differences.append((pair[1] - pair[0]).flatten())
    all_values, all_differences = torch.cat(values), torch.cat(differences)
    rms = all_values.square().mean().sqrt().item()
    return Difference(
        largest=all_differences.abs().max().item(),
        scale=max(1.0, all_values.abs().max().item()),
        of_rms=all_differences.square().mean().sqrt().item() / max(rms, 1e-30),
    )
