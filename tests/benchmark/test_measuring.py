import pytest
import torch

from hf_encoders.benchmark import measuring
from hf_encoders.benchmark.implementations import make_implementations
from hf_encoders.benchmark.measuring import (
    Measurements,
    Turn,
    batches_of_round,
    measure,
    needed_flops,
    run_turn,
)
from hf_encoders.benchmark.report import format_summary, metrics_of, table_of
from hf_encoders.benchmark.rows import make_pool
from hf_encoders.publishing.hardware import peak_on_cpu
from tests.benchmark.tiny import tiny_config, tiny_corpus, tiny_setting


def test_peak_is_the_most_bytes_at_a_time():
    def run() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        second = torch.empty(2_000_000, dtype=torch.uint8)
        del first
        third = torch.empty(500_000, dtype=torch.uint8)
        del second, third

    assert peak_on_cpu(run) == 3_000_000


def test_peak_counts_what_backward_reads_and_not_the_gradients_that_were_there():
    layer = torch.nn.Linear(100, 100, bias=False)
    inputs = torch.ones(50, 100)
    layer.weight.grad = torch.zeros(100, 100)
    # Held at once at the end: the scores, the loss's gradient of them, and the weight's new gradient.
    peak = peak_on_cpu(lambda: layer(inputs).square().sum().backward())
    assert 100 * 100 * 4 < peak < 2 * 100 * 100 * 4 + 5 * 50 * 100 * 4


@pytest.mark.parametrize(("count", "steps", "rounds"), [(50, 4, 7), (3, 4, 2), (20, 20, 3), (1, 2, 2)])
def test_turns_are_spread_over_the_pool(count, steps, rounds):
    setting = tiny_setting(steps=steps, rounds=rounds)
    turns = [batches_of_round(list(range(count)), setting, number) for number in range(rounds)]
    assert all(len(turn) == steps for turn in turns)
    if count >= steps:
        assert all(len(set(turn)) == steps for turn in turns)
        assert all(max(turn) - min(turn) >= count * (steps - 1) // steps - 1 for turn in turns)
    # Neither end of the pool is preferred.
    positions = [position + 0.5 for turn in turns for position in turn]
    assert sum(positions) / len(positions) == pytest.approx(count / 2, abs=0.5)


@pytest.fixture
def implementations(tokenizer):
    setting = tiny_setting()
    pool = make_pool(tiny_corpus(), tokenizer, setting)
    return make_implementations(tiny_config("bert"), setting, pool, tokenizer, ["grouped"])


def test_a_turn_counts_its_real_tokens_and_what_they_need(implementations):
    setting, config = tiny_setting(), tiny_config("bert")
    for implementation in implementations:
        before = [p.detach().clone() for p in implementation.model.parameters()]
        batches = batches_of_round(implementation.batches, setting, 1)
        turn = run_turn(implementation, config, setting, batches)
        assert turn.tokens == sum(int(b.tensors["attention_mask"].sum()) for b in batches)
        assert turn.positions == sum(b.positions if implementation.pads else b.tokens for b in batches)
        assert turn.flops == sum(needed_flops(config, b, setting) for b in batches)
        assert min(turn.collate_seconds, turn.pass_seconds, turn.update_seconds) > 0
        assert any(not torch.equal(p, q) for p, q in zip(implementation.model.parameters(), before, strict=True))


def test_rounds_are_interleaved_and_begin_with_another_implementation_each(implementations, monkeypatch, capsys):
    order = []

    def recorded(implementation, config, setting, batches):
        order.append((implementation.name, len(batches)))
        return Turn()

    monkeypatch.setattr(measuring, "run_turn", recorded)
    found = measure(implementations, tiny_config("bert"), tiny_setting(rounds=3))
    a, b, c = (implementation.name for implementation in implementations)
    assert order[:3] == [(a, 1), (b, 1), (c, 1)]  # warm-up on the largest batch
    assert [name for name, _ in order[3:]] == [a, b, c, b, c, a, c, a, b]
    assert {count for _, count in order[3:]} == {tiny_setting().steps}
    assert "the rounds take at most about 0 s" in capsys.readouterr().err
    assert [len(measurements.turns) for measurements in found] == [3, 3, 3]
    assert all(measurements.activation_bytes > 0 for measurements in found)


def test_memory_leaves_no_gradient_behind(implementations):
    measuring.measure_memory(implementations[0], tiny_setting(), implementations[0].batches[0])
    assert all(p.grad is None for p in implementations[0].model.parameters())


def test_figures_counted_by_hand():
    baseline = [Turn(100, 200, 1000, 1.0, 4.0, 5.0), Turn(100, 200, 1000, 1.0, 5.0, 4.0)]
    turns = [Turn(120, 150, 1200, 0.5, 1.0, 0.5), Turn(80, 150, 800, 0.5, 2.0, 1.5)]
    found = metrics_of(Measurements(turns, 5_000_000), baseline, steps=2, gemm_flops_per_second=4000.0)
    # Forward and backward: 120 / s over 25 / s, then 40 / s over 20 / s.
    assert tuple(found["pass_ratio"].values()) == pytest.approx((3.4, 2.0, 4.8))
    # Whole steps: 60 / s over 10 / s, then 20 / s over 10 / s.
    assert tuple(found["step_ratio"].values()) == pytest.approx((4.0, 2.0, 6.0))
    assert tuple(found["tokens_per_second"].values()) == pytest.approx((80.0, 40.0, 120.0))
    assert tuple(found["pass_milliseconds"].values()) == pytest.approx((750.0, 500.0, 1000.0))
    assert tuple(found["step_milliseconds"].values()) == pytest.approx((1500.0, 1000.0, 2000.0))
    assert tuple(found["mfu"].values()) == pytest.approx((0.2, 0.1, 0.3))
    assert found["padding"] == pytest.approx(1 / 3)
    assert found["activation_megabytes"] == 5


def test_tables_in_one_counted_by_hand():
    """Implementations that a table does not have leave their cell empty."""
    setting, tables = tiny_setting(rounds=1, steps=2), []
    for names in (("transformers sdpa", "transformers eager", "hf_encoders"), ("transformers sdpa", "hf_encoders")):
        turns = {name: Turn(100, 125, 1000, 1.0, 1.0 / (i + 1), 1.0) for i, name in enumerate(names)}
        measured = {name: Measurements([turn], 2_000_000 // (i + 1)) for i, (name, turn) in enumerate(turns.items())}
        tables.append(table_of(setting, measured, 10, 10_000.0))
    assert format_summary(tables).splitlines() == [
        "| | padding | hf_encoders | eager | MFU, stock → this | activations MB, stock → this |",
        "|---|---|---|---|---|---|",
        f"| {setting} | 20% | 3.00 [3.00-3.00] | 2.00 [2.00-2.00] | 10% → 30% | 2 → 1 |",
        f"| {setting} | 20% | 2.00 [2.00-2.00] | | 10% → 20% | 2 → 1 |",
    ]
