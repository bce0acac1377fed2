"""A training step of DeBERTa here beside transformers' `DebertaV2ForMaskedLM`, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.deberta_step --hidden_size 384 --layers 4 --length 128 --rows 16 --padding

Both have the same weights of v3's shape, dropout 0.1, and the same rows of random tokens, 15 % of them predicted; with
`--padding` of lengths from an eighth of the longest on. A step is forward, backward and AdamW's update. Prints seconds
of a step of both (median and range over the rounds) and their ratio in each round, after a check that both losses are
equal without dropout.
"""

import argparse

import torch
import transformers

from benchmarks.distillation_step import compare_steps, step_of
from hf_encoders import HfeDebertaV2Config, HfeDebertaV2ForMaskedLM


def make_batch(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Rows of random tokens."""
    torch.manual_seed(0)
    shape = options.rows, options.length
    ids = torch.randint(5, options.vocab_size, shape)
    shares = torch.linspace(0.125 if options.padding else 1.0, 1.0, options.rows)
    mask = torch.arange(options.length) < (shares * options.length).long()[:, None]
    labels = ids.where((torch.rand(shape) < 0.15) & mask, torch.tensor(-100))
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden_size", 384), ("layers", 4), ("length", 128), ("rows", 16), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab_size", type=int, default=8000)
    parser.add_argument("--padding", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    width = options.hidden_size
    config = HfeDebertaV2Config(
        vocab_size=options.vocab_size, hidden_size=width, num_hidden_layers=options.layers,
        num_attention_heads=max(width // 64, 1), intermediate_size=4 * width,
    )  # fmt: skip
    ours = HfeDebertaV2ForMaskedLM(config)
    stock = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config.from_dict(config.to_dict()))
    stock.load_state_dict(ours.state_dict())
    batch = make_batch(options)
    with torch.no_grad():
        difference = (ours.eval()(**batch).loss - stock.eval()(**batch).loss).abs().item()
    assert difference < 1e-4, difference
    print(f"{torch.get_num_threads()} thread(s), padding {100 * (batch['attention_mask'] == 0).float().mean():.0f} %")

    def loss_of(model: torch.nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            return model(**batch).loss

    steps = [step_of(model.train(), lambda model=model: loss_of(model)) for model in (ours, stock)]
    compare_steps(*steps, options.rounds)


if __name__ == "__main__":
    main()
