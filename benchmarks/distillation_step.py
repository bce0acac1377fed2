"""A training step of distillation here beside the plain composition of transformers' classes, interleaved.

    OMP_NUM_THREADS=1 python -m benchmarks.distillation_step --hidden_size 384 --length 128 --rows 16

Teacher (BERT, 12 layers) and student (DistilBERT, 6) have the same weights on both sides; dropout is on in the
student. The plain composition is that of `distiller.py` of DistilBERT's original code: both models on padded rows,
scores of every token, `masked_select` of those that count, torch's `KLDivLoss`, `CrossEntropyLoss` and
`CosineEmbeddingLoss`, the teacher without gradients. A step is forward, backward and AdamW's update.

Rows are of 20 % to 100 % of `--length` tokens, evenly distributed; `--full` makes all of them full, so that padding
plays no part. Prints seconds of a step of both (median and range over the rounds) and their ratio in each round.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from torch import nn

from hf_encoders import HfeBertConfig, HfeBertForMaskedLM, student_from, with_teacher


TEMPERATURE, WEIGHTS = 2.0, (5.0, 2.0, 1.0)


def make_batch(options: argparse.Namespace, vocab_size: int) -> dict[str, torch.Tensor]:
    """Padded rows; 15 % of the tokens are predicted."""
    torch.manual_seed(0)
    shape = (options.rows, options.length)
    lengths = torch.linspace(0.2 * options.length, options.length, options.rows).long()
    lengths = torch.full_like(lengths, options.length) if options.full else lengths
    mask = (torch.arange(options.length)[None] < lengths[:, None]).long()
    ids = torch.randint(5, vocab_size, shape) * mask
    labels = ids.masked_fill((torch.rand(shape) >= 0.15) | (mask == 0), -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def plain_loss(
    student: nn.Module, teacher: nn.Module, batch: dict[str, torch.Tensor], soft_targets: str
) -> torch.Tensor:
    """`Distiller.step` of the original code, without its causal branch."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    outputs = student(**inputs, output_hidden_states=True)
    with torch.no_grad():
        targets = teacher(**inputs, output_hidden_states=True)
    is_real, is_predicted = batch["attention_mask"].bool(), batch["labels"] > -1
    mask = (is_predicted if soft_targets == "predicted" else is_real)[..., None].expand_as(outputs.logits)
    size = outputs.logits.size(-1)
    scores, wanted = (output.logits.masked_select(mask).view(-1, size) for output in (outputs, targets))
    soft = nn.KLDivLoss(reduction="batchmean")(
        (scores / TEMPERATURE).log_softmax(-1), (wanted / TEMPERATURE).softmax(-1)
    )
    hard = nn.functional.cross_entropy(outputs.logits.view(-1, size), batch["labels"].view(-1))
    width = outputs.hidden_states[-1].size(-1)
    real = is_real[..., None].expand_as(outputs.hidden_states[-1])
    hidden_states = (outputs.hidden_states[-1], targets.hidden_states[-1])
    states, of_teacher = (states.masked_select(real).view(-1, width) for states in hidden_states)
    cosine = nn.CosineEmbeddingLoss()(states, of_teacher, states.new_ones(len(states)))
    return WEIGHTS[0] * TEMPERATURE**2 * soft + WEIGHTS[1] * hard + WEIGHTS[2] * cosine


def step_of(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], float]:
    """A step; returns its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    return step


def compare_steps(here: Callable[[], float], transformers: Callable[[], float], num_rounds: int) -> None:
    """Print the seconds of two steps that are taken in turns, and their ratio in each round, after one to warm up."""
    steps = {"here": here, "transformers": transformers}
    for step in steps.values():
        step()
    rounds = [[step() for step in steps.values()] for _ in range(num_rounds)]
    for name, seconds in zip(steps, zip(*rounds, strict=True), strict=True):
        print(f"{name}: {statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    ratios = sorted(stock_time / time_here for time_here, stock_time in rounds)
    print(f"ratio: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden_size", 384), ("layers", 12), ("length", 128), ("rows", 16), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    width = options.hidden_size
    sizes = {"hidden_size": width, "num_hidden_layers": options.layers, "intermediate_size": 4 * width}
    config = HfeBertConfig(**sizes, num_attention_heads=max(width // 64, 1), vocab_size=options.vocab_size)
    batch = {name: value.to(options.device) for name, value in make_batch(options, options.vocab_size).items()}
    print(f"{options.device}, {torch.get_num_threads()} thread(s), {int(batch['attention_mask'].sum())} tokens")
    for soft_targets in ("predicted", "all"):
        torch.manual_seed(0)
        teacher = HfeBertForMaskedLM(config)
        student = student_from(teacher)
        stock = []
        for ours, kind in ((student, transformers.DistilBertForMaskedLM), (teacher, transformers.BertForMaskedLM)):
            copy = kind(kind.config_class.from_dict(ours.config.to_dict()))
            copy.load_state_dict(ours.state_dict())
            stock.append(copy.to(options.device))
        plain, plain_teacher = stock[0].train(), stock[1].eval()
        with_teacher(student, teacher, soft_targets=soft_targets).to(options.device).train()
        steps = (
            step_of(student, lambda model=student: model(**batch).loss),
            step_of(plain, lambda pair=(plain, plain_teacher), tokens=soft_targets: plain_loss(*pair, batch, tokens)),
        )
        same = (
            student.eval()(**batch).loss.item() - plain_loss(plain.eval(), plain_teacher, batch, soft_targets).item()
        )
        assert abs(same) < 1e-2, same
        student.train(), plain.train()
        for step in steps:
            step()
        rounds = [tuple(step() for step in steps) for _ in range(options.rounds)]
        ratios = [stock_time / time_here for time_here, stock_time in rounds]
        shown = []
        for name, seconds in zip(("here", "plain composition"), zip(*rounds, strict=True), strict=True):
            low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
            shown.append(f"{name} {middle:.3f} s ({low:.3f} to {high:.3f})")
        print(f"soft targets {soft_targets}: {', '.join(shown)}")
        print(
            f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of {len(ratios)} rounds"
        )


if __name__ == "__main__":
    main()
