"""XLM of this package against transformers' own: outputs, loss and gradients on every real token."""

import pytest
import torch

import hf_encoders
from tests.parity.family_parity import FamilyParity, heads_of
from tests.parity.parity_with_transformers import check_head, make_batch, make_config, make_pair


class XLMParity(FamilyParity):
    heads = heads_of(hf_encoders.HfeXLMConfig)
    # transformers' XLM takes masks of one flag per token only.
    test_four_dimensional_masks_are_read_as_in_transformers = None

    def test_float64_is_equal_for_a_random_configuration(self, head: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
        """With transformers' softmax, which is float32 whatever the model's dtype, in float64 too."""
        monkeypatch.setattr(torch.Tensor, "float", lambda tensor: tensor)
        super().test_float64_is_equal_for_a_random_configuration(head)

    @pytest.mark.parametrize("kind", ["right", "left", "padding ids inside"])
    def test_padding_is_zero_in_every_hidden_state(self, kind: str) -> None:
        config = make_config(self.heads[0][0], 14, self.fields)
        batch = make_batch(kind, config)
        states = [
            model(**batch, output_hidden_states=True).hidden_states for model in make_pair(*self.heads[0], config)
        ]
        for ours, stock in zip(*states, strict=True):
            torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-5)

    def test_rows_without_a_mask_have_the_padding_of_transformers(self, mlm_head: tuple) -> None:
        """Here and there it is counted by its id: labels of the padding stay in the loss."""
        check_head(*mlm_head, "padding ids inside", seed=15, fields=self.fields)


class TestXLM(XLMParity):
    fields = {"sinusoidal_embeddings": True, "summary_activation": "tanh"}


class TestXLMWithLanguages(XLMParity):
    heads = XLMParity.heads[:3]
    fields = {"n_langs": 3, "gelu_activation": False, "embed_init_std": 0.1}


class TestXLMOfLanguagesThatItIsNotTold(XLMParity):
    """As the released models of 17 and 100 languages: `langs` changes nothing."""

    heads = XLMParity.heads[:2]
    has_blocks = False
    fields = {"n_langs": 3, "use_lang_emb": False}

    def test_languages_are_ignored(self) -> None:
        config = make_config(self.heads[0][0], 16, self.fields)
        batch = make_batch("right", config)
        for model in make_pair(*self.heads[0], config):
            with_languages = model(**batch, langs=torch.ones_like(batch["input_ids"])).last_hidden_state
            torch.testing.assert_close(with_languages, model(**batch).last_hidden_state, rtol=0, atol=0)
