"""Replaced token detection: what is sampled and found, the two losses, their gradients, and the two checkpoints."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from hf_encoders import (
    DataCollatorForMaskedLM,
    HfeBertConfig,
    HfeDebertaV2Config,
    HfeElectraConfig,
    HfeElectraForMaskedLM,
    HfeElectraForPreTraining,
    SentenceBlocks,
    get_objective,
)
from hf_encoders.evaluation.masked_lm import masked_token_scores
from hf_encoders.models import encoder_losses
from hf_encoders.models.encoder_detection import detection_sums
from hf_encoders.objectives import presets, rtd
from hf_encoders.objectives.masking import Masking
from hf_encoders.objectives.rtd import (
    DIFFERENCES_FILE,
    GENERATOR_FOLDER,
    REPLACEMENT,
    DataCollatorForReplacedTokenDetection,
    ReplacedTokenDetectionModel,
    sampled_tokens,
)
from hf_encoders.publishing.files import published_files
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents
from tests.training.tiny import NO_DROPOUT, make_tokenizer


SIZES = {**TINY_MODEL, "embedding_size": 10, "generator_size": 0.5, "initializer_range": 0.3}


def make_model(**fields) -> ReplacedTokenDetectionModel:
    torch.manual_seed(0)
    return ReplacedTokenDetectionModel(HfeElectraConfig(**{**SIZES, **NO_DROPOUT, **fields})).eval()


def make_blocks(documents: list, length: int = 24) -> SentenceBlocks:
    blocks = SentenceBlocks(make_dataset(documents), length)
    blocks.set_epoch(0)
    return blocks


def make_batch(packed: bool = False, **options) -> dict[str, torch.Tensor]:
    blocks = make_blocks(random_documents(20, 3))
    collator = DataCollatorForReplacedTokenDetection(make_tokenizer(), packed=packed, mask_probability=0.3, **options)
    return collator([blocks[i] for i in range(len(blocks))])


# --- sampling ---


def test_samples_follow_the_softmax_of_the_scores():
    """Shares of 40,000 draws: six standard deviations are at most 6 * sqrt(.25 / 40,000) = 0.015."""
    scores = torch.tensor([2.0, -1.0, 0.5, 1.0, -30.0])
    bits = torch.randint(0, 2**32, (40_000,), generator=torch.Generator().manual_seed(1))
    found = sampled_tokens(scores.expand(40_000, 5).clone(), bits).bincount(minlength=5) / 40_000
    torch.testing.assert_close(found, scores.softmax(0), atol=0.015, rtol=0)
    assert found[4] == 0


def test_the_smallest_and_the_largest_number_give_a_token():
    scores = torch.tensor([[-200.0, 0.0, 0.0, -200.0]]).repeat(2, 1)
    assert sampled_tokens(scores, torch.tensor([0, 2**32 - 1])).tolist() == [1, 2]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_give_a_token_and_show_in_the_loss(score: float):
    assert 0 <= sampled_tokens(torch.full((1, 3), score), torch.tensor([2**31])).item() < 3
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        model.generator.generator_lm_head.bias.fill_(score)
    assert model(**batch).loss.isnan()


def test_samples_take_the_places_of_all_predicted_tokens():
    """Worked out without the model's own code, for kept tokens too."""
    model, batch = make_model(), make_batch()
    outputs = model(**batch)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    scores = model.generator(**inputs).logits
    expected = batch["input_ids"].clone()
    for row, column in (batch["labels"] != -100).nonzero().tolist():
        shares = scores[row, column].double().softmax(0).cumsum(0)
        expected[row, column] = int((shares <= (batch["random_bits"][row, column].item() >> 8) / 2**24).sum())
    assert torch.equal(outputs.corrupted_ids, expected)
    is_kept = (batch["labels"] != -100) & (batch["input_ids"] == batch["labels"])
    assert is_kept.sum() > 5 and (expected != batch["labels"])[is_kept].any()


