"""The tests that `test_<family>_parity.py` runs for every head of a family."""

from typing import Any, ClassVar

import pytest
import torch

from hf_encoders.models import encoder_attention, encoder_cpu_kernels
from tests.parity.parity_with_transformers import (
    BATCHES,
    as_choices,
    assert_equal_to_transformers,
    check_head,
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


class FamilyParity:
    """A family sets `heads`: the base model, the classifier of sequences, and all others, with transformers' class."""

    heads: ClassVar[tuple[tuple[type, type], ...]]
    fields: ClassVar[dict[str, Any]] = {}
    padded: ClassVar[str] = "right"  # the side on which transformers' heads pool no padding

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give a test that asks for a head all of them, or those with one label a token, or with an MLM decoder."""
        kinds = {
            "head": "",
            "token_head": ("ForMaskedLM", "ForPreTraining", "ForTokenClassification"),
            "mlm_head": ("ForMaskedLM", "ForPreTraining"),
        }
        for argument, endings in kinds.items():
            if argument in metafunc.fixturenames:
                heads = [head for head in self.heads if head_name(head[1]).endswith(endings)]
                metafunc.parametrize(argument, heads, ids=[head[1].__name__ for head in heads])

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("kind", BATCHES)
    def test_loss_and_gradients_are_equal(self, head: tuple, kind: str, implementation: str) -> None:
        check_head(*head, kind, seed=BATCHES.index(kind), implementation=implementation, fields=self.fields)

    @pytest.mark.parametrize("kind", ["full", "right", "left", "holes"])
    def test_all_outputs_are_equal_without_labels(self, head: tuple, kind: str) -> None:
        flags = {"output_hidden_states": True, "output_attentions": True}
        check_head(*head, kind, seed=3, with_labels=False, fields=self.fields, **flags)

    @pytest.mark.parametrize("seed", range(20, 24))
    def test_float64_is_equal_for_random_configurations(self, head: tuple, seed: int) -> None:
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
        for module in (encoder_attention, encoder_cpu_kernels):
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
    def test_labels_on_padding_count_as_in_transformers(self, token_head: tuple, kind: str) -> None:
        check_head(*token_head, kind, seed=6, labels_on_padding=True, fields=self.fields, implementation="sdpa")

    def test_feed_forward_in_chunks_is_equal(self, head: tuple) -> None:
        check_head(*head, self.padded, seed=7, fields={**self.fields, "chunk_size_feed_forward": 4})

    def test_untied_decoder_is_equal(self, mlm_head: tuple) -> None:
        check_head(*mlm_head, self.padded, seed=8, fields={**self.fields, "tie_word_embeddings": False})

    @pytest.mark.parametrize("problem", PROBLEMS)
    def test_problem_types_of_classifiers_are_equal(self, problem: str) -> None:
        check_head(*self.heads[1], self.padded, seed=9, fields={**self.fields, **PROBLEMS[problem]})

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_gradient_checkpointing_changes_no_gradient(self, token_head: tuple, implementation: str) -> None:
        config = make_config(token_head[0], 10, {**self.fields, **NO_DROPOUT})
        batch = make_batch("right", config)
        labels = make_labels(head_name(token_head[1]), config, batch)
        ours, stock = make_pair(*token_head, config, implementation)
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
