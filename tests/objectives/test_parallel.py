"""Pairs of translations: their examples, their batches, and what models make of restarting positions."""

import numpy as np
import pytest
import torch
import transformers

from hf_encoders import (
    DataCollatorForMaskedLM,
    Example,
    HfeDebertaV2ForMaskedLM,
    ParallelPairs,
    SentenceBlocks,
    get_objective,
)
from hf_encoders.objectives.randomness import Key
from tests.corpus.corpora import make_dataset, random_documents
from tests.models.tiny import MASKED_LM, NO_DROPOUT, tiny_model


LENGTH = 24
UNMASKED = {"mask_replace_probability": 0.0, "random_replace_probability": 0.0}
LANG2ID = {"en": 1, "zh": 0}


def corpus(num_pairs=40, seed=0):
    return make_dataset(random_documents(num_pairs, seed, (2, 3), (1, 9)))


def pairs_of(documents=None, max_length=LENGTH, **options):
    options = {"languages": ("en", "zh"), "redraw": False} | options
    return ParallelPairs(corpus() if documents is None else documents, max_length, **options)


def originals(batch):
    return batch["input_ids"].where(batch["labels"] == -100, batch["labels"])


class TestPairs:
    def test_the_order_of_sides_is_drawn_for_each_pair_and_epoch(self):
        documents = [[[10, 11], [20]]] * 2000
        pairs = pairs_of(make_dataset(documents), redraw=True)
        drawn = []
        for epoch in (0, 1):
            pairs.set_epoch(epoch)
            examples = pairs[:]
            first = np.array([len(example.segments[0]) == 2 for example in examples])
            assert all(
                example.languages == (["en", "zh"] if len(example.segments[0]) == 2 else ["zh", "en"])
                for example in examples
            )
            drawn.append(first)
        # Standard deviations of 2,000 fair coins: 0.011; four of them.
        shares = [drawn[0].mean(), (drawn[0] == drawn[1]).mean()]
        assert shares == pytest.approx([0.5, 0.5], abs=0.045)

    def test_examples_are_a_function_of_seed_epoch_and_number_alone(self):
        pairs = pairs_of(redraw=True, seed=3)
        pairs.set_epoch(4)
        for index, example in zip((7, 3, 20), pairs[[7, 3, 20]], strict=True):
            alone = pairs_of(redraw=True, seed=3).at_epoch(4)[index]
            assert [ids.tolist() for ids in alone.segments] == [ids.tolist() for ids in example.segments]
            assert alone.key == example.key

    def test_pairs_that_are_too_long_are_left_out_and_counted(self):
        documents = make_dataset([[[5] * 8, [6] * 8], [[5] * 9, [6] * 8], [[5], [6] * 15], [[5] * 3, [6]]])
        assert [len(pairs_of(documents, n)) for n in (8, 20, 21)] == [1, 3, 4]
        pairs = pairs_of(documents, 21, max_sentence_length=8)
        assert (len(pairs), pairs.num_left_out) == (2, 2)
        assert "2 pairs of en-zh, 2 left out" in repr(pairs)

    def test_many_pairs_that_are_left_out_are_warned_of(self, monkeypatch):
        told = []
        monkeypatch.setattr("hf_encoders.objectives.blocks.logger.warning_once", told.append)
        documents = make_dataset([[[5] * 8, [6] * 8]] * 2 + [[[5], [6]]] * 18)
        pairs_of(documents, 19)
        assert told == []
        pairs_of(make_dataset([[[5] * 8, [6] * 8]] * 3 + [[[5], [6]]] * 17), 19)
        assert len(told) == 1 and told[0].startswith("3 of 20 pairs of en-zh are left out at max_length=19")

    def test_a_pair_of_which_the_tokenizer_left_one_side_is_left_out(self):
        assert len(pairs_of(make_dataset([[[5], []], [[5]], [[5], [6]]]))) == 1

    def test_wrong_arguments(self):
        documents = make_dataset([[[5, 6, 7], [6]]])
        for options, message in (
            ({"max_length": 5}, "max_length=5 must be a whole number of at least 6"),
            ({"languages": ("en", "en")}, "both sides are 'en'"),
            ({"languages": "en"}, "languages='en': name two"),
            ({"max_sentence_length": 0}, "max_sentence_length=0 must be a whole number of at least 1"),
            ({"max_sentence_length": 2}, "leave out all 1 pairs"),
            ({"max_length": 7}, "leave out all 1 pairs"),
            ({"documents": make_dataset([[[5], [6], [7]]])}, "document 0 has 3 sentences, and a pair has two"),
        ):
            with pytest.raises(ValueError, match=message):
                pairs_of(**{"documents": documents} | options)


