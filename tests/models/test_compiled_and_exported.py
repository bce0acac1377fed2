"""Graphs of fixed operations: `torch.compile`, `torch.export` and ONNX compute what the eager model does.

A graph cannot choose its operations by the number of real tokens, so a whole model in a graph computes the masked
layout: padding is computed as tokens that nobody attends to, and its outputs are not zero as they are in eager mode
(but in XLM, which sets them to zero itself).
A compiled layer gets flat tokens, and computes the ragged layout one sequence after the other.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch.export import Dim
from transformers import PreTrainedModel

from hf_encoders import (
    HfeAlbertForMaskedLM,
    HfeAlbertForSequenceClassification,
    HfeAlbertModel,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeBertModel,
    HfeRobertaForMaskedLM,
    HfeXLMModel,
)
from hf_encoders.models.encoder_tokens import FlatTokens, flat_tokens
from tests.models.tiny import BASE_MODELS, MASKED_LM, NO_DROPOUT, right_padded, tiny_model


EXPORTED = (HfeBertModel, HfeRobertaForMaskedLM, HfeAlbertForSequenceClassification)
OTHER_LENGTHS = ((5, 3), (9, 9, 2, 1, 4), (6,), (1,))
# Without g++: this backend traces the forward and the backward graph and runs them operation by operation.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def _no_graph_of_another_test() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def left_padded(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same rows with their padding in front."""
    return {name: value.flip(1) for name, value in batch.items()}


def assert_equal_on_real_tokens(got: Any, expected: Any, mask: torch.Tensor) -> None:
    assert set(got) == set(expected)
    for name in set(expected) - {"mlm", "pair"}:
        pair = (got[name], expected[name])
        one, other = (value[mask == 1] for value in pair) if expected[name].dim() == 3 else pair
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def with_labels(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every second token is predicted, none of them padding."""
    hidden = (torch.arange(batch["input_ids"].shape[1]) % 2 == 1) | (batch["attention_mask"] == 0)
    batch = {**batch, "labels": batch["input_ids"].masked_fill(hidden, -100)}
    if isinstance(model, HfeBertForPreTraining):
        batch["next_sentence_label"] = torch.arange(len(batch["labels"])) % 2
    return batch


# --- torch.compile ---


@pytest.mark.processes
@pytest.mark.parametrize("model_class", [HfeBertModel, HfeAlbertModel])
def test_a_compiled_encoder_equals_the_eager_one(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    for batch in (right_padded(model.config), left_padded(right_padded(model.config, (6, 3, 5, 1)))):
        got, expected = compiled(**batch), model(**batch)
        assert_equal_on_real_tokens(got, expected, batch["attention_mask"])
        at_padding = batch["attention_mask"] == 0
        assert got.last_hidden_state[at_padding].any() and not expected.last_hidden_state[at_padding].any()


@pytest.mark.processes
@pytest.mark.parametrize("model_class", [*MASKED_LM, HfeBertForPreTraining])
def test_a_compiled_training_step_equals_the_eager_one(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class, **NO_DROPOUT).train()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    batch = with_labels(model, right_padded(model.config))
    results = []
    for called in (compiled, model):
        model.zero_grad()
        outputs = called(**batch)
        outputs.loss.backward()
        results.append([outputs.loss, outputs.mlm, {name: p.grad.clone() for name, p in model.named_parameters()}])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.processes
@pytest.mark.parametrize("model_class", [HfeBertForMaskedLM, HfeAlbertForMaskedLM])
def test_a_compiled_training_step_drops(model_class: type[PreTrainedModel]) -> None:
    """By torch's own dropout, which a compiler fuses."""
    model = tiny_model(model_class).train()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    batch = with_labels(model, right_padded(model.config))
    losses = [compiled(**batch).loss for _ in range(3)]
    losses[0].backward()
    assert len({loss.item() for loss in losses}) == 3
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def ragged(model: PreTrainedModel, lengths: tuple[int, ...]) -> tuple[torch.Tensor, FlatTokens]:
    """Random hidden states of flat tokens, and their layout."""
    mask = right_padded(model.config, lengths)["attention_mask"]
    return torch.randn(sum(lengths), 18, requires_grad=True), flat_tokens(*mask.shape, mask.device, mask)


@pytest.mark.processes
def test_a_compiled_layer_equals_the_eager_one_on_ragged_tokens() -> None:
    model = tiny_model(HfeBertModel, **NO_DROPOUT).train()
    layer, compiled = model.encoder.layer[0], model.encoder.layer[1]
    compiled.load_state_dict(layer.state_dict())
    compiled.compile(fullgraph=True, backend=BACKEND)
    for lengths in ((7, 4, 2), (5, 3, 3), (6, 6, 1)):
        hidden, tokens = ragged(model, lengths)
        results = []
        for called in (layer, compiled):
            output = called(hidden, tokens)
            gradients = torch.autograd.grad(output.square().sum(), (hidden, *called.parameters()))
            results.append([output, *gradients])
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)


