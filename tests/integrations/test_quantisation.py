"""8-bit weights and activations on a CPU: linears by torchao, an exported model by ONNX Runtime.

torchao, because torch's own `torch.ao.quantization.quantize_dynamic` is deprecated in its favour
(https://github.com/pytorch/ao/issues/2259) and says so on every call.
"""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic
from torch import nn
from torch.export import Dim
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
from transformers import PreTrainedModel, TorchAoConfig

from hf_encoders import HfeBertForSequenceClassification
from tests.models.tiny import ALL_MODELS, CLASSIFIERS, MASKED_LM, right_padded, tiny_config


# 8 bits round by 0.4 % of the largest value; two models of other random weights differ by 140 %.
TOLERANCE = 0.1
# Wide enough that the weights of linears are nearly all there is, as in a real encoder's layers.
WIDE = {"hidden_size": 96, "intermediate_size": 384, "vocab_size": 60}


def wide_model(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(3)
    return model_class(tiny_config(model_class.config_class, initializer_range=0.1, **WIDE)).eval()


def batch_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    batch = right_padded(model.config)
    if "MultipleChoice" in type(model).__name__:
        batch = {name: value[None] for name, value in batch.items()}
    return batch


def error_of(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, over all real tokens at once."""
    is_score = expected > torch.finfo(expected.dtype).min  # answers cannot lie in padding
    return float((got - expected)[is_score].norm() / expected[is_score].norm())


def bytes_of_linears(model: nn.Module) -> int:
    """What the weights of linears take, with their scales."""
    parts = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    sizes = 0
    for weight in parts:
        tensors = [weight.qdata, weight.scale] if hasattr(weight, "qdata") else [weight]
        sizes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return sizes


def is_8_bit(module: nn.Module) -> bool:
    return type(module.weight).__name__ == "Int8Tensor"


@pytest.mark.parametrize("model_class", ALL_MODELS)
def test_every_linear_in_8_bits(model_class: type[PreTrainedModel]) -> None:
    """By torchao directly: a quarter of the size, nearly the same outputs."""
    model = wide_model(model_class)
    batch = batch_of(model)
    expected, size = model(**batch)[0], bytes_of_linears(model)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    assert all(is_8_bit(module) for module in model.modules() if isinstance(module, nn.Linear))
    assert 0.25 < bytes_of_linears(model) / size < 0.27
    assert 0 < error_of(model(**batch)[0], expected) < TOLERANCE


@pytest.mark.parametrize("model_class", [*MASKED_LM, *CLASSIFIERS])
def test_loaded_in_8_bits_and_saved(model_class: type[PreTrainedModel], tmp_path: Path) -> None:
    """By transformers' `quantization_config`, which leaves a tied decoder alone; the file is read back."""
    whole = wide_model(model_class)
    whole.save_pretrained(tmp_path / "whole")
    config = TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
    model = model_class.from_pretrained(tmp_path / "whole", quantization_config=config)
    left = [module for module in model.modules() if isinstance(module, nn.Linear) and not is_8_bit(module)]
    has_decoder = model_class in MASKED_LM and model.get_output_embeddings() in model.modules()
    assert left == ([model.get_output_embeddings()] if has_decoder else [])
    batch = batch_of(model)
    assert 0 < error_of(model(**batch)[0], whole(**batch)[0]) < TOLERANCE

    model.save_pretrained(tmp_path / "8 bits")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "8 bits")]
    most = 0.6 if whole.config.model_type == "xlnet" else 0.33  # half of its weights are not of linears
    assert 0.2 < sizes[1] / sizes[0] < most  # embeddings and LayerNorms keep their 32 bits
    again = model_class.from_pretrained(tmp_path / "8 bits")
    assert torch.equal(again(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize("model_class", MASKED_LM)
def test_the_loss_with_a_decoder_in_8_bits_is_that_of_its_scores(model_class: type[PreTrainedModel]) -> None:
    """While training, predicted tokens take a shortcut to the vocabulary, which 8-bit weights must not."""
    model = wide_model(model_class)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    batch = batch_of(model)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    losses = [model(**batch, return_logits=return_logits).loss for return_logits in (True, False)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_an_exported_model_in_8_bits(tmp_path: Path) -> None:
    """Not ALBERT: ONNX Runtime 1.31 turns a weight round for each linear that uses it, and its layers share theirs."""
    model = wide_model(HfeBertForSequenceClassification)
    batch = batch_of(model)
    shapes = dict.fromkeys(batch, {0: Dim("batch"), 1: Dim("length", max=11)})
    path, small = tmp_path / "model.onnx", tmp_path / "model.8-bit.onnx"
    torch.onnx.export(
        model, (), path, kwargs=batch, dynamic_shapes=shapes, dynamo=True, external_data=False, verbose=False
    )
    exported = onnx.load(path)
    del exported.graph.value_info[:]  # ONNX Runtime turns weights round, and not the shapes that are noted of them
    quantize_dynamic(exported, small)
    assert small.stat().st_size < 0.45 * path.stat().st_size  # the graph is a good part of so small a file
    session = onnxruntime.InferenceSession(small, providers=["CPUExecutionProvider"])
    got = torch.from_numpy(session.run(None, {name: value.numpy() for name, value in batch.items()})[0])
    assert 0 < error_of(got, model(**batch)[0]) < TOLERANCE