def test_scores_are_held_a_chunk_at_a_time(monkeypatch):
    model, batch = make_model(), make_batch()
    expected, sizes = model(**batch).corrupted_ids, []
    monkeypatch.setattr(encoder_losses, "CHUNK_SCORES", 60 * 7)

    def recorded(scores: torch.Tensor, random_bits: torch.Tensor) -> torch.Tensor:
        sizes.append(scores.numel())
        return sampled_tokens(scores, random_bits)

    monkeypatch.setattr(rtd, "sampled_tokens", recorded)
    assert torch.equal(model(**batch).corrupted_ids, expected)
    assert max(sizes) == 60 * 7 and sum(sizes) == 60 * int((batch["labels"] != -100).sum())


def test_a_sampled_true_token_is_an_original_one():
    model, batch = make_model(), make_batch()
    token = 17
    batch["labels"] = torch.where(batch["labels"] != -100, token, -100)
    with torch.no_grad():
        model.generator.generator_lm_head.bias[token] = 1000.0
    outputs = model(**batch)
    assert outputs.rtd.label_1 == 0 and outputs.mlm.correct == outputs.mlm.count > 0


# --- losses and gradients ---


def test_the_loss_is_that_of_masked_tokens_and_fifty_times_that_of_detection():
    model, batch = make_model(), make_batch()
    outputs = model(**batch)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    is_real = batch["attention_mask"] == 1
    originals = batch["labels"].where(batch["labels"] != -100, batch["input_ids"])
    mlm = nn.functional.cross_entropy(model.generator(**inputs).logits.flatten(0, 1), batch["labels"].flatten())
    scores = model.discriminator(**{**inputs, "input_ids": outputs.corrupted_ids}).logits
    is_replaced = outputs.corrupted_ids != originals
    detection = nn.functional.binary_cross_entropy_with_logits(scores[is_real], is_replaced[is_real].float())
    torch.testing.assert_close(outputs.loss, mlm + 50 * detection)
    assert outputs.rtd.count == is_real.sum() and outputs.rtd.label_1 == is_replaced.sum() > 0
    assert outputs.rtd.correct == ((scores > 0) == is_replaced)[is_real].sum()
    assert {term.name: term.weight for term in get_objective("rtd").terms} == {"mlm": 1.0, "rtd": 50.0}


def test_detection_sums_of_a_worked_example():
    scores, labels = torch.tensor([0.0, 2.0, -1.0, 3.0, 9.0]), torch.tensor([0, 1, 0, 0, -100])
    sums = detection_sums(scores, labels)
    expected = math.log(2) + math.log1p(math.exp(-2)) + math.log1p(math.exp(-1)) + math.log1p(math.exp(3))
    assert sums.nll.item() == pytest.approx(expected, abs=1e-6)
    assert [int(value) for value in sums[1:]] == [3, 4, 1]  # a score of 0 is "original"


def test_detection_has_no_gradient_in_the_generator_but_shared_embeddings_have_both():
    model, batch = make_model(), make_batch()
    outputs = model(**batch)
    outputs.rtd.nll.backward(retain_graph=True)
    shared = {id(one) for one in model.discriminator.electra.embeddings.parameters()}
    own = [one for one in model.generator.parameters() if id(one) not in shared]
    assert len(own) > 20 and all(one.grad is None or not one.grad.any() for one in own)
    table = model.get_input_embeddings().weight
    of_detection = table.grad.clone()
    model.zero_grad()
    outputs.mlm.nll.backward()
    assert of_detection.any() and table.grad.any() and not torch.allclose(of_detection, table.grad)
    assert all(one.grad is not None for one in own)
    assert all(one.grad is None for one in model.discriminator.discriminator_predictions.parameters())


def test_all_embeddings_are_shared():
    model = make_model()
    names = {name for name, _ in model.discriminator.electra.embeddings.named_parameters()}
    assert names == {
        *(f"{kind}_embeddings.weight" for kind in ("word", "position", "token_type")),
        *("LayerNorm.weight", "LayerNorm.bias"),
    }
    assert model.generator.electra.embeddings is model.discriminator.electra.embeddings
    assert model.generator.generator_lm_head.weight is model.get_input_embeddings().weight
    assert model.generator.config.hidden_size == 6 and model.discriminator.config.hidden_size == 12


