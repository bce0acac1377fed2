import argparse
import functools
import json
import re

import numpy as np
import pytest
import torch

from hf_encoders import benchmark as work
from hf_encoders.benchmark import Implementation, Rows, Setting, batches_of_round, measure, metrics_of, run_turn
from hf_encoders.cli import main
from hf_encoders.commands import benchmark as command
from hf_encoders.publishing.hardware import GEMM_SIDES, forward_flops
from hf_encoders.registration import config_class_of


DOCUMENTS = [[" ".join(f"w{5 + (i * j) % 50}" for j in range(3 + i % 9)) for i in range(d, d + 4)] for d in range(30)]
TINY = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 37, "vocab_size": 60}


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setitem(GEMM_SIDES, "cpu", 64)
    monkeypatch.setitem(command.SIZES, "small", (2, 24, 3, {"cpu": (4, 2), "cuda": (4, 2)}))
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    return file


def benchmark(text, *arguments: str) -> int:
    effort = ["--length", "16", "--vocab-size", "300", "--rounds", "2", "--steps", "1"]
    return main(["benchmark", "--text", str(text), *effort, *map(str, arguments)])


def setting_of(family: str = "bert", **changes) -> Setting:
    fields = {"size": "tiny", "examples": "sentences", "length": 9, "batch_size": 5, "task": "pretraining"}
    fields |= {"dtype": "float32", "dropout": 0.0, "rounds": 2, "steps": 2, "device": "cpu", "seed": 0}
    return Setting(family=family, **{**fields, **changes})


def config_of(family: str):
    return config_class_of(family)(**TINY, num_hidden_layers=2, hidden_dropout_prob=0, attention_probs_dropout_prob=0)


def implementations_of(setting: Setting, tokenizer) -> tuple[list[Implementation], Rows]:
    rows = Rows(DOCUMENTS, tokenizer, setting)
    against = ["eager", "grouped", "modernbert"]
    return work.make_implementations(config_of(setting.family), setting, rows, tokenizer, against), rows


@pytest.mark.parametrize(
    ("family", "tables", "arguments"),
    [
        ("bert", 4, ("--task", "pretraining", "inference", "--dtype", "float32", "bfloat16")),
        ("roberta", 4, ("--task", "pretraining", "inference", "--examples", "full", "documents")),
        ("albert", 1, ("--task", "inference", "--against", "modernbert")),
        ("xlnet", 1, ("--task", "inference", "--against")),
    ],
)
def test_tables_on_standard_output_and_all_rounds_as_json(text, tmp_path, capsys, family, tables, arguments):
    assert benchmark(text, "--family", family, *arguments, "--json", tmp_path / "out.json") == 0
    printed, written = capsys.readouterr(), json.loads((tmp_path / "out.json").read_text())
    output = printed.out
    bars = re.findall(r"100%\S* (\d+)/(\d+) ", printed.err)  # of batches, of which a turn has several
    assert len(bars) >= tables and all(done == total for done, total in bars)
    assert written["machine"]["threads"] and written["machine"]["cpu"] and written["machine"]["transformers"]
    assert len(written["tables"]) == tables
    for table in written["tables"]:
        lines, trains = table["lines"], table["setting"]["task"] == "pretraining"
        assert table["gemm_flops_per_second"] > 0 and table["parameters"] > 0
        assert lines[0]["name"].startswith("transformers ") and lines[-1]["name"] == "hf_encoders"
        assert set(lines[0]["pass_ratio"].values()) == {1.0} and lines[-1]["padding"] == 0
        for line in lines:
            assert line["name"] in output and len(line["rounds"]) == 2
            assert line["pass_ratio"]["least"] <= line["pass_ratio"]["median"] <= line["pass_ratio"]["greatest"]
            assert line["mfu"]["median"] > 0 and line["activation_megabytes"] > 0
            assert all((turn["update_seconds"] > 0) == trains for turn in line["rounds"])


def test_compiled_is_measured_beside_eager_in_every_setting(text, capsys, monkeypatch):
    """Dynamo alone, without a compiler; however many graphs torch keeps."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=keep))
    with torch._dynamo.config.patch(recompile_limit=1):
        arguments = ("--against", "compiled", "--task", "inference", "--dtype", "float32", "bfloat16")
        assert benchmark(text, *arguments) == 0
    assert capsys.readouterr().out.count("\nhf_encoders compiled  ") == len(graphs) == 2


def settings_of(monkeypatch, *arguments: str) -> tuple[list[str], argparse.Namespace]:
    """Return settings and options where there is CUDA."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(arguments)
    return [str(setting) for setting in command.make_settings(options)], options


