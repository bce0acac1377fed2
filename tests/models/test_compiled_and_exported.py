"""`torch.compile`, `torch.export` and ONNX compute what the eager model does.

A compiled model compiles its layers, for flat tokens. A graph of a whole model cannot choose its operations by the
number of real tokens, so it computes the masked layout: padding is computed as tokens that nobody attends to, and its
outputs are not zero as they are in eager mode (but in XLM, which sets them to zero itself).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch._dynamo.utils import counters
from torch.export import Dim
from transformers import PreTrainedModel

from hf_encoders import (
    HfeAlbertForSequenceClassification,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeBertModel,
    HfeRobertaForMaskedLM,
    HfeXLMModel,
    HfeXLNetModel,
)
from hf_encoders.compilation import has_operator
from hf_encoders.models.encoder_tokens import FlatTokens, flat_tokens
from tests.models.tiny import BASE_MODELS, MASKED_LM, NO_DROPOUT, packed, right_padded, tiny_model, token_ids


# Each with another border, embedding, layer or head; what they share is exported once.
EXPORTED = (HfeRobertaForMaskedLM, HfeAlbertForSequenceClassification)
WITH_OWN_LAYERS = tuple(one for one in BASE_MODELS if one.config_class.model_type in ("bert", "xlm", "xlnet"))
OTHER_LENGTHS = ((5, 3), (9, 9, 2, 1, 4), (6,), (1,))
# Without g++: this backend traces the forward and the backward graph and runs them operation by operation.
BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def _no_graph_of_another_test() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
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
    hidden = (torch.arange(batch["input_ids"].shape[1]) % 2 == 1) | (batch["input_ids"] == model.config.pad_token_id)
    batch = {**batch, "labels": batch["input_ids"].masked_fill(hidden, -100)}
    if isinstance(model, HfeBertForPreTraining):
        batch["next_sentence_label"] = torch.arange(len(batch["labels"])) % 2
    return batch


# --- torch.compile: layers without padding ---


class Counted:
    """A backend that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward


def loss_and_gradients(called: Any, model: PreTrainedModel, batch: dict[str, Any], seed: int = 3) -> list[Any]:
    model.zero_grad()
    torch.manual_seed(seed)
    outputs = called(**with_labels(model, batch))
    outputs.loss.backward()
    return [outputs.loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}]


@pytest.mark.processes
@pytest.mark.parametrize("model_class", [*MASKED_LM, HfeBertForPreTraining])
def test_a_compiled_training_step_equals_the_eager_one(model_class: type[PreTrainedModel]) -> None:
    """For ragged, full and packed batches, of any size, all layers are one graph, and nothing else is one.

    Layers with rotary positions are compiled whole, with padding; packed batches of them run eagerly.
    """
    model, backend = tiny_model(model_class, **NO_DROPOUT).train(), Counted()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    padded = right_padded(model.config)
    batches = [padded, left_padded(right_padded(model.config, (6, 3, 5, 1, 2))), right_padded(model.config, (5, 5))]
    batches += [packed(padded)] * (model_class is not HfeBertForPreTraining)
    for batch in batches:
        got, expected = (loss_and_gradients(called, model, batch) for called in (compiled, model))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert len(backend.graphs) == (1 if has_operator(model) else 2)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["torch.compile", "model.compile"])
