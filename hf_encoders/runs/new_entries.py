"""Rows of a model for the entries that `extend_vocabulary` added to its tokenizer."""

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.corpus.padded_size import MULTIPLE, padded_vocab_size


@torch.no_grad()
def add_entries(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Mapping[int, Sequence[int]]
) -> None:
    """Make the rows of new entries the mean of the rows of the pieces that they replace, in place.

    That is for word embeddings, and for an MLM head its decoder, if it has weights of its own, and its bias. Before
    training, a new entry is then about as likely as its pieces were. Rows that pad the vocabulary are 0, and their
    biases 20 below the lowest one, so that they take no probability.

    Args:
        model (`PreTrainedModel`): A model of this package, or of transformers.
        tokenizer (`PreTrainedTokenizerBase`): The extended one. The vocabulary of the model becomes its size, rounded
            up to a multiple of 64, or stays what it is, rounded up alike, if it has more rows.
        pieces (`Mapping[int, Sequence[int]]`): Id of each new entry -> ids of its pieces; of `ExtendedVocabulary`.

    Raises:
        ValueError: If a piece has no row in the model, which is of another tokenizer then.
    """
    rows = model.get_input_embeddings().num_embeddings
    largest = max(number for old in pieces.values() for number in old)
    if largest >= rows:
        raise ValueError(
            f"model has vocab_size={rows}, and the tokenizer pieces up to id {largest}: extend the model's own "
            "tokenizer."
        )
    needed = max(padded_vocab_size(tokenizer), -(-rows // MULTIPLE) * MULTIPLE)
    if needed > rows:
        model.resize_token_embeddings(needed, mean_resizing=False)
    padding = torch.tensor([one for one in range(rows, needed) if one not in pieces], dtype=torch.long)
    decoder = model.get_output_embeddings()
    tables = [model.get_input_embeddings().weight]
    if decoder is not None:
        tables += [decoder.weight, *([] if decoder.bias is None else [decoder.bias])]
    old = [torch.tensor(ids, device=tables[0].device) for ids in pieces.values()]
    for table in {id(table): table for table in tables}.values():
        # Padding must not take probability from tokens, of which a trained model has few that are likely.
        table.index_fill_(0, padding.to(table.device), 0.0 if table.dim() > 1 else float(table[:rows].min()) - 20.0)
        means = torch.stack([table.index_select(0, ids).mean(dim=0) for ids in old])
        table.index_copy_(0, torch.tensor(list(pieces), device=table.device), means)
