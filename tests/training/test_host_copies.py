"""Copies on the CPU of a batch's integers are read while they are those of the tensor, and no longer."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

from hf_encoders import HfeBertForMaskedLM
from hf_encoders.models.encoder_tokens import flat_tokens, on_host, places_of
from hf_encoders.objectives.batch import keep_on_host, to_device
from tests.models.tiny import right_padded, tiny_model
from tests.training.on_cuda import CUDA, CountedWaits, OnDevice


def kept() -> OnDevice:
    """A tensor that was changed before it was copied, as its version says."""
    tensor = torch.arange(6).as_subclass(OnDevice)
    tensor[0] = 7
    keep_on_host({"labels": tensor})
    return tensor


@pytest.mark.parametrize("change", ["", "in place", "of a view", "without gradients"])
@pytest.mark.parametrize("duplicate", [None, copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_changed_or_duplicated_tensor_is_copied_anew(change: str, duplicate: Callable | None) -> None:
    with CountedWaits() as mode:
        tensor = kept()
        if change == "in place":
            tensor[1] = -100
        elif change == "of a view":
            tensor.view(2, 3)[0] = -100
        elif change:
            with torch.inference_mode():
                tensor.masked_fill_(tensor.as_subclass(torch.Tensor) > 2, -100)
        tensor = tensor if duplicate is None else duplicate(tensor)
        mode.waits.clear()
        found = on_host(tensor)
        assert mode.waits["to cpu"] == (change != "" or duplicate is not None)
    assert found.tolist() == tensor.as_subclass(torch.Tensor).tolist()


def test_a_deep_copy_has_a_copy_of_its_own() -> None:
    """Its version may be that of the tensor when that was copied."""
    tensor = torch.arange(6)
    tensor[0] = 7
    tensor.host_copy = id(tensor), tensor._version, tensor.clone()
    assert on_host(tensor) is tensor.host_copy[2]
    tensor[1] = -100
    duplicate = copy.deepcopy(tensor)
    assert duplicate._version == duplicate.host_copy[1] and on_host(duplicate)[1] == -100


def test_a_batch_is_kept_as_it_was_before_it_was_moved() -> None:
    """A batch that comes on the device is copied from there, in one transfer."""
    batch = {"input_ids": torch.arange(6), "labels": torch.arange(2), "weights": torch.rand(2), "max_length_q": 3}
    with CountedWaits() as mode:
        moved = to_device(batch, CUDA)
        assert on_host(moved["input_ids"]) is batch["input_ids"] and on_host(moved["labels"]) is batch["labels"]
        assert not hasattr(moved["weights"], "host_copy") and moved["max_length_q"] == 3
        assert mode.waits == {}
        there = {name: moved[name].clone() for name in ("input_ids", "labels")}
        again = to_device(there, CUDA)
        assert on_host(again["input_ids"]).tolist() == list(range(6)) and on_host(again["labels"]).tolist() == [0, 1]
        assert mode.waits == {"to cpu": 1}


def test_tensors_of_inference_mode_have_no_version_and_no_copy() -> None:
    with CountedWaits(), torch.inference_mode():
        tensor = torch.arange(6).as_subclass(OnDevice)
        keep_on_host({"input_ids": tensor})
        assert on_host(tensor).tolist() == list(range(6))


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_graph_of_a_whole_model_selects_no_tokens(is_kept: bool) -> None:
    """It is one, with labels and with copies, which it does not read."""
    torch._dynamo.reset()
    counters.clear()
    model, graphs = tiny_model(HfeBertForMaskedLM).eval(), []
    compiled = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    batch = right_padded(model.config)
    for step in range(3):
        batch = {name: value.clone() for name, value in batch.items()}
        batch["labels"] = batch["input_ids"].masked_fill(torch.arange(batch["input_ids"].shape[1]) % 3 != step, -100)
        batch["labels"][batch["attention_mask"] == 0] = -100
        for value in batch.values() if is_kept else ():
            value.host_copy = id(value), value._version, value.clone()
        found, expected = compiled(**batch, keep_padding=True).loss, model(**batch).loss
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1 and not counters["graph_break"]
    torch._dynamo.reset()


def test_a_traced_number_of_predicted_tokens_is_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch.tensor([True, False, True])
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)
    with CountedWaits() as mode:
        assert places_of(flags.as_subclass(OnDevice), flags).as_subclass(torch.Tensor).tolist() == [0, 2]
    assert mode.waits["nonzero"] == 1


@pytest.mark.parametrize(("device", "waits"), [("cuda", False), ("mps", True)])
def test_only_cuda_is_given_memory_that_python_returns_at_once(device: str, waits: bool) -> None:
    """On MPS a copy that is not waited for may read it afterwards."""
    seen = []

    class Recorded(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func.__name__ == "to" and torch.device(device) in args:
                seen.append(bool((kwargs or {}).get("non_blocking")))
                return args[0]
            return func(*args, **(kwargs or {}))

    with Recorded():
        flat_tokens(2, 3, torch.device(device), torch.tensor([[1, 1, 1], [1, 0, 0]]), None, False)
    assert seen == [not waits] * 2
