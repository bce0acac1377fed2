"""The test cases: one per family and side, collected by `transformers_suite.py` only.

The sizes are those transformers uses for its own tests of these families, without the decoder classes.
"""

import json
import os
import unittest
from pathlib import Path

import torch
import transformers

from hf_encoders.registration import config_class_of, family_names
from tests.families import fields_of, model_class, stock_class
from tests.parity import suite_source


# Nothing to do when imported by anyone else, such as pytest looking for doctests.
CHOICE = json.loads(os.environ.get("TRANSFORMERS_SUITE", "null"))
WITHOUT_TOKEN_TYPES = ("distilbert", "modernbert")
SENTENCE_LABEL = {"bert": "next_sentence_label", "albert": "sentence_order_label"}
# One layer per group and shared group, as many groups as layers: the tests take `num_hidden_layers` for the number
# of attention maps and of hidden states less one, so they leave no room for a second layer inside a group.
FAMILY_SIZES = {
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 1},
    "modernbert": {"pad_token_id": 0, "local_attention": 4},
    "deberta-v2": {
        **{"relative_attention": True, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True},
        **{"pos_att_type": "p2c|c2p", "position_biased_input": False, "legacy": False},
    },
    "xlm": {"n_langs": 3, "lang2id": {"a": 0, "b": 1, "c": 2}, "default_lang": "b"},  # some tests give no `langs`
}


class ModelTester:
    """What the common tests ask of a model tester: sizes, a configuration and a batch."""

    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    type_vocab_size = 16
    num_choices = 4
    is_training = True

    def __init__(self, family: str, config_class: type) -> None:
        """Tester of `family` with its configuration class."""
        self.family = family
        self.config_class = config_class

    def get_config(self) -> transformers.PreTrainedConfig:
        """A configuration with dropout on and a feed-forward width that nothing else divides."""
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 37,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "type_vocab_size": self.type_vocab_size,
            "initializer_range": 0.02,
            **FAMILY_SIZES.get(self.family, {}),
        }
        fields = fields_of(self.config_class, sizes)
        # By its own names: transformers derives the width of XLNet's heads from these only.
        fields = {self.config_class.attribute_map.get(name, name): value for name, value in fields.items()}
        if self.family == "xlnet":
            for name in ("max_position_embeddings", "type_vocab_size", "attention_probs_dropout_prob"):
                fields.pop(name, None)  # transformers' class refuses the first, and has none of them
        return self.config_class(**fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[transformers.PreTrainedConfig, dict[str, torch.Tensor]]:
        """A configuration and a batch `(13, 7)` whose mask has holes anywhere but at the first token."""
        config = self.get_config()
        shape = (self.batch_size, self.seq_length)
        input_ids = common.ids_tensor(shape, self.vocab_size)
        if self.family in ("roberta", "xlm-roberta"):
            # They number positions by the padding tokens, which `inputs_embeds` cannot show.
            input_ids[input_ids == config.pad_token_id] += 1
        inputs = {
            "input_ids": input_ids,
            "token_type_ids": common.ids_tensor(shape, self.type_vocab_size),
            "attention_mask": common.random_attention_mask(shape),
        }
        if self.family in WITHOUT_TOKEN_TYPES:
            del inputs["token_type_ids"]
        if hasattr(config, "n_langs"):
            inputs["langs"] = common.ids_tensor(shape, config.n_langs)
        return config, inputs


def case(family: str, stock: bool) -> type[unittest.TestCase]:
    """The test case of one family.

    Args:
        family: The `model_type`.
        stock: Whether to test the classes of transformers rather than ours.

    Returns:
        A test case with all common tests and one of the configuration.
    """
    config_class = config_class_of(family)
    classes = [model_class(config_class, auto_class) for auto_class in config_class.AUTO_MAP if "Model" in auto_class]
    classes = [stock_class(ours) if stock else ours for ours in dict.fromkeys(classes)]
    classes = [one for one in classes if one is not None]  # a head of ours alone
    config_class = stock_class(config_class) if stock else config_class

    class FamilyTest(common.ModelTesterMixin, unittest.TestCase):
        all_model_classes = tuple(classes)
        # transformers holds only families younger than these to it; ours is new code.
        test_can_init_all_missing_weights_before_2023 = True

        def setUp(self) -> None:
            """Start every test from the same random state, so that a failure can be run again."""
            common.global_rng.seed(CHOICE["seed"])
            torch.manual_seed(CHOICE["seed"])
            self.model_tester = ModelTester(family, config_class)
            # transformers gives the width 37 alone, which no model can split into the default number of heads, and
            # XLNet, half of whose columns are sines, into halves. Our
            # configurations refuse that, as they should.
            sizes = {"hidden_size": 38, "num_attention_heads": 1}
            sizes = {config_class.attribute_map.get(name, name): size for name, size in sizes.items()}
            self.config_tester = configuration.ConfigTester(self, config_class=config_class, **sizes)

        def _prepare_for_class(
            self, inputs_dict: dict[str, torch.Tensor], model_class: type, return_labels: bool = False
        ) -> dict[str, torch.Tensor]:
            inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)
            if return_labels and model_class.__name__.endswith("ForPreTraining"):
                zeros = torch.zeros_like(inputs["input_ids"])
                inputs["labels"] = zeros
                if family in SENTENCE_LABEL:
                    inputs[SENTENCE_LABEL[family]] = zeros[:, 0]
            return inputs

        def test_config(self) -> None:
            self.config_tester.run_common_tests()

    FamilyTest.__name__ = FamilyTest.__qualname__ = config_class.__name__.replace("Config", "Test")
    return FamilyTest


if CHOICE is not None:
    common, configuration = suite_source.load(Path(CHOICE["source"]))
    suite_source.admit(common, "Hfe", tuple(family_names()))
    for chosen in CHOICE["families"]:
        for side in CHOICE["stock_sides"]:
            made = case(chosen, side)
            globals()[made.__name__] = made
            # A name of its own would be collected as a second test case.
            del made