@pytest.mark.parametrize("changed", ["packed", "checkpointing", "eager"])
def test_another_layout_and_recomputed_layers_change_nothing(changed):
    found = []
    for is_changed in (False, True):
        model, batch = make_model(), make_batch(packed=is_changed and changed == "packed")
        if is_changed and changed == "checkpointing":
            model.gradient_checkpointing_enable()
        if is_changed and changed == "eager":
            model.set_attn_implementation("eager")
            assert model.generator.config._attn_implementation == "eager"
        outputs = model.train()(**batch)
        outputs.loss.backward()
        replaced = (int(outputs.rtd.label_1), int(outputs.mlm.count), int(outputs.rtd.count))
        found.append((replaced, outputs.loss, {name: one.grad for name, one in model.named_parameters()}))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1:], found[1][1:], atol=1e-5, rtol=1e-5)


def test_with_dropout_what_is_sampled_is_what_was_predicted():
    """The generator runs once: its samples and its loss are of the same scores."""
    model, batch = make_model(hidden_dropout_prob=0.3), make_batch()
    calls = []
    model.generator.electra.encoder.register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(4)
    first = model.train()(**batch)
    torch.manual_seed(4)
    assert torch.equal(model(**batch).corrupted_ids, first.corrupted_ids) and len(calls) == 2
    assert not torch.equal(model(**batch).corrupted_ids, first.corrupted_ids)


def test_autocast_to_16_bits_trains():
    model, batch = make_model(), make_batch()
    expected = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model.train()(**batch)
    outputs.loss.backward()
    assert outputs.loss.dtype == torch.float32 and outputs.loss.item() == pytest.approx(expected.item(), rel=0.05)
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


def test_a_batch_without_predictions_trains_the_discriminator_alone():
    model, batch = make_model(), make_batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    outputs = model(**batch)
    assert outputs.mlm.count == 0 and outputs.rtd.label_1 == 0 and outputs.loss.isfinite()
    assert torch.equal(outputs.corrupted_ids, batch["input_ids"])


def test_without_labels_the_discriminator_reads_the_tokens_as_they_are():
    model, batch = make_model(), make_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(model(**inputs).logits, model.discriminator(**inputs).logits)


@pytest.mark.parametrize("change", [lambda bits: None, lambda bits: bits[:1, :3], lambda bits: bits / 2**32])
def test_random_numbers_that_are_missing_are_refused(change):
    batch = make_batch()
    batch["random_bits"] = change(batch["random_bits"])
    with pytest.raises(ValueError, match="random_bits (is|has|holds) .*(Detection draws|pass integers)"):
        make_model()(**batch)


# --- data ---


def test_random_numbers_are_of_the_example_and_place_alone():
    blocks = make_blocks(random_documents(20, 3))
    found = {}
    for packed, order in ((False, range(len(blocks))), (True, reversed(range(len(blocks))))):
        collator = DataCollatorForReplacedTokenDetection(make_tokenizer(), packed=packed)
        order = list(order)
        for begin in range(0, len(order), 3):
            examples = [blocks[i] for i in order[begin : begin + 3]]
            batch = collator(examples)
            bits = batch["random_bits"]
            if packed:
                rows = bits[0].split(batch["cu_seq_lens_q"].diff().tolist())
            else:
                rows = [row[mask == 1] for row, mask in zip(bits, batch["attention_mask"], strict=True)]
                assert not bits[batch["attention_mask"] == 0].any()
            for example, row in zip(examples, rows, strict=True):
                found.setdefault(example.key, []).append(row.tolist())
    assert all(one == other for one, other in found.values()) and len(found) == len(blocks)
    numbers = np.concatenate([rows[0] for rows in found.values()])
    assert len(set(numbers.tolist())) == len(numbers) and numbers.min() >= 0 and numbers.max() < 2**32
    assert abs(numbers.mean() / 2**32 - 0.5) < 6 * 12**-0.5 / len(numbers) ** 0.5
    before = found[blocks[0].key][0]
    blocks.set_epoch(1)
    assert DataCollatorForReplacedTokenDetection(make_tokenizer())([blocks[0]])["random_bits"][0].tolist() != before


