"""One question, asked by every `test_<family>_parity.py`: does our class compute what transformers' own computes?

The configurations are uneven (no size divides another by accident) and not the defaults; every parameter is random, so
that a bias or a LayerNorm in the wrong place cannot hide behind its initial 0 or 1. Dropout is on in the configuration
and off by `eval()`, unless a test trains.
"""

import random
import re
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from tests import families


# float32 rounds sums in another order when padding is left out; float64 shows that nothing else differs.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROW_LENGTH = 8
BATCHES = ("full", "right", "left", "holes", "embeds", "positions", "types", "padding ids inside")
# Fields of our outputs with one entry a token; the others have one a sequence.
TOKEN_FIELDS = ("last_hidden_state", "prediction_logits", "start_logits", "end_logits", "hidden_states", "attentions")
# transformers pools a fixed column even where it is padding; ours the first (XLNet: the last) real token.
POOLED_FIELDS = ("pooler_output", "seq_relationship_logits", "sop_logits")
POOLED_COLUMN = 0  # XLNet's is the last one
POOLED_HEADS = (
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForMultipleChoice",
)


def uneven_fields(seed: int, **fields: Any) -> dict[str, Any]:
    """Sizes for the configuration of any family; `fields` replace or add."""
    chance = random.Random(seed)
    heads = chance.choice((2, 3, 5))
    padding_id = chance.choice((0, 1, 3))
    return {
        "vocab_size": chance.randrange(31, 60, 2),
        "hidden_size": heads * chance.choice((4, 6, 7)),
        "num_attention_heads": heads,
        "num_hidden_layers": chance.choice((2, 3)),
        "intermediate_size": chance.randrange(13, 40, 2),
        "hidden_act": chance.choice(("gelu", "gelu_new", "relu")),
        "max_position_embeddings": ROW_LENGTH + padding_id + 1 + chance.randrange(5),
        "type_vocab_size": chance.choice((2, 3)),
        "layer_norm_eps": chance.choice((1e-12, 1e-5, 1e-3)),
        "pad_token_id": padding_id,
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.2,
        "num_labels": 3,
        **fields,
    }


def make_config(
    model_class: type[PreTrainedModel], seed: int, fields: dict[str, Any] | None = None
) -> PreTrainedConfig:
    """A configuration of a model's family with `uneven_fields`."""
    fields = uneven_fields(seed, **(fields or {}))
    if head_name(model_class) in ("ForQuestionAnswering", "ForPreTraining"):
        fields["num_labels"] = 2  # transformers' own heads compute no loss with any other number
    return model_class.config_class(**families.fields_of(model_class.config_class, fields))


def make_batch(kind: str, config: PreTrainedConfig, seed: int = 0, rows: int = 3) -> dict[str, torch.Tensor]:
    """Inputs of one of the `BATCHES`: `rows` rows of `ROW_LENGTH` tokens."""
    torch.manual_seed(seed)
    shape = (rows, ROW_LENGTH)
    ids = torch.randint(config.pad_token_id + 1, config.vocab_size, shape)
    is_real = torch.ones(shape, dtype=torch.long)
    for row in range(1, rows):
        if kind == "left":
            is_real[row, : 2 * row - 1] = 0
        elif kind == "holes":
            is_real[row, [row, 5]] = 0
        elif kind != "full":
            is_real[row, ROW_LENGTH - 2 * row + 1 :] = 0
    if kind != "holes":  # a hole hides a token, padding is no token
        ids[is_real == 0] = config.pad_token_id
    if kind == "padding ids inside":
        ids[:, 2] = config.pad_token_id
    batch = {"input_ids": ids, "attention_mask": is_real}
    if kind in ("full", "padding ids inside"):
        del batch["attention_mask"]
    if kind == "embeds":
        del batch["input_ids"]
        width = getattr(config, "embedding_size", config.hidden_size)
        batch["inputs_embeds"] = torch.randn(*shape, width)
    if kind == "positions" and not families.is_derived(type(config), "max_position_embeddings"):
        batch["position_ids"] = torch.randint(0, config.max_position_embeddings, shape)
    if kind == "types":
        batch["token_type_ids"] = torch.randint(
            0, config.extra_ids.get("token_type_ids", config.type_vocab_size), shape
        )
    if "langs" in config.extra_ids:
        batch["langs"] = torch.randint(0, config.n_langs, shape)
    return batch