class TestBatches:
    def batch_of(self, tokenizer, features, **options):
        return DataCollatorForMaskedLM(tokenizer, **{**UNMASKED, **options})(features)

    def test_the_original_example(self, make_tokenizer):
        """x = 1 20 21 1 and y = 1 40 1, as `concat_batches` with `reset_positions` gives them."""
        tokenizer = make_tokenizer(60)
        tokenizer.sep_token = tokenizer.cls_token  # XLM's `</s>`
        pair = Example([np.array([20, 21]), np.array([40])], Key(0, 0, 0), languages=["en", "zh"], restarts=True)
        for packed in (False, True):
            batch = self.batch_of(tokenizer, [pair], packed=packed, first_position=0, lang2id={"zh": 7, "en": 4})
            assert batch["input_ids"].tolist() == [[1, 20, 21, 1, 1, 40, 1]]
            assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]
            assert batch["langs"].tolist() == [[4, 4, 4, 4, 7, 7, 7]]
        assert batch["cu_seq_lens_q"].tolist() == [0, 7]  # one sequence: both sides attend to each other

    def test_both_sides_are_masked(self, tokenizer):
        documents = make_dataset([[[10, 11, 12], [20, 21]]] * 400)
        batch = DataCollatorForMaskedLM(tokenizer, packed=True, first_position=0, mask_probability=0.4)(
            pairs_of(documents).__getitems__(range(400))
        )
        predicted = batch["labels"][batch["labels"] != -100]
        shares = torch.bincount(predicted, minlength=22)[[10, 11, 12, 20, 21]] / 400
        # Two of five tokens of each pair; four standard deviations of 400 draws are 0.098.
        assert shares.tolist() == pytest.approx([0.4] * 5, abs=0.098)

    @pytest.mark.parametrize("position", [0, 2])
    def test_rows_with_and_without_restarts_are_joined(self, tokenizer, position):
        pairs, blocks = pairs_of(), SentenceBlocks(corpus(), LENGTH, redraw=False)
        features = [blocks[0], *pairs.__getitems__([4, 5])]
        padded, packed = (
            self.batch_of(tokenizer, features, packed=packed, first_position=position) for packed in (False, True)
        )
        is_real = padded["attention_mask"].bool()
        assert torch.equal(packed["position_ids"], padded["position_ids"][is_real][None])
        assert (padded["position_ids"][~is_real] == max(position - 1, 0)).all()
        rows = [
            positions[real].sub(position).tolist()
            for positions, real in zip(padded["position_ids"], is_real, strict=True)
        ]
        assert rows[0] == list(range(len(rows[0])))
        first, second = (len(segment) + 2 for segment in features[1].segments)
        assert rows[1] == [*range(first), *range(second)]

    def test_columns_of_plain_rows_pass_through(self, tokenizer):
        rows = [
            {
                "input_ids": [1, 7, 2, 1, 8, 2, 0],
                "position_ids": [0, 1, 2, 0, 1, 2, 0],
                "langs": [3, 3, 3, 1, 1, 1, 0],
            },
            {"input_ids": [1, 7, 2], "position_ids": [0, 1, 2], "langs": [3, 3, 3]},
        ]
        for row in rows:
            row["attention_mask"] = [int(i != 0) for i in row["input_ids"]]
        batch = self.batch_of(tokenizer, rows, first_position=2)
        assert batch["position_ids"].tolist() == [[2, 3, 4, 2, 3, 4], [2, 3, 4, 1, 1, 1]]
        assert batch["langs"].tolist() == [[3, 3, 3, 1, 1, 1], [3, 3, 3, 0, 0, 0]]
        with pytest.raises(ValueError, match="langs of row 1 of the batch has 2 values, input_ids 3"):
            self.batch_of(tokenizer, [rows[0], {**rows[1], "langs": [3, 3]}], first_position=2)

    def test_without_restarts_there_are_no_positions(self, tokenizer):
        block = SentenceBlocks(corpus(), LENGTH, redraw=False)[0]
        assert not {"position_ids", "langs"} & self.batch_of(tokenizer, [block]).keys()

    def test_languages_of_the_corpus_that_the_model_does_not_know(self, tokenizer):
        pair = pairs_of()[0]
        with pytest.raises(ValueError, match="language 'zh' of the examples is not one of the model's, en, de:"):
            self.batch_of(tokenizer, [pair], first_position=0, lang2id={"en": 0, "de": 1})
        with pytest.raises(ValueError, match="the examples have no language"):
            self.batch_of(tokenizer, [SentenceBlocks(corpus(), LENGTH, redraw=False)[0]], lang2id=LANG2ID)
        with pytest.raises(ValueError, match=r"lang2id=\['en', 'zh'\] must name each language's id"):
            DataCollatorForMaskedLM(tokenizer, lang2id=["en", "zh"])

    def test_restarts_need_the_first_position(self, tokenizer):
        with pytest.raises(ValueError, match="first_position is missing: positions restart"):
            self.batch_of(tokenizer, pairs_of().__getitems__([0]))
        with pytest.raises(ValueError, match="first_position is missing"):
            self.batch_of(tokenizer, [{"input_ids": [1, 7, 2], "position_ids": [0, 1, 0]}])

    def test_word_starts_of_both_sides_are_read(self, tokenizer):
        documents = make_dataset([[[10, 11, 12, 13], [20, 21, 22]]] * 200).add_column(
            "word_starts", [[[1, 0, 0, 1], [1, 0, 0]]] * 200
        )
        batch = DataCollatorForMaskedLM(
            tokenizer, packed=True, first_position=0, unit="word", mask_probability=0.4, **UNMASKED
        )(pairs_of(documents).__getitems__(range(200)))
        labels = {}
        for row in batch["labels"][0].split(batch["cu_seq_lens_q"].diff().tolist()):
            chosen = tuple(sorted(row[row != -100].tolist()))
            labels[chosen] = labels.get(chosen, 0) + 1
        whole = [{10, 11, 12}, {13}, {20, 21, 22}]
        assert all(all(word <= set(chosen) or not word & set(chosen) for word in whole) for chosen in labels)
        assert any(20 in chosen for chosen in labels) and any(10 in chosen for chosen in labels)