def test_most_predicted_tokens_are_masked_and_none_becomes_random():
    blocks = make_blocks(random_documents(400, 5, (3, 6), (4, 9)))
    examples = [blocks[i] for i in range(len(blocks))]
    batch = DataCollatorForReplacedTokenDetection(make_tokenizer())(examples)
    is_predicted = batch["labels"] != -100
    became = batch["input_ids"][is_predicted]
    is_mask = became == make_tokenizer().mask_token_id
    assert torch.equal(became[~is_mask], batch["labels"][is_predicted][~is_mask])
    number = int(is_predicted.sum())
    assert abs(is_mask.float().mean().item() - 0.85) < 6 * (0.85 * 0.15 / number) ** 0.5
    # Choices are those of masked language modelling with the same options.
    plain = DataCollatorForMaskedLM(make_tokenizer(), **REPLACEMENT)(examples)
    assert all(torch.equal(batch[name], value) for name, value in plain.items())
    assert {name: presets.ELECTRA_MASKING[name] for name in REPLACEMENT} == {**REPLACEMENT}


def test_the_original_number_to_mask_counts_special_tokens():
    """`num_to_predict` in `pretrain_helpers.py`: round(0.15 * 20) of 20 tokens, of which 18 may be masked."""
    assert Masking(**presets.ELECTRA_MASKING).num_masked == "nearest"
    blocks = make_blocks([[[5 + i for i in range(18)]]], 20)
    batch = DataCollatorForReplacedTokenDetection(make_tokenizer(), **presets.ELECTRA_MASKING)([blocks[0]])
    assert (batch["labels"] != -100).sum() == 3


# --- files ---


def test_it_is_saved_as_two_models_of_transformers(tmp_path: Path):
    model, batch = make_model(), make_batch()
    model.save_pretrained(tmp_path)
    ids = batch["input_ids"]
    discriminator = transformers.ElectraForPreTraining.from_pretrained(tmp_path)
    generator = transformers.ElectraForMaskedLM.from_pretrained(tmp_path, subfolder=GENERATOR_FOLDER)
    mask = batch["attention_mask"] == 1
    for stock, ours in ((discriminator, model.discriminator), (generator, model.generator)):
        outputs = [one(ids, attention_mask=batch["attention_mask"]).logits[mask] for one in (stock, ours)]
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    assert type(transformers.AutoModel.from_pretrained(tmp_path)) is transformers.ElectraModel
    files = published_files(tmp_path)
    assert {"config.json", "model.safetensors", "modeling_electra.py"} <= files
    assert {f"{GENERATOR_FOLDER}/{name}" for name in ("config.json", "model.safetensors")} <= files


def test_what_was_saved_goes_on(tmp_path: Path):
    model, batch = make_model(), make_batch()
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "gathered", state_dict=model.state_dict())  # as FSDP gives it
    others = [ReplacedTokenDetectionModel.from_pretrained(tmp_path / name) for name in ("one", "gathered")]
    others.append(make_model(initializer_range=0.1))
    others[2].load_folder(tmp_path / "one")
    for other in others:
        assert other.config.generator_size == 0.5 and not other.training
        assert other.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
        assert other.generator.electra.embeddings is other.discriminator.electra.embeddings
        assert torch.equal(other(**batch).loss, model(**batch).loss)


def test_both_get_the_entries_of_a_longer_vocabulary(tmp_path: Path):
    model, batch = make_model(), make_batch()
    before = model.config.vocab_size
    model.resize_token_embeddings(before + 4)
    assert model.generator.electra.embeddings is model.discriminator.electra.embeddings
    assert model.generator.generator_lm_head.weight is model.get_input_embeddings().weight
    batch["labels"] = torch.where(batch["labels"] != -100, before + 3, -100)
    expected = model(**batch).loss
    model.save_pretrained(tmp_path)
    again = ReplacedTokenDetectionModel.from_pretrained(tmp_path)
    assert again.config.vocab_size == again.generator.config.vocab_size == before + 4
    assert torch.equal(again(**batch).loss, expected)


