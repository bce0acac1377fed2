"""A student with its teacher: the three terms, and that the teacher is no part of the student."""

import copy
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hf_encoders import (
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    HfeDistilBertConfig,
    HfeDistilBertForMaskedLM,
    HfeRobertaForMaskedLM,
    HfeXLMWithLMHeadModel,
    fingerprint,
    student_from,
    with_teacher,
)
from tests.models.tiny import LANGUAGES, packed, tiny_config, tiny_model
from tests.objectives.distilled_tiny import make_batch, make_teacher


def make_pair(**options) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Student and teacher that differ in every weight; dropout of both is on."""
    teacher = make_teacher()
    student = student_from(teacher, [0, 2])
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return with_teacher(student, teacher, **options), teacher


def plain_terms(student: PreTrainedModel, teacher: PreTrainedModel, batch: dict, tokens: str) -> dict:
    """The means of `distiller.py`, of padded scores of all tokens and torch's own losses, at temperature 2."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    own = type(student).__mro__[2](student.config)
    own.load_state_dict(student.state_dict())
    outputs, targets = (model.eval()(**inputs, output_hidden_states=True) for model in (own, teacher))
    is_real = batch["attention_mask"] == 1
    is_item = is_real if tokens == "all" else batch["labels"] != -100
    scores, wanted = outputs.logits[is_item], targets.logits[is_item]
    soft = nn.KLDivLoss(reduction="batchmean")((scores / 2).log_softmax(-1), (wanted / 2).softmax(-1)) * 4
    states, of_teacher = outputs.hidden_states[-1][is_real], targets.hidden_states[-1][is_real]
    cosine = nn.CosineEmbeddingLoss()(states, of_teacher, torch.ones(len(states)))
    return {"ce": soft, "mlm": nn.functional.cross_entropy(outputs.logits[batch["labels"] != -100],
            batch["labels"][batch["labels"] != -100]), "cos": cosine, "own": own}  # fmt: skip


@pytest.mark.parametrize("tokens", ["predicted", "all"])
def test_terms_and_gradients_are_those_of_the_plain_composition(tokens: str) -> None:
    student, teacher = make_pair(soft_targets=tokens)
    batch = make_batch(student.config)
    expected = plain_terms(student, teacher, batch, tokens)
    outputs = student.eval()(**batch, return_logits=False)
    items = "labels" if tokens == "predicted" else "input_ids"
    assert student.loss_terms == {"mlm": "labels", "ce": items, "cos": "input_ids"}
    counts = {"ce": 8 if tokens == "predicted" else 19, "mlm": 8, "cos": 19}
    for name, count in counts.items():
        sums = outputs[name]
        assert int(sums.count) == count
        torch.testing.assert_close(sums.nll / count, expected[name], atol=1e-5, rtol=1e-5)
        assert (sums.correct is None) == (name != "mlm")
    total = 5 * expected["ce"] + 2 * expected["mlm"] + expected["cos"]
    torch.testing.assert_close(outputs.loss, total, atol=1e-5, rtol=1e-5)
    outputs.loss.backward()
    total.backward()
    for name, parameter in expected["own"].named_parameters():
        torch.testing.assert_close(student.get_parameter(name).grad, parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("tokens", ["predicted", "all"])
def test_a_packed_batch_is_the_padded_one(tokens: str) -> None:
    student, _ = make_pair(soft_targets=tokens)
    student.double().teacher.double()
    student.eval()
    batch = make_batch(student.config)
    found = []
    for inputs in (batch, packed(batch)):
        student.zero_grad()
        outputs = student(**inputs, return_logits=False)
        outputs.loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in student.named_parameters()}
        found.append(([list(outputs[name])[::2] for name in ("ce", "mlm", "cos")], gradients))
    torch.testing.assert_close(found[0], found[1], atol=1e-10, rtol=1e-10)