@pytest.mark.processes
def test_a_compiled_layer_is_compiled_for_few_of_many_lengths() -> None:
    """Ten batches of three sequences: lengths become variables of the graph, except for those that torch treats apart.

    Beyond `torch._dynamo.config.recompile_limit` graphs, 8, `fullgraph=True` is an error.
    """
    graphs = []

    def counted(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = tiny_model(HfeBertModel, **NO_DROPOUT)
    layer = model.encoder.layer[0]
    layer.compile(fullgraph=True, backend=counted)
    for lengths in ((7, 4, 2), (7, 3, 2), (5, 5, 4), (6, 3, 2), (7, 7, 3), (4, 4, 2), (7, 6, 5), (5, 4, 2), (6, 6, 2)):
        layer(*ragged(model, lengths))
    assert len(graphs) <= 4


# --- torch.export ---


def exported(model: PreTrainedModel) -> torch.export.ExportedProgram:
    """The model as a program for any number of rows and any length up to 11."""
    sizes = {0: Dim("batch"), 1: Dim("length", max=11)}
    batch = right_padded(model.config)
    return torch.export.export(model, (), batch, dynamic_shapes=dict.fromkeys(batch, sizes))


@pytest.mark.slow
@pytest.mark.parametrize("model_class", EXPORTED)
@pytest.mark.parametrize("pad", [dict, left_padded], ids=["right", "left"])
def test_an_exported_program_equals_the_model_at_other_shapes(model_class: type[PreTrainedModel], pad: Any) -> None:
    model = tiny_model(model_class)
    program = exported(model).module()
    for lengths in OTHER_LENGTHS:
        batch = pad(right_padded(model.config, lengths))
        assert_equal_on_real_tokens(program(**batch), model(**batch), batch["attention_mask"])


@pytest.mark.slow
@pytest.mark.parametrize("model_class", BASE_MODELS)
def test_an_exported_program_computes_padding(model_class: type[PreTrainedModel]) -> None:
    model = tiny_model(model_class)
    batch = right_padded(model.config, (5, 3))
    at_padding = batch["attention_mask"] == 0
    is_zeroed = model_class is HfeXLMModel
    assert exported(model).module()(**batch).last_hidden_state[at_padding].any() != is_zeroed
    assert not model(**batch).last_hidden_state[at_padding].any()


# --- ONNX ---


def run_onnx(path: Path, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The first output of a model on disk."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in batch.items()})[0])


def assert_onnx_equals(path: Path, model: PreTrainedModel) -> None:
    for lengths in OTHER_LENGTHS:
        batch = right_padded(model.config, lengths)
        is_real = batch["attention_mask"] == 1
        got, expected = run_onnx(path, batch), model(**batch)[0]
        assert got.shape == expected.shape
        if expected.dim() == 3:
            got, expected = got[is_real], expected[is_real]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model_class", EXPORTED)
def test_onnx_by_export_equals_the_model(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class)
    sizes = {0: Dim("batch"), 1: Dim("length", max=11)}
    batch = right_padded(model.config)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (), path, kwargs=batch, dynamic_shapes=dict.fromkeys(batch, sizes), dynamo=True, verbose=False
    )
    assert_onnx_equals(path, model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns of every Python value that a trace fixes, and of this exporter
@pytest.mark.parametrize("model_class", EXPORTED)
def test_onnx_by_tracing_equals_the_model(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    model = tiny_model(model_class)
    model.config.return_dict = False  # a trace returns tuples
    batch = right_padded(model.config)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model,
        tuple(batch.values()),
        path,
        input_names=list(batch),
        dynamic_axes={name: {0: "batch", 1: "length"} for name in batch},
        dynamo=False,
    )
    assert_onnx_equals(path, model)