def test_a_model_of_another_family_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="config is of bert, whose models are trained without a generator: use Hfe"):
        ReplacedTokenDetectionModel(HfeBertConfig(**TINY_MODEL))
    HfeBertConfig(**TINY_MODEL).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="config is of bert, whose models are trained without a generator: use Hfe"):
        ReplacedTokenDetectionModel.from_pretrained(tmp_path)


def test_a_generator_from_elsewhere_is_one_of_the_same_training(tmp_path: Path):
    """As the released models are: two checkpoints, whose embeddings are the same."""
    model = make_model()
    model.discriminator.save_pretrained(tmp_path / "discriminator")
    model.generator.save_pretrained(tmp_path / "generator")
    again = ReplacedTokenDetectionModel.from_pretrained(tmp_path / "discriminator", generator=tmp_path / "generator")
    assert torch.equal(again(**make_batch()).loss, model(**make_batch()).loss)
    with pytest.raises(ValueError, match="generator: the folder 'generator' of .*discriminator cannot be loaded"):
        ReplacedTokenDetectionModel.from_pretrained(tmp_path / "discriminator")
    torch.manual_seed(9)
    HfeElectraForMaskedLM(model.generator.config).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="embeddings of .* differ: give the generator that it was trained with"):
        ReplacedTokenDetectionModel.from_pretrained(tmp_path / "discriminator", generator=tmp_path / "other")
    with pytest.raises(ValueError, match="generator has no .*, which a HfeElectraForPreTraining needs"):
        ReplacedTokenDetectionModel.from_pretrained(tmp_path / "generator", generator=tmp_path / "discriminator")
    with pytest.raises(ValueError, match="push_to_hub: .*hf-encoders publish"):
        model.save_pretrained(tmp_path / "pushed", push_to_hub=True)