def test_padding_that_is_computed_is_no_item() -> None:
    """Labels at padding keep it among the tokens."""
    student, _ = make_pair(soft_targets="all")
    student.eval()
    batch = make_batch(student.config)
    with_padding = {**batch, "labels": batch["labels"].clone()}
    with_padding["labels"][2, 6] = 3
    found = [student(**one, return_logits=False) for one in (batch, with_padding)]
    for name in ("ce", "cos"):
        torch.testing.assert_close(found[0][name].nll, found[1][name].nll, atol=1e-4, rtol=1e-5)
        assert int(found[0][name].count) == int(found[1][name].count) == 19


def test_the_teacher_is_no_part_of_the_student(tmp_path: Path) -> None:
    student, teacher = make_pair()
    assert student.teacher is teacher
    plain = HfeDistilBertForMaskedLM(student.config)
    for names in ("state_dict", "parameters", "modules", "buffers"):
        assert len(list(getattr(student, names)())) == len(list(getattr(plain, names)()))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    before = fingerprint(teacher)
    student.train()
    assert not teacher.training and student.training
    student(**make_batch(student.config)).loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert fingerprint(teacher) == before != fingerprint(make_teacher(initializer_range=0.1, num_hidden_layers=4))

    student.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("modeling_*")} == {"modeling_distilbert.py"}
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(again) is transformers.DistilBertForMaskedLM
    assert type(HfeDistilBertForMaskedLM.from_pretrained(tmp_path)) is HfeDistilBertForMaskedLM


def test_the_teacher_is_the_same_whatever_the_students_dropout_draws() -> None:
    student, teacher = make_pair()
    batch = make_batch(student.config)
    student.train()
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(student.teacher_forward(batch["input_ids"], batch["attention_mask"]).last_hidden_state)
    assert torch.equal(*found)
    assert not found[0].requires_grad


def test_without_labels_it_is_a_model_for_masked_lm() -> None:
    student, _ = make_pair()
    batch = make_batch(student.config)
    del batch["labels"]
    outputs = student.eval()(**batch)
    assert outputs.loss is None and outputs.ce is None and outputs.logits.shape == (4, 7, 41)


@pytest.mark.parametrize("weights", [{"cos": 0}, {"ce": 0, "cos": 0}, {"mlm": 0}])
def test_a_term_of_weight_zero_is_not_computed_but_mlm(weights: dict) -> None:
    student, _ = make_pair(loss_weights=weights)
    outputs = student.eval()(**make_batch(student.config))
    for name in ("ce", "cos"):
        assert (name in outputs) == (name in student.loss_terms) == (name not in weights)
    assert outputs.mlm is not None
    full = {"ce": 5.0, "mlm": 2.0, "cos": 1.0} | weights
    total = sum(full[name] * outputs[name].nll / outputs[name].count for name in student.loss_terms)
    torch.testing.assert_close(outputs.loss, total)


def test_a_student_of_another_width_learns_without_the_cosine() -> None:
    teacher = make_teacher()
    config = tiny_config(HfeDistilBertConfig, hidden_size=24, num_attention_heads=4)
    student = with_teacher(HfeDistilBertForMaskedLM(config), teacher, loss_weights={"cos": 0}, soft_targets="all")
    outputs = student(**make_batch(config))
    outputs.loss.backward()
    assert float(outputs.ce.nll) > 0 and student.vocab_transform.weight.grad.any()
    with pytest.raises(ValueError, match=r"dim: hidden states of width 24 .student. and 18 .*loss_weights=.'cos': 0"):
        with_teacher(HfeDistilBertForMaskedLM(config), teacher)


@pytest.mark.parametrize("model_class", [HfeRobertaForMaskedLM, HfeXLMWithLMHeadModel, HfeBertForPreTraining])
def test_other_families_learn_too(model_class: type[PreTrainedModel]) -> None:
    fields = LANGUAGES if model_class is HfeXLMWithLMHeadModel else {}
    teacher = make_teacher(model_class, **fields)
    student = with_teacher(student_from(teacher, [0, 4]), teacher, soft_targets="all").train()
    batch = make_batch(teacher.config)
    if fields:
        batch["langs"] = torch.randint(0, 3, batch["input_ids"].shape)
    loss = student(**batch).loss
    loss.backward()
    assert torch.isfinite(loss) and all(p.grad is not None for p in student.parameters() if p.requires_grad)


