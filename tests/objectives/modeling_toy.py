"""A family from outside of the package: its model, with a head that no family of the package has."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_encoders.models.encoder_losses import ObjectiveSums, classification_sums
from tests.objectives.configuration_toy import ToyConfig


@dataclass
class ToyOutput(ModelOutput):
    """Sums of both loss terms, and their plain sum as the stock Trainer would take it."""

    loss: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    odd: ObjectiveSums | None = None


class ToyForPreTraining(PreTrainedModel):
    """Predicts masked tokens, and whether the first token's id is odd."""

    config_class = ToyConfig
    loss_terms = {"mlm": "labels", "odd": "odd_label"}

    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mixer = nn.Linear(config.hidden_size, config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.odd = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def get_output_embeddings(self):
        return self.decoder

    def longest_row(self) -> int:
        return self.config.max_position_embeddings

    def forward(self, input_ids, labels=None, odd_label=None, attention_mask=None, cu_seq_lens_q=None, **kwargs):
        hidden = self.mixer(self.embeddings(input_ids))
        first = hidden[:, 1] if cu_seq_lens_q is None else hidden[0, cu_seq_lens_q[:-1] + 1]
        mlm = classification_sums(self.decoder(hidden).flatten(0, 1), labels.flatten())
        odd = classification_sums(self.odd(first), odd_label)
        return ToyOutput(mlm.nll / mlm.count.clamp(min=1) + odd.nll / odd.count.clamp(min=1), mlm, odd)
