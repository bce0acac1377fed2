"""What data sets give to collators: sentences of one document and the key of the example's random draws."""

from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from hf_encoders.data.sentence_store import SentenceStore


class Example(NamedTuple):
    """One pre-training example before anything random has happened to it.

    Not a dict, because Trainer strips the keys of a dict that the model's `forward` does not know.

    Args:
        sentences (`list[np.ndarray]`): token ids of consecutive sentences, without special tokens.
        key (`int`): from `example_keys`; decides every draw for this example.
        document (`int`): index of the document the sentences are from, -1 if they are from several or it is not known.
        target_tokens (`int`): how many tokens the example should have, special tokens not counted.
        source (`SentenceStore`, *optional*): the corpus that `document` is an index of; random segments come from it.
    """

    sentences: list[np.ndarray]
    key: int
    document: int
    target_tokens: int
    source: SentenceStore | None = None


class EpochDataset(Dataset):
    """A data set whose examples are drawn anew every epoch.

    Somebody has to say which epoch it is: `hf_encoders.training.EpochCallback` does under `Trainer`. Evaluation, and
    other uses without epochs, take `redraw=False`; a loop of one's own calls `set_epoch`.

    Args:
        seed (`int`): seed of every draw.
        redraw (`bool`): False draws every epoch what epoch 0 draws; for evaluation, so that figures can be compared.
    """

    def __init__(self, seed: int, redraw: bool):
        self.seed = seed
        self.redraw = redraw
        # In shared memory, so that workers that live longer than an epoch see it change. -1: not announced yet.
        self._announced = torch.full((), -1, dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Announce the epoch, from 0."""
        self._announced.fill_(int(epoch))

    @property
    def epoch(self) -> int:
        """The epoch whose draws examples get.

        Raises:
            ValueError: if nobody announced it. `Trainer` alone does so in some runs only (not after a restart, not in
                several processes); going on would silently draw epoch 0 again and again.
        """
        if not self.redraw:
            return 0
        announced = int(self._announced)
        if announced < 0:
            raise ValueError(
                "epoch was not announced to the data set, and every epoch would draw the same examples: add "
                "hf_encoders.training.EpochCallback() to the Trainer's callbacks (PreTrainingTrainer has it), call "
                "set_epoch(0) in a loop of your own, or pass redraw=False to the data set for evaluation."
            )
        return announced