def test_nothing_is_compiled_anew_in_50_batches(how: str) -> None:
    model, backend = tiny_model(HfeBertForMaskedLM).train(), Counted()
    compiled = torch.compile(model, backend=backend) if how == "torch.compile" else model
    if compiled is model:
        model.compile(backend=backend)
    compiled(**right_padded(model.config))
    lengths = torch.randint(1, 12, (50, 9), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.compiler.set_stance("fail_on_recompile"):
        for number, its_lengths in enumerate(lengths):
            batch = right_padded(model.config, tuple(its_lengths[: 1 + number % 9]))
            compiled(**(batch if number % 3 else packed(batch)))
    assert len(backend.graphs) == 1 and counters["graph_break"] == {}


@pytest.mark.processes
def test_frozen_weights_are_a_graph_per_layer() -> None:
    """With the compiler's `freezing`, for inference, weights are constants; batches bring no further graphs."""
    model, backend = tiny_model(HfeBertForMaskedLM).eval(), Counted()
    compiled = torch.compile(model, backend=backend)
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        for lengths in ((5, 3), (9, 9, 2, 1, 4), (6,), (4, 4)):
            batch = right_padded(model.config, lengths)
            assert_equal_on_real_tokens(compiled(**batch), model(**batch), batch["attention_mask"])
    layers = len(model.bert.encoder.layer)
    assert len(backend.graphs) == layers > 1
    assert all(sum(node.op == "get_attr" for node in graph.graph.nodes) >= 16 for graph in backend.graphs)


@pytest.mark.processes
def test_chunks_of_the_feed_forward_part_are_no_graphs_of_their_own() -> None:
    model, backend = tiny_model(HfeBertModel, chunk_size_feed_forward=3), Counted()
    compiled = torch.compile(model, backend=backend)
    for lengths in ((5, 3), (9, 9, 2, 1, 4), (6,), (9,) * 7):
        batch = right_padded(model.config, lengths)
        assert_equal_on_real_tokens(compiled(**batch), model(**batch), batch["attention_mask"])
    assert len(backend.graphs) == 1


@pytest.mark.processes
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
def test_compiled_layers_drop_what_eager_ones_drop(checkpoints: bool) -> None:
    """Attention weights, from the same random numbers. Elsewhere torch's own dropout runs, which a compiler fuses."""
    model = tiny_model(HfeBertForMaskedLM, hidden_dropout_prob=0.0).train()
    if checkpoints:
        model.activation_checkpointing_enable()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    batch = right_padded(model.config)
    got, expected = (loss_and_gradients(called, model, batch) for called in (compiled, model))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert got[0] != loss_and_gradients(compiled, model, batch, seed=4)[0]


@pytest.mark.processes
def test_compiled_dropout_keeps_mean_and_variance() -> None:
    """Of the output's dropout in a layer: a residual of zeros and a LayerNorm that is left out."""
    model = tiny_model(HfeBertModel, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.25).train()
    layer, backend = model.encoder.layer[0], Counted()
    layer.output.LayerNorm = torch.nn.Identity()
    layer.attention.output.LayerNorm = torch.nn.Identity()
    layer.attention.output.dropout.p = 0.0
    compiled = torch.compile(model, backend=backend)
    rows = token_ids(model.config, 1, 4).expand(4000, 4)
    model.encoder.layer = model.encoder.layer[:1]
    with torch.no_grad():
        model.embeddings.dropout.p = 0.0
        dropped = compiled(rows).last_hidden_state
        layer.output.dropout.p = 0.0
        exact = model(rows).last_hidden_state[0]
        residual = layer.attention(
            model.embeddings(rows[:1], None, None, None, flat_tokens(1, 4, rows.device)), FlatTokens(1, 4), False
        )
    projected = exact - residual
    assert (dropped.mean(dim=0) - exact).div(projected).abs().max() < 4 * (1 / 3 / 4000) ** 0.5
    assert dropped.var(dim=0).div(projected**2).sub(1 / 3).abs().max() < 0.05
    assert len(backend.graphs) == 1


@pytest.mark.processes
def test_compiled_layers_under_autocast() -> None:
    """101 tokens, to which a row of zeros is added: oneDNN has a kernel for 102."""
    model = tiny_model(HfeBertForMaskedLM, **NO_DROPOUT).train()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    batch = right_padded(model.config, (*[7] * 14, 3))
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = (loss_and_gradients(called, model, batch) for called in (compiled, model))
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=2**-7)


@pytest.mark.processes
def test_compiled_models_return_what_eager_ones_do() -> None:
    """Hidden states; attention weights and masks of pairs of tokens, which layers compute eagerly."""
    model, backend = tiny_model(HfeBertModel), Counted()
    compiled = torch.compile(model, backend=backend)
    batch = right_padded(model.config)
    pairs = batch["attention_mask"][:, None, None].expand(-1, 1, 7, 7).bool()
    for given in ({"output_hidden_states": True}, {"output_attentions": True}, {"attention_mask": pairs}):
        torch.testing.assert_close(compiled(**batch | given), model(**batch | given), atol=1e-5, rtol=1e-5)
    assert backend.graphs


@pytest.mark.processes
def test_a_function_that_calls_a_model_is_compiled_around_it() -> None:
    model, backend = tiny_model(HfeBertModel), Counted()
    batch = right_padded(model.config)

    def doubled() -> torch.Tensor:
        return model(**batch).last_hidden_state * 2

    torch.testing.assert_close(torch.compile(doubled, backend=backend)(), doubled())
    assert len(backend.graphs) == 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile the model itself, or pass keep_padding=True"):
        torch.compile(doubled, backend=backend, fullgraph=True)()


# --- torch.compile: whole models with padding ---


@pytest.mark.processes
@pytest.mark.parametrize("fields", [{}, {"position_embedding_type": "relative_key"}], ids=["asked for", "distances"])
def test_a_whole_graph_equals_the_eager_model(fields: dict[str, str]) -> None:
    model, backend = tiny_model(HfeBertModel, num_hidden_layers=1, **fields), Counted()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    batch = left_padded(right_padded(model.config))
    got, expected = compiled(**batch, **({} if fields else {"keep_padding": True})), model(**batch)
    assert_equal_on_real_tokens(got, expected, batch["attention_mask"])
    at_padding = batch["attention_mask"] == 0
    assert got.last_hidden_state[at_padding].any() and not expected.last_hidden_state[at_padding].any()


@pytest.mark.processes
@pytest.mark.parametrize("fields", [{}, {"position_embedding_type": "relative_key"}], ids=["xlnet", "distances"])
def test_packed_batches_of_what_is_compiled_whole_run_eagerly(fields: dict[str, str]) -> None:
    """A graph would have the lengths of the sequences as constants: one for every batch, up to torch's limit."""
    model, backend = tiny_model(HfeBertModel if fields else HfeXLNetModel, **fields), Counted()
    compiled = torch.compile(model, backend=backend)
    for lengths in ((5, 3), (4, 4, 2), (7,)):
        batch = packed(right_padded(model.config, lengths))
        torch.testing.assert_close(compiled(**batch).last_hidden_state, model(**batch).last_hidden_state)
    assert not backend.graphs
    compiled(**right_padded(model.config))
    assert backend.graphs


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
@pytest.mark.parametrize("model_class", WITH_OWN_LAYERS)
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
@pytest.mark.parametrize("model_class", EXPORTED[1:])
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