def test_a_model_learns_what_its_teacher_predicts() -> None:
    student, _ = make_pair(loss_weights={"mlm": 0})
    batch = make_batch(student.config)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        outputs = student.eval()(**batch)
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        losses.append([float(outputs[name].nll / outputs[name].count) for name in ("ce", "cos")])
    assert losses[-1][0] < 0.2 * losses[0][0] and losses[-1][1] < 0.2 * losses[0][1]


def test_gradient_checkpointing_changes_no_gradient() -> None:
    student, _ = make_pair()
    batch, found = make_batch(student.config), []
    for enable in (False, True):
        if enable:
            student.activation_checkpointing_enable()
        student.zero_grad()
        torch.manual_seed(3)
        student.train()(**batch).loss.backward()
        found.append({name: parameter.grad.clone() for name, parameter in student.named_parameters()})
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-6)


def test_under_autocast_losses_are_float32() -> None:
    student, _ = make_pair(soft_targets="all")
    batch = make_batch(student.config)
    exact = student.eval()(**batch)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = student(**batch)
    outputs.loss.backward()
    for name in ("ce", "mlm", "cos"):
        assert outputs[name].nll.dtype == torch.float32
        torch.testing.assert_close(outputs[name].nll, exact[name].nll, rtol=0.1, atol=0.5)


@pytest.mark.slow
def test_a_compiled_graph_computes_the_same() -> None:
    student, _ = make_pair(soft_targets="all")
    batch = make_batch(student.config)
    expected = student.eval()(**batch, return_logits=False)
    found = torch.compile(student, backend="eager")(**batch, return_logits=False)
    for name in ("ce", "mlm", "cos"):
        torch.testing.assert_close(found[name].nll, expected[name].nll, atol=1e-4, rtol=1e-5)
        assert int(found[name].count) == int(expected[name].count)


def test_a_deep_copy_has_a_teacher() -> None:
    student, teacher = make_pair()
    copied = copy.deepcopy(student)
    assert copied.teacher is not teacher
    batch = make_batch(student.config)
    torch.testing.assert_close(copied.eval()(**batch).loss, student.eval()(**batch).loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_targets": "none"}, "soft_targets='none' must be one of predicted, all"),
        ({"temperature": 0}, "temperature=0 must be a number above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be a number above 0"),
        ({"loss_weights": {"kl": 1}}, "loss_weights=.* must name terms of ce, mlm, cos"),
        ({"loss_weights": {"ce": -1}}, "loss_weights: ce=-1 must be a number of at least 0"),
        ({"loss_weights": {"ce": 0, "mlm": 0, "cos": 0}}, "leave nothing to learn"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_pair(**options)


def test_models_that_do_not_fit_are_refused() -> None:
    teacher = make_teacher()
    with pytest.raises(ValueError, match="teacher is a BertForMaskedLM, which has no masked-LM head of this package"):
        stock = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=1, hidden_size=12))
        with_teacher(student_from(teacher), stock)
    with pytest.raises(ValueError, match="vocab_size is 43 in the student and 41 in the teacher: both need the same"):
        with_teacher(tiny_model(HfeBertForMaskedLM, vocab_size=43), teacher)
    with pytest.raises(ValueError, match="the student takes sequences of 20 tokens, the teacher of 13"):
        with_teacher(tiny_model(HfeBertForMaskedLM, max_position_embeddings=20), teacher)
    student = with_teacher(student_from(teacher), teacher)
    batch = make_batch(student.config)
    states = student.get_input_embeddings()(batch.pop("input_ids"))
    with pytest.raises(ValueError, match="inputs_embeds are the student's, and the teacher needs input_ids"):
        student(inputs_embeds=states, **batch)