def test_a_folder_of_another_model_is_refused(tmp_path: Path):
    make_model(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lacks electra.encoder.layer.1.*resume the run that wrote it"):
        make_model().load_folder(tmp_path)


# --- embeddings that are not shared as a whole (DeBERTa v3) ---

DEBERTA = {**TINY_MODEL, "type_vocab_size": 0, "position_buckets": 8, "initializer_range": 0.3}


def make_deberta(embedding_sharing: str | None = None, **fields) -> ReplacedTokenDetectionModel:
    torch.manual_seed(0)
    config = HfeDebertaV2Config(**{**DEBERTA, **NO_DROPOUT, **fields})
    return ReplacedTokenDetectionModel(config, embedding_sharing=embedding_sharing).eval()


def train_a_step(model: ReplacedTokenDetectionModel, batch: dict[str, torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(**batch).loss.backward()
    optimizer.step()
    model.zero_grad()


def test_detection_has_no_gradient_in_the_tables_of_a_generator_but_in_the_differences():
    model, batch = make_deberta(), make_batch()
    words = model.discriminator.deberta.embeddings.word_embeddings
    assert model.embedding_sharing == "gdes" and not words.weight.any()
    outputs = model(**batch)
    outputs.rtd.nll.backward(retain_graph=True)
    assert all(one.grad is None for one in model.generator.parameters())
    assert words.weight.grad.any() and all(one.grad is not None for one in model.discriminator.parameters())
    before = {name: one.grad.clone() for name, one in model.discriminator.named_parameters()}
    outputs.mlm.nll.backward()
    assert all(one.grad.any() for one in model.generator.parameters())
    assert all(torch.equal(one.grad, before[name]) for name, one in model.discriminator.named_parameters())


@pytest.mark.parametrize("fields", [{}, {"position_biased_input": True, "type_vocab_size": 2}])
def test_a_discriminator_reads_the_generators_tables_and_differences(fields):
    """Written out: a discriminator of its own whose tables are the sums."""
    model, batch = make_deberta(**fields), make_batch()
    for _ in range(2):
        train_a_step(model, batch)
    alone = type(model.discriminator)(model.discriminator.config).eval()
    weights = dict(model.discriminator.state_dict())
    assert model.disentangled == ["word_embeddings", "position_embeddings"][: 1 + bool(fields)]
    for name in model.disentangled:
        table = model.generator.get_submodule(f"deberta.embeddings.{name}").weight
        assert weights[f"deberta.embeddings.{name}.weight"].any()
        weights[f"deberta.embeddings.{name}.weight"] = weights[f"deberta.embeddings.{name}.weight"] + table
    alone.load_state_dict(weights)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(model.discriminator(**inputs).logits, alone(**inputs).logits)


@pytest.mark.parametrize("sharing", ["gdes", "none"])
def test_a_pair_is_saved_as_transformers_reads_it_and_goes_on_bit_for_bit(sharing, tmp_path: Path):
    model, batch = make_deberta(sharing), make_batch()
    train_a_step(model, batch)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "gathered", state_dict=model.state_dict())
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    stock = transformers.DebertaV2Model.from_pretrained(tmp_path / "one")
    real = batch["attention_mask"] == 1
    states = model.discriminator.deberta(**inputs).last_hidden_state[real]
    torch.testing.assert_close(stock(**inputs).last_hidden_state[real], states, atol=1e-5, rtol=1e-5)

    load = ReplacedTokenDetectionModel.from_pretrained
    others = [load(tmp_path / name, embedding_sharing=sharing) for name in ("one", "gathered")]
    others.append(make_deberta(sharing, initializer_range=0.1))
    others[2].load_folder(tmp_path / "one")
    for other in others:
        assert other.config.generator_depth == 0.5 and not other.training
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
        assert torch.equal(other(**batch).loss, model(**batch).loss)
    if sharing == "gdes":  # of published pairs, which have sums only
        (tmp_path / "one" / GENERATOR_FOLDER / DIFFERENCES_FILE).unlink()
        torch.testing.assert_close(load(tmp_path / "one")(**batch).loss, model(**batch).loss)
        with pytest.raises(ValueError, match=f"has no generator/{DIFFERENCES_FILE}: resume the run"):
            make_deberta(sharing).load_folder(tmp_path / "one")
        model.discriminator.save_pretrained(tmp_path / "gathered")  # another one in its place
        with pytest.raises(ValueError, match="word_embeddings are not the discriminator's.*delete the file"):
            load(tmp_path / "gathered")
    assert not any(DIFFERENCES_FILE in name for name in published_files(tmp_path / "gathered"))


def test_all_embeddings_of_deberta_may_be_shared_and_other_sizes_may_not(tmp_path: Path):
    model, batch = make_deberta("all"), make_batch()
    train_a_step(model, batch)
    assert model.generator.get_input_embeddings() is model.discriminator.get_input_embeddings()
    model.save_pretrained(tmp_path)
    again = ReplacedTokenDetectionModel.from_pretrained(tmp_path, embedding_sharing="all")
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    wide = type(model.generator)(HfeDebertaV2Config(**{**DEBERTA, "hidden_size": 24, "enhanced_mask_decoder": True}))
    with pytest.raises(ValueError, match=r"generator: its word_embeddings have the shape \(60, 24\).*trained with"):
        ReplacedTokenDetectionModel(model.config, type(model.discriminator)(model.config), wide)


def test_what_reads_a_generator_reads_its_decoder():
    model, batch = make_deberta().generator, make_batch()
    inputs = [batch[name] for name in ("input_ids", "attention_mask")]
    is_wanted = batch["labels"] != -100
    expected = model(*inputs).logits[is_wanted]
    torch.testing.assert_close(masked_token_scores(model, *inputs, is_wanted), expected)


@pytest.mark.parametrize("sharing", ["gdes", "none"])
@pytest.mark.parametrize("rows", [-3, 4])
def test_tables_that_differ_get_the_entries_of_another_vocabulary(sharing, rows):
    model, batch = make_deberta(sharing), make_batch()
    batch["input_ids"], batch["labels"] = batch["input_ids"].clamp(max=50), batch["labels"].clamp(max=50)
    train_a_step(model, batch)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        before = model(**inputs).logits
    model.resize_token_embeddings(model.config.vocab_size + rows)
    torch.testing.assert_close(model(**inputs).logits, before)
    assert model.discriminator.get_input_embeddings().weight.shape == model.get_input_embeddings().weight.shape
    train_a_step(model, batch)


def test_samples_are_of_the_decoder_of_the_generator():
    model, batch = make_deberta(), make_batch()
    outputs = model(**batch)
    scores = model.generator(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    is_predicted = batch["labels"] != -100
    expected = sampled_tokens(scores[is_predicted].detach().clone(), batch["random_bits"][is_predicted])
    assert torch.equal(outputs.corrupted_ids[is_predicted], expected)
    assert model.generator.config.num_hidden_layers == 1 and model.generator.config.enhanced_mask_decoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_sharing": "half"}, "embedding_sharing='half' must be one of all, gdes, none"),
        ({"detection_weight": 0}, "detection_weight=0 must be above 0"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        get_objective("rtd").with_options(**options)
    assert get_objective("rtd").with_options(detection_weight=7).loss_weights == {"mlm": 1.0, "rtd": 7}
    model = ReplacedTokenDetectionModel(HfeDebertaV2Config(**DEBERTA), detection_weight=7)
    batch = make_batch()
    outputs = model.eval()(**batch)
    expected = outputs.mlm.nll / outputs.mlm.count + 7 * outputs.rtd.nll / outputs.rtd.count
    torch.testing.assert_close(outputs.loss, expected)


# --- the objective ---


def test_families_without_a_discriminator_are_refused():
    objective = get_objective("rtd")
    config_classes = {one.model_type: one for one in transformers.AutoModelForMaskedLM._model_mapping._extra_content}
    with pytest.raises(ValueError, match="objective rtd: bert has no head for replaced tokens. Use .*family electra"):
        objective.model_class(config_classes["bert"])
    assert objective.model_class(HfeElectraConfig) is ReplacedTokenDetectionModel
    assert get_objective("mlm").model_class(HfeElectraConfig) is HfeElectraForMaskedLM
    with pytest.raises(ValueError, match="objective nsp: electra has no head for masked tokens and sentence pairs"):
        get_objective("nsp").model_class(HfeElectraConfig)


def test_one_checkpoint_is_refused_where_two_models_are_trained():
    with pytest.raises(ValueError, match="--from 'folder' is one model, and objective rtd trains two"):
        get_objective("rtd").of_checkpoint(SimpleNamespace(option="--from", source="folder", file=lambda name: None))


def test_what_the_card_says():
    objective = get_objective("rtd")
    metrics = {"eval_mlm_loss": 3.0, "eval_mlm_accuracy": 0.4, "eval_perplexity": math.exp(3), "eval_rtd_loss": 0.2}
    metrics |= {"eval_rtd_accuracy": 0.93, "eval_rtd_label_1_share": 0.09}
    results = {(entry["task"], entry["metric"]): entry for entry in objective.results(metrics, 6.0)}
    assert results[("token-classification", "accuracy")]["baseline"] == "all original 0.9100"
    assert set(results) == {
        ("fill-mask", "perplexity of the generator"),
        ("fill-mask", "accuracy of the generator"),
        ("token-classification", "accuracy"),
    }
    assert "accuracy 0.93 (all original 0.9100)" in objective.summary(metrics, 6.0)
    described = objective.describe(
        DataCollatorForReplacedTokenDetection(make_tokenizer()), (), {}, {"mask_rate": 0.15, "rtd_label_1_share": 0.09}
    )
    assert "9.0 % of the tokens" in described["replaced token detection"]
    (generator,) = (words for name, words in described.items() if "generator" in name)
    assert "85 % [MASK], 0 % random, 15 % kept" in generator and "`generator`" in generator
    assert not objective.fills_masks


def test_the_discriminator_alone_takes_labels_of_two_classes():
    model, batch = make_model().discriminator, make_batch()
    assert isinstance(model, HfeElectraForPreTraining)
    with pytest.raises(ValueError, match=r"labels holds \d+, outside of \[0, 1\]"):
        model(batch["input_ids"], labels=batch["input_ids"])
    with pytest.raises(ValueError, match="labels has shape"):
        model(batch["input_ids"], labels=torch.zeros(3, dtype=torch.long))