def make_labels(
    head: str, config: PreTrainedConfig, batch: dict[str, torch.Tensor], on_padding: bool = False
) -> dict[str, torch.Tensor]:
    """Labels of a head (`ForMaskedLM`, ...) for a batch; half of the tokens have none."""
    torch.manual_seed(7)
    shape = next(iter(batch.values())).shape[:2]
    is_real = batch.get("attention_mask", torch.ones(shape, dtype=torch.long)) == 1
    pairs = torch.randint(0, 2, shape[:1])
    if head == "ForPreTraining" and "rtd" in loss_terms(config):
        return {"labels": torch.randint(0, 2, shape)}  # transformers ignores them at padding, and knows no -100
    if head in ("ForMaskedLM", "ForPreTraining", "ForTokenClassification"):
        classes = config.num_labels if head == "ForTokenClassification" else config.vocab_size
        labels = torch.randint(0, classes, shape)
        labels[torch.rand(shape) < 0.5] = -100
        labels[:, 1] = classes - 1  # some label in every row, and the highest there is
        labels[~is_real] = classes - 1 if on_padding else -100
        if head == "ForPreTraining":
            pair_label = "sentence_order_label" if config.model_type == "albert" else "next_sentence_label"
            return {"labels": labels, pair_label: pairs}
        return {"labels": labels}
    if head == "ForNextSentencePrediction":
        return {"labels": pairs}
    if head == "ForQuestionAnswering":
        # A token, a padding token (in padded batches), and one beyond the row, which has no answer.
        places = torch.tensor([2, ROW_LENGTH - 1, ROW_LENGTH + 5])
        return {"start_positions": places, "end_positions": places.roll(1)}
    if head == "ForMultipleChoice":
        return {"labels": torch.tensor([1, 0])}
    if config.problem_type == "regression":
        return {"labels": torch.randn(shape[0], config.num_labels).squeeze(-1)}
    if config.problem_type == "multi_label_classification":
        return {"labels": torch.randint(0, 2, (shape[0], config.num_labels)).float()}
    return {"labels": torch.randint(0, config.num_labels, shape[:1])}


def loss_terms(config: PreTrainedConfig) -> dict[str, str]:
    """The terms that the family's pre-training model has."""
    return families.model_class(type(config), "AutoModelForPreTraining").loss_terms


def head_name(model_class: type[PreTrainedModel]) -> str:
    """`BertForMaskedLM` -> `ForMaskedLM`, also for names of XLM and XLNet; empty for a base model."""
    name = re.sub("(With)?LMHeadModel$", "ForMaskedLM", model_class.__name__.removesuffix("Simple"))
    return "".join(name.partition("For")[1:])