def languages_of(model):
    """`lang2id` for models that have language embeddings."""
    return {"lang2id": LANG2ID} if getattr(model.config, "n_langs", 1) > 1 else {}


def inputs_of(batch, with_labels=False):
    return {name: value for name, value in batch.items() if with_labels or name != "labels"}


# DeBERTa knows distances only, so that `Run` refuses pairs for it.
@pytest.mark.parametrize("model_class", [one for one in MASKED_LM if one is not HfeDebertaV2ForMaskedLM])
def test_models_see_restarting_positions_as_stock_does(tokenizer, model_class):
    """Packed and padded here, padded with the same `position_ids` in transformers' class, which has float32 in XLM."""
    model = tiny_model(
        model_class, vocab_size=60, pad_token_id=0, max_position_embeddings=LENGTH + 3, **NO_DROPOUT
    ).double()
    stock = getattr(transformers, model_class.__name__.removeprefix("Hfe"))
    stock = stock(stock.config_class.from_dict(model.config.to_dict())).eval().double()
    stock.load_state_dict(model.state_dict(), strict=True)
    position = model.config_class.position_rows(0, tokenizer.pad_token_id)
    examples = [*pairs_of().__getitems__(range(7)), SentenceBlocks(corpus(), LENGTH, redraw=False)[0]]
    if languages_of(model):
        examples = examples[:1]
    options = {"first_position": position, **languages_of(model)}
    padded, packed = (DataCollatorForMaskedLM(tokenizer, packed=p, **options)(examples) for p in (False, True))
    is_real = padded["attention_mask"].bool()
    with torch.no_grad():
        expected = stock(**inputs_of(padded)).logits[is_real]
        for batch in (padded, packed):
            found = model(**inputs_of(batch)).logits
            torch.testing.assert_close(found[is_real] if batch is padded else found[0], expected, rtol=0, atol=1e-6)
        # Without the restart the model says something else.
        other = model(**{**inputs_of(packed), "position_ids": None}).logits[0]
    assert float((other - expected).abs().max()) > 1e-5


@pytest.mark.parametrize("model_class", MASKED_LM)
def test_the_first_position_of_a_run_is_that_of_the_embeddings(tokenizer, model_class):
    model = tiny_model(model_class, pad_token_id=0)
    found = model.config_class.position_rows(0, tokenizer.pad_token_id)
    assert found == getattr(getattr(model.base_model, "embeddings", None), "first_position", 0)


def test_objectives_of_sentence_pairs_take_no_parallel_text():
    options = {"seed": 3, "redraw": False, "cross_documents": False}
    pairs = get_objective("mlm").make_parallel_examples(corpus(), LENGTH, ("en", "zh"), **options)
    assert isinstance(pairs, ParallelPairs) and pairs.seed == 3 and not pairs.redraw
    for name in ("nsp", "sop"):
        with pytest.raises(ValueError, match=f"objective {name}: the corpus en-zh is parallel text.*use .*mlm"):
            get_objective(name).make_parallel_examples(corpus(), LENGTH, ("en", "zh"))


def test_the_sides_of_a_pair_attend_to_each_other_and_to_no_other_pair(tokenizer):
    model = tiny_model(MASKED_LM[0], vocab_size=60, pad_token_id=0, max_position_embeddings=LENGTH, **NO_DROPOUT)
    batch = DataCollatorForMaskedLM(tokenizer, packed=True, first_position=0, **UNMASKED)(
        pairs_of().__getitems__(range(4))
    )
    inputs, bounds = inputs_of(batch), batch["cu_seq_lens_q"].tolist()
    restart = [i for i in range(bounds[1], bounds[2]) if batch["position_ids"][0, i] == 0][1]
    changed = inputs["input_ids"].clone()
    changed[0, bounds[2] - 2] = 5 + (changed[0, bounds[2] - 2] - 4) % 55
    with torch.no_grad():
        before, after = (model(**{**inputs, "input_ids": ids}).logits[0] for ids in (inputs["input_ids"], changed))
    difference = (before - after).abs().amax(dim=1)
    assert float(difference[bounds[1] : restart].min()) > 1e-6
    assert float(torch.cat([difference[: bounds[1]], difference[bounds[2] :]]).max()) < 1e-6
