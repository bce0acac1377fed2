"""The tests that `test_families.py`, `test_xlm_parity.py` and `test_xlnet_parity.py` run for a family."""

from typing import Any, ClassVar

import pytest
import torch
from transformers.integrations.neftune import activate_neftune

from hf_encoders.models import encoder_attention, encoder_kernels
from hf_encoders.models.encoder_configuration import EncoderConfig
from tests.families import model_class, stock_class
from tests.parity.parity_with_transformers import (
    BATCHES,
    as_choices,
    assert_equal_to_transformers,
    check_head,
    combination_of_outputs,
    compare_gradients,
    compare_outputs,
    head_name,
    make_batch,
    make_config,
    make_labels,
    make_pair,
)


NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
    "classifier_dropout_prob": 0.0,
    "summary_first_dropout": 0.0,
    "summary_last_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
}
PROBLEMS = {
    "one number": {"num_labels": 1},
    "numbers": {"num_labels": 3, "problem_type": "regression"},
    "one label": {"num_labels": 4},
    "several labels": {"num_labels": 3, "problem_type": "multi_label_classification"},
}


def heads_of(config_class: type[EncoderConfig]) -> tuple[tuple[type, type], ...]:
    """Return a family's model classes with transformers' own: the base model, the classifier of sequences, others."""
    first = ("AutoModel", "AutoModelForSequenceClassification")
    names = dict.fromkeys((*first, *(name for name in config_class.AUTO_MAP if name.startswith("AutoModel"))))
    classes = dict.fromkeys(model_class(config_class, name) for name in names)
    return tuple((ours, stock) for ours in classes if (stock := stock_class(ours)))