def stock_config(stock_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedConfig:
    """transformers' own configuration, read from ours as from a config.json."""
    return stock_class.config_class.from_dict(config.to_dict())


def make_pair(
    ours_class: type[PreTrainedModel],
    stock_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    implementation: str = "eager",
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Both models in `eval()` with the same random parameters, exchanged by strict loading in both directions."""
    torch.manual_seed(11)
    models = []
    for model_class, model_config in ((ours_class, config), (stock_class, stock_config(stock_class, config))):
        model_config._attn_implementation = implementation if model_class._supports_sdpa else "eager"
        models.append(model_class(model_config).to(dtype).eval())
    ours, stock = models
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1]
    ours.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(ours.state_dict(), strict=True)
    # A tied parameter goes by the name of the module registered first, which differs: as many, under the same names.
    names = [dict(model.named_parameters(remove_duplicate=False)).keys() for model in models]
    assert names[0] == names[1]
    assert len(list(ours.parameters())) == len(list(stock.parameters()))
    return ours, stock


def assert_equal_to_transformers(
    ours_class: type[PreTrainedModel],
    stock_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    inputs: dict[str, torch.Tensor],
    labels: dict[str, torch.Tensor] | None = None,
    implementation: str = "eager",
    dtype: torch.dtype = torch.float32,
    train: bool = False,
    **forward_options: Any,
) -> None:
    """Same parameters by name and shape; same outputs on every real token, loss and gradients.

    Args:
        ours_class, stock_class: the two models.
        config: ours; transformers' own is read from it.
        inputs, labels: arguments of `forward`. With labels the gradients are those of the loss, without those of a
            random combination of all outputs.
        implementation: `attn_implementation` of both.
        dtype: of the parameters; also chooses the tolerance.
        train: compare in `train()`, for configurations without dropout.
        forward_options: further arguments of both, such as `output_attentions=True`.
    """
    ours, stock = (m.train(train) for m in make_pair(ours_class, stock_class, config, implementation, dtype))
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    arguments = {**inputs, **(labels or {}), **forward_options}
    compare_outputs(
        ours(**arguments), stock(**arguments), inputs, TOLERANCE[dtype], logits_expected=not (train and labels)
    )
    if labels:
        targets = [model(**arguments).loss for model in (ours, stock)]
    else:
        targets = [combination_of_outputs(model(**arguments), inputs) for model in (ours, stock)]
    compare_gradients(ours, stock, targets, TOLERANCE[dtype])


def compare_outputs(ours: Any, stock: Any, inputs: dict, tolerance: float, logits_expected: bool = True) -> None:
    """Every field transformers gives, on real tokens."""
    compared = 0
    for name in stock:
        if stock[name] == ():  # cross-attentions of an encoder
            continue
        if "logits" in name and name not in POOLED_FIELDS and getattr(ours, name) is None:
            assert not logits_expected, name
            continue
        pairs = zip(*(real_entries(name, output, inputs) for output in (ours, stock)), strict=True)
        for got, expected in pairs:
            torch.testing.assert_close(
                got, expected, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
            compared += 1
    assert compared > 0


def compare_gradients(ours: torch.nn.Module, stock: torch.nn.Module, targets: list, tolerance: float) -> None:
    """Gradients of the two targets, parameter by parameter; none at all counts as zero."""
    for target in targets:
        target.backward()
    moved = 0
    for name, parameter in stock.named_parameters():
        pair = (ours.get_parameter(name), parameter)
        got, expected = (torch.zeros_like(p) if p.grad is None else p.grad for p in pair)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
        moved += bool(expected.any())
    assert moved > 10


def real_entries(name: str, output: Any, inputs: dict) -> list[torch.Tensor]:
    """A field's tensors without what stands at padding, and without what is pooled from it."""
    value = output[name]
    values = value if isinstance(value, (tuple, list)) else [value]
    mask = inputs.get("attention_mask")
    if mask is None:
        return list(values)
    mask = mask.flatten(0, -2) == 1
    # A discriminator has one score a token.
    if name in POOLED_FIELDS or (name == "logits" and values[0].dim() == 2 and values[0].shape != mask.shape):
        is_pooled = mask[:, POOLED_COLUMN]
        # Choices of one question stand in one row of scores.
        return [v.reshape(len(mask), -1)[is_pooled] for v in values]
    if name == "attentions":  # `(B, A, T, T)`: the rows of real queries; the columns of padding are zero in both
        return [v.transpose(1, 2)[mask] for v in values]
    if name in TOKEN_FIELDS or name == "logits":
        return [v[mask] for v in values]
    return list(values)


def combination_of_outputs(output: Any, inputs: dict) -> torch.Tensor:
    """A scalar that depends on all outputs on real tokens."""
    torch.manual_seed(13)
    total = 0
    for name in sorted(name for name in output if output[name] != ()):
        for value in real_entries(name, output, inputs):
            total = total + (value * torch.randn(value.shape, dtype=value.dtype)).sum() / value.numel() ** 0.5
    return total


def as_choices(batch: dict[str, torch.Tensor], num_choices: int = 3) -> dict[str, torch.Tensor]:
    """Rows of a batch as choices: `(B * C, T)` -> `(B, C, T)`."""
    return {name: value.unflatten(0, (-1, num_choices)) for name, value in batch.items()}


def check_head(
    ours_class: type[PreTrainedModel],
    stock_class: type[PreTrainedModel],
    kind: str = "right",
    *,
    seed: int = 0,
    with_labels: bool = True,
    labels_on_padding: bool = False,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """`assert_equal_to_transformers` for one head and one of the `BATCHES`, made from a seed.

    Args:
        ours_class, stock_class: the two models.
        kind: of batch.
        seed: of the configuration and the batch.
        with_labels: whether the head gets labels.
        labels_on_padding: whether padding is among them, where labels are one a token.
        fields: of the configuration, over `uneven_fields`.
        options: of `assert_equal_to_transformers`.
    """
    head = head_name(stock_class)
    config = make_config(ours_class, seed, fields)
    batch = make_batch(kind, config, seed, rows=6 if head == "ForMultipleChoice" else 3)
    labels = None
    pools_padding = "attention_mask" in batch and not batch["attention_mask"][:, POOLED_COLUMN].all()
    if with_labels and head and not (pools_padding and head in POOLED_HEADS):
        labels = make_labels(head, config, batch, labels_on_padding)
    if head == "ForMultipleChoice":
        batch = as_choices(batch)
    assert_equal_to_transformers(ours_class, stock_class, config, batch, labels, **options)