@pytest.mark.parametrize("has_flash", [True, False])
def test_on_cuda_the_defaults_measure_a_gpu(monkeypatch, capsys, has_flash):
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: has_flash)
    settings, options = settings_of(monkeypatch)
    assert settings == [
        "pretraining, bert base, 128 x 128, paragraphs, bfloat16, cuda",
        "pretraining, bert base, 32 x 512, documents, bfloat16, cuda",
        "pretraining, bert large, 64 x 128, paragraphs, bfloat16, cuda",
        "pretraining, bert large, 16 x 512, documents, bfloat16, cuda",
    ]
    assert options.steps == 10 and options.against == ["flash"] * has_flash + ["grouped", "modernbert", "compiled"]
    assert ("transformers flash is left out" in capsys.readouterr().err) is not has_flash


def test_cuda_that_is_not_there_is_refused(text, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark(text, "--device", "cuda") == 2
    assert "--device cuda: torch finds no CUDA device here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "5000"), r"--batch-size 5000: the text gives \d+ rows"),
        (("--family", "xlnet"), "--family xlnet: .* --task inference"),
        (("--against", "flash"), "--against flash: .* leave it out"),
        (("--length", "4"), "--length 4: must be at least 8"),
        (("--rounds", "0"), "--rounds 0: must be at least 1"),
        (("--dropout", "1"), r"--dropout 1.0: must be a probability"),
        (("--json", "nowhere/out.json"), "--json nowhere/out.json: its folder does not exist"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_measured(text, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(work, "measure", lambda *_: pytest.fail("it was measured"))
    assert benchmark(text, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_all_compute_the_same_loss_gradients_and_states_of_the_same_rows(tokenizer, family):
    for task in ("pretraining", "inference"):
        setting = setting_of(family, task=task)
        implementations, rows = implementations_of(setting, tokenizer)
        tensors = rows.tensors(rows.in_order[0])
        is_real = tensors["attention_mask"].bool()
        results = []
        for made in implementations:
            if "ModernBERT" in made.name:
                continue
            made.model.zero_grad()
            computed = made.run_pass(tensors, setting)
            gradient = made.model.get_input_embeddings().weight.grad
            results.append([computed, gradient.clone()] if setting.trains else [computed[is_real]])
        for result in results:
            torch.testing.assert_close(result, results[0], atol=1e-5, rtol=0)
        assert len(results) == 4 and ("labels" in tensors) == setting.trains


def test_who_pads_and_which_rows_and_masks_there_are(tokenizer):
    implementations, rows = implementations_of(setting_of(), tokenizer)
    assert [made.pads for made in implementations] == [True, True, True, True, False]
    assert all(sorted(made.batches.ravel()) == list(range(len(rows.lengths))) for made in implementations)
    assert np.all(np.diff(rows.lengths[rows.by_length.ravel()]) <= 0)
    masked = rows.tensors(rows.in_order[0])
    again = Rows(DOCUMENTS, tokenizer, setting_of()).tensors(rows.in_order[0])
    assert all(torch.equal(masked[name], again[name]) for name in masked)
    for made in implementations:  # the same rows, with masks of their own
        batch = made.collate(rows.in_order[0])
        assert set(batch) == set(masked) and torch.equal(batch["attention_mask"], masked["attention_mask"])
        unmasked = [torch.where(one["labels"] == -100, one["input_ids"], one["labels"]) for one in (batch, masked)]
        assert torch.equal(*unmasked)


@pytest.mark.parametrize(
    ("examples", "lengths"),
    [("sentences", [3, 1, 2, 8]), ("paragraphs", [6, 8]), ("documents", [6, 8]), ("full", [8])],
)
def test_rows_of_each_kind_are_cut_at_the_length(tokenizer, examples, lengths):
    documents = [["w5 w6 w7", "w8", "w9 w10"], ["w11 w12 w13 w14 w15 w16 w17 w18 w19"]]
    # This tokenizer adds no special tokens.
    rows = work.tokenized_rows(documents, tokenizer, examples, 8)
    assert [len(row) for row in rows] == lengths


@pytest.mark.parametrize(("count", "steps", "rounds"), [(50, 4, 7), (3, 4, 2), (20, 20, 3), (1, 2, 2)])
def test_turns_are_spread_over_the_rows(count, steps, rounds):
    setting = setting_of(steps=steps, rounds=rounds)
    turns = [batches_of_round(list(range(count)), setting, number) for number in range(rounds)]
    assert all(len(turn) == steps for turn in turns)
    # Neither end is preferred.
    positions = [position + 0.5 for turn in turns for position in turn]
    assert sum(positions) / len(positions) == pytest.approx(count / 2, abs=0.5)


def test_a_turn_counts_its_real_tokens_and_what_they_need(tokenizer):
    setting, config = setting_of(), config_of("bert")
    implementations, rows = implementations_of(setting, tokenizer)
    for made in implementations:
        before = [p.detach().clone() for p in made.model.parameters()]
        batches = batches_of_round(made.batches, setting, 1)
        turn = run_turn(made, rows, config, setting, batches)
        assert turn["tokens"] == sum(int(rows.tensors(batch)["attention_mask"].sum()) for batch in batches)
        sizes = [rows.tensors(batch)["input_ids"].numel() for batch in batches]
        assert turn["positions"] == (sum(sizes) if made.pads else turn["tokens"])
        predicted = [int((rows.tensors(batch)["labels"] != -100).sum()) for batch in batches]
        needed = zip(batches, predicted, strict=True)
        assert turn["flops"] == sum(3 * forward_flops(config, rows.lengths[b].tolist(), n) for b, n in needed)
        assert min(turn[name] for name in work.SECONDS) > 0
        assert any(not torch.equal(p, q) for p, q in zip(made.model.parameters(), before, strict=True))


def test_rounds_begin_with_another_implementation_each(tokenizer, monkeypatch):
    setting, order = setting_of(rounds=3), []
    implementations, rows = implementations_of(setting, tokenizer)
    implementations = implementations[:3]
    a, b, c = (made.name for made in implementations)

    def record(made, rows, config, setting, batches):
        order.append((made.name, len(list(batches))))
        return dict.fromkeys(("tokens", "positions", "flops", *work.SECONDS), 1)

    monkeypatch.setattr(work, "run_turn", record)
    monkeypatch.setattr(work, "measure_gemm_rate", lambda *_: 1.0)
    table = measure(implementations, rows, config_of("bert"), setting)
    assert order[:3] == [(a, 1), (b, 1), (c, 1)]  # warm-up on the largest batch
    assert [name for name, _ in order[3:]] == [a, b, c, b, c, a, c, a, b]
    assert {count for _, count in order[3:]} == {setting.steps}
    assert all(len(line["rounds"]) == 3 and line["activation_megabytes"] > 0 for line in table["lines"])


def test_figures_counted_by_hand():
    names = ("tokens", "positions", "flops", *work.SECONDS)
    reference = [dict(zip(names, row, strict=True)) for row in [(100, 200, 1000, 1, 4, 5), (100, 200, 1000, 1, 5, 4)]]
    turns = [
        dict(zip(names, row, strict=True)) for row in [(120, 150, 1200, 0.5, 1, 0.5), (80, 150, 800, 0.5, 2, 1.5)]
    ]
    metrics = metrics_of(turns, reference, gemm_flops_per_second=4000.0)
    expected = {
        "pass_ratio": (3.4, 2.0, 4.8),  # 120 / s over 25 / s, then 40 / s over 20 / s
        "step_ratio": (4.0, 2.0, 6.0),  # 60 / s over 10 / s, then 20 / s over 10 / s
        "tokens_per_second": (80.0, 40.0, 120.0),
        "mfu": (0.2, 0.1, 0.3),
    }
    assert all(tuple(metrics[name].values()) == pytest.approx(values) for name, values in expected.items())
    assert metrics["padding"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("width", "layers", "heads"), [(256, 4, 4), (768, 12, 12)])
def test_modernbert_has_as_many_weights_in_a_layer(width, layers, heads):
    from transformers import AutoModel

    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = config_class_of("bert")(**sizes, intermediate_size=4 * width)
    with torch.device("meta"):
        modern = AutoModel.from_config(work.modernbert_config(config, length=128))
    matrices = sum(p.numel() for name, p in modern.named_parameters() if p.dim() == 2 and "layers" in name)
    assert matrices == pytest.approx(layers * 12 * width**2, rel=0.01)