class FamilyParity:
    """A family sets `heads`: the base model, the classifier of sequences, and all others, with transformers' class.

    A kind of block is compared on every batch, by its base model and without labels; a head, and a family whose blocks
    another one has, on one of them.
    """

    heads: ClassVar[tuple[tuple[type, type], ...]]
    fields: ClassVar[dict[str, Any]] = {}
    has_blocks: ClassVar[bool] = True  # whether layers and embeddings are the family's, and not BERT's
    padded: ClassVar[str] = "right"  # the side on which transformers' heads pool no padding
    looks_up_columns: ClassVar[bool] = False  # whether transformers' class gives its embedding `(T, B)`

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give a test every head, those with an MLM decoder, or every head with one batch of `BATCHES`."""
        if "batch_of_head" in metafunc.fixturenames:
            implementations = ("eager", "sdpa")
            cases = [(self.heads[0], kind, name) for kind in BATCHES for name in implementations]
            if not self.has_blocks:
                cases = [(self.heads[0], kind, name) for kind, name in zip(BATCHES[1:3], implementations, strict=True)]
            for i, head in enumerate(self.heads[1:]):
                cases.append((head, BATCHES[(i + len(type(self).__name__)) % len(BATCHES)], implementations[i % 2]))
            ids = [f"{head[1].__name__}-{kind}-{name}" for head, kind, name in cases]
            metafunc.parametrize("batch_of_head", cases, ids=ids)
        for argument, endings in {"head": "", "mlm_head": ("ForMaskedLM", "ForPreTraining")}.items():
            if argument in metafunc.fixturenames:
                heads = [head for head in self.heads if head_name(head[1]).endswith(endings)]
                metafunc.parametrize(argument, heads, ids=[head[1].__name__ for head in heads])

    def test_loss_and_gradients_are_equal(self, batch_of_head: tuple) -> None:
        head, kind, implementation = batch_of_head
        check_head(*head, kind, seed=BATCHES.index(kind), implementation=implementation, fields=self.fields)

    @pytest.mark.parametrize("kind", ["full", "right", "left", "holes"])
    def test_all_outputs_are_equal_without_labels(self, kind: str) -> None:
        flags = {"output_hidden_states": True, "output_attentions": True}
        for head in (self.heads[0], self.heads[BATCHES.index(kind) % len(self.heads)]):
            check_head(*head, kind, seed=3, with_labels=False, fields=self.fields, **flags)

    def test_float64_is_equal_for_a_random_configuration(self, head: tuple) -> None:
        seed = 20 + self.heads.index(head)
        kind = BATCHES[seed % len(BATCHES)]
        check_head(
            *head,
            kind,
            seed=seed,
            fields=self.fields,
            dtype=torch.float64,
            implementation="sdpa",
            output_hidden_states=True,
        )

    def test_training_without_dropout_is_equal(self, head: tuple) -> None:
        check_head(*head, self.padded, seed=5, train=True, fields={**self.fields, **NO_DROPOUT}, implementation="sdpa")

    def test_dropout_falls_where_it_does_in_transformers(self, head: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the same seed, on a batch without padding, both draw the same numbers in the same order.

        With torch's own masks, that is; which of ours fall where is all the same code.
        """
        for module in (encoder_attention, encoder_kernels):
            monkeypatch.setattr(module, "samples_16_bits", lambda tensor, probability: False)
        config = make_config(head[0], 13, self.fields)
        batch = make_batch("full", config, rows=6)
        batch = as_choices(batch) if head_name(head[1]) == "ForMultipleChoice" else batch
        pair = make_pair(*head, config)
        assert not torch.equal(pair[0](**batch)[0], pair[0].train()(**batch)[0])
        outputs = []
        for model in pair:
            torch.manual_seed(17)
            outputs.append(model.train()(**batch))
        compare_outputs(*outputs, batch, 1e-5)

    @pytest.mark.parametrize("kind", ["right", "left"])
    def test_labels_on_padding_count_as_in_transformers(self, mlm_head: tuple, kind: str) -> None:
        check_head(*mlm_head, kind, seed=6, labels_on_padding=True, fields=self.fields, implementation="sdpa")

    def test_feed_forward_in_chunks_is_equal(self) -> None:
        check_head(*self.heads[0], self.padded, seed=7, fields={**self.fields, "chunk_size_feed_forward": 4})

    def test_untied_decoder_is_equal(self, mlm_head: tuple) -> None:
        check_head(*mlm_head, self.padded, seed=8, fields={**self.fields, "tie_word_embeddings": False})

    @pytest.mark.parametrize("problem", PROBLEMS)
    def test_problem_types_of_classifiers_are_equal(self, problem: str) -> None:
        check_head(*self.heads[1], self.padded, seed=9, fields={**self.fields, **PROBLEMS[problem]})

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_gradient_checkpointing_changes_no_gradient(self, mlm_head: tuple, implementation: str) -> None:
        config = make_config(mlm_head[0], 10, {**self.fields, **NO_DROPOUT})
        batch = make_batch("right", config)
        labels = make_labels(head_name(mlm_head[1]), config, batch)
        ours, stock = make_pair(*mlm_head, config, implementation)
        ours.gradient_checkpointing_enable()
        assert any(getattr(module, "gradient_checkpointing", False) for module in ours.modules())
        losses = [model.train()(**batch, **labels).loss for model in (ours, stock)]
        compare_gradients(ours, stock, losses, 1e-5)

    def test_four_dimensional_masks_are_read_as_in_transformers(self) -> None:
        config = make_config(self.heads[0][0], 12, self.fields)
        inputs = make_batch("full", config)
        may_attend = torch.rand(3, 1, 8, 8) < 0.7
        may_attend |= torch.eye(8, dtype=torch.bool)
        ours, stock = make_pair(*self.heads[0], config, "sdpa")
        expected = stock(**inputs, attention_mask=may_attend).last_hidden_state
        additive = torch.zeros(may_attend.shape).masked_fill(~may_attend, torch.finfo(torch.float32).min)
        for mask in (may_attend, additive):
            torch.testing.assert_close(ours(**inputs, attention_mask=mask).last_hidden_state, expected)
        ours.set_attn_implementation("eager")
        torch.testing.assert_close(ours(**inputs, attention_mask=may_attend).last_hidden_state, expected)

    @pytest.mark.parametrize("kind", ["full", "padded"])
    @pytest.mark.parametrize("layer", ["word embeddings", "embeddings"])
    def test_hooks_of_embeddings_see_rows(self, layer: str, kind: str) -> None:
        """A hook that replaces what an embedding returns, as attributions do, gets and gives what it does there."""
        head = self.heads[1]
        config = make_config(head[0], 14, self.fields)
        batch = make_batch(self.padded if kind == "padded" else "full", config)
        factors = torch.rand(1, *batch["input_ids"].shape[1:], 1) + 0.5
        is_real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])) == 1
        pair, seen, targets = make_pair(*head, config), [], []
        outputs = []
        for model in pair:
            transposed = self.looks_up_columns and model is pair[1]

            def replace(_: Any, inputs: tuple, output: torch.Tensor, transposed: bool = transposed) -> torch.Tensor:
                rows = output.transpose(0, 1) if transposed else output
                seen.append(rows)
                rows = rows * factors
                return rows.transpose(0, 1) if transposed else rows

            embedding = model.get_input_embeddings()
            if layer == "embeddings":
                embedding = getattr(model.base_model, "embeddings", embedding)
            embedding.register_forward_hook(replace)
            outputs.append(model(**batch))
            targets.append(combination_of_outputs(outputs[-1], batch))
        assert len(seen) == 2
        gradients = [
            torch.autograd.grad(target, rows, retain_graph=True)[0] for target, rows in zip(targets, seen, strict=True)
        ]
        for ours, stock in (seen, gradients):
            assert ours.shape == stock.shape == (*is_real.shape, ours.shape[-1])
            torch.testing.assert_close(ours[is_real], stock[is_real], atol=1e-6, rtol=1e-5)
        compare_outputs(*outputs, batch, 1e-5)
        compare_gradients(*pair, targets, 1e-5)

    def test_noise_of_neftune_is_equal(self) -> None:
        """From the same seed, while training: `TrainingArguments(neftune_noise_alpha=...)`."""
        config = make_config(self.heads[1][0], 15, {**self.fields, **NO_DROPOUT})
        batch = make_batch(self.padded, config)
        labels = make_labels(head_name(self.heads[1][1]), config, batch)
        pair, targets, without_noise = make_pair(*self.heads[1], config, dtype=torch.float64), [], []
        for model in pair:
            model.train()
            without_noise.append(model(**batch, **labels)[0])
            activate_neftune(model, 50.0)
            torch.manual_seed(17)
            targets.append(model(**batch, **labels).loss)
        assert targets[0].item() != without_noise[0].sum().item()
        torch.testing.assert_close(*targets, atol=1e-6, rtol=1e-6, check_dtype=False)
        compare_gradients(*pair, targets, 1e-6)

    def test_a_small_difference_is_seen(self) -> None:
        """The comparison itself can fail."""
        ours_class, stock_class = self.heads[0]

        class Wrong(ours_class):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                outputs = super().forward(*args, **kwargs)
                outputs.last_hidden_state = outputs.last_hidden_state + 1e-3
                return outputs

        config = make_config(ours_class, 11, self.fields)
        with pytest.raises(AssertionError, match="last_hidden_state"):
            assert_equal_to_transformers(Wrong, stock_class, config, make_batch("right", config))
