"""A training step of XLNet here beside transformers' `XLNetLMHeadModel` with the same targets, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.xlnet_step --hidden_size 384 --layers 6 --length 128 --rows 16

Both have the same weights, dropout 0.1 (`--dropout`), the same rows, orders and targets, which the data collator
makes of random tokens; transformers' gets them as `perm_mask` and `target_mapping`. A step is forward, backward and
AdamW's update. Rows are full, `<sep>` in their middle; nothing is padding. Prints seconds of a step of both (median
and range over the rounds) and their ratio in each round, after a check that both losses are equal without dropout.
"""

import argparse

import torch
import transformers

from benchmarks.distillation_step import compare_steps, step_of
from hf_encoders import DataCollatorForPermutationLM, HfeXLNetConfig, HfeXLNetLMHeadModel
from hf_encoders.objectives.plm import with_matrices
from tests.hub.tiny_checkpoints import FAMILIES, make_tokenizer


def make_batch(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Rows of the collator, none of them reversed, since transformers' reverses half of a batch by its place."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(next(family for family in FAMILIES if family.name == "xlnet"))
    ids = torch.randint(9, len(tokenizer), (options.rows, options.length))
    ids[:, options.length // 2] = ids[:, -2] = tokenizer.sep_token_id
    ids[:, -1] = tokenizer.cls_token_id
    types = (torch.arange(options.length) > options.length // 2).long()
    types[-1] = 2
    rows = [{"input_ids": row.tolist(), "token_type_ids": types.tolist()} for row in ids]
    batch = DataCollatorForPermutationLM(tokenizer, reversed_share=0.0)(rows)
    # Over the whole vocabulary, which only the projection and the embeddings notice.
    shift = torch.randint(0, options.vocab_size - len(tokenizer), ids.shape)
    batch["input_ids"] = batch["input_ids"] + shift
    batch["labels"] = batch["labels"].where(batch["labels"] < 0, batch["input_ids"])
    return batch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden_size", 384), ("layers", 6), ("length", 128), ("rows", 16), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    width = options.hidden_size
    config = HfeXLNetConfig(
        vocab_size=options.vocab_size, d_model=width, n_layer=options.layers, n_head=max(width // 64, 1),
        d_inner=4 * width, dropout=options.dropout, use_mems_eval=False,
    )  # fmt: skip
    ours = HfeXLNetLMHeadModel(config)
    stock = transformers.XLNetLMHeadModel(transformers.XLNetConfig.from_dict(config.to_dict()))
    stock.load_state_dict(ours.state_dict())
    batch = make_batch(options)
    of_stock = with_matrices(batch)
    del batch["is_reversed"], batch["attention_mask"], of_stock["attention_mask"]  # rows are full
    batch, of_stock = ({n: v.to(options.device) for n, v in inputs.items()} for inputs in (batch, of_stock))
    ours, stock = (model.to(options.device).eval() for model in (ours, stock))
    with torch.no_grad():
        difference = (ours(**batch).loss - stock(**of_stock).loss).abs().item()
    assert difference < 1e-4, difference
    targets = int((batch["labels"] >= 0).sum())
    print(
        f"{options.device}, {torch.get_num_threads()} thread(s), {batch['labels'].numel()} tokens, {targets} targets"
    )
    ours.train(), stock.train()
    steps = (
        step_of(ours, lambda: ours(**batch).loss),
        step_of(stock, lambda: stock(**of_stock).loss),
    )
    compare_steps(*steps, options.rounds)


if __name__ == "__main__":
    main()
