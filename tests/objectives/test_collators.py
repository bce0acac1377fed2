import dataclasses
import inspect

import datasets
import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_encoders import (
    DataCollatorForMaskedLM,
    DataCollatorForNextSentencePrediction,
    DataCollatorForSentenceOrderPrediction,
    DocumentChunks,
    HfeAlbertConfig,
    HfeAlbertForPreTraining,
    HfeBertConfig,
    HfeBertForMaskedLM,
    HfeBertForPreTraining,
    Masking,
    SentenceBlocks,
    presets,
)
from tests.corpus.corpora import TINY_MODEL, make_dataset, random_documents


def documents(num_documents=30, seed=0):
    return make_dataset(random_documents(num_documents, seed, (2, 9), (2, 9)))


def test_rows_are_padded_to_the_longest_and_to_a_multiple(tokenizer):
    rows = [{"input_ids": [1, 7, 8, 9, 2]}, {"input_ids": [1, 7, 2]}]
    for multiple, width in ((None, 5), (8, 8)):
        batch = DataCollatorForMaskedLM(tokenizer, pad_to_multiple_of=multiple)(rows)
        assert {name: tuple(value.shape) for name, value in batch.items()} == dict.fromkeys(
            ("attention_mask", "input_ids", "labels"), (2, width)
        )
        assert batch["attention_mask"].sum(dim=1).tolist() == [5, 3]
        assert (batch["input_ids"][1, 3:] == 0).all() and (batch["labels"][1, 3:] == -100).all()
        assert all(value.dtype == torch.int64 for value in batch.values())


def test_plain_rows_follow_torchs_generator(tokenizer):
    rows = [{"input_ids": [1, *range(10, 50), 2]}]
    collator = DataCollatorForMaskedLM(tokenizer)
    torch.manual_seed(5)
    first, second = collator(rows)["labels"], collator(rows)["labels"]
    torch.manual_seed(5)
    assert torch.equal(first, collator(rows)["labels"])
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "pair_collator", [DataCollatorForNextSentencePrediction, DataCollatorForSentenceOrderPrediction]
)
def test_pairs_have_special_tokens_segments_and_no_more_than_max_length(tokenizer, pair_collator):
    chunks = DocumentChunks(documents(), max_length=20, redraw=False)
    collator = pair_collator(tokenizer, max_length=20, mask_probability=1e-9)
    batch = collator([chunks[i] for i in range(len(chunks))])
    for ids, types, mask in zip(batch["input_ids"], batch["token_type_ids"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        ids, types = ids[:length], types[:length]
        separators = (ids == 2).nonzero().flatten()
        assert length <= 20 and ids[0] == 1 and (ids == 1).sum() == 1
        assert len(separators) <= 2 and separators[-1] == length - 1  # one behind a single sentence
        assert types.tolist() == [0] * (separators[0] + 1) + [1] * (length - separators[0] - 1)
    label = batch[collator.label_name]
    assert label.shape == (len(chunks),) and set(label.tolist()) == {-100, 0, 1}
    has_second = (batch["input_ids"] == 2).sum(dim=1) == 2
    assert bool(has_second[label >= 0].all()) and 0 < int((~has_second).sum()) <= int((label < 0).sum())


def test_an_example_is_the_same_in_any_batch(tokenizer):
    chunks = DocumentChunks(documents(), max_length=24, redraw=False)
    collator = DataCollatorForSentenceOrderPrediction(tokenizer, max_length=24)
    examples = [chunks[i] for i in range(10)]
    together = collator(examples)
    for i, example in enumerate(examples):
        alone = collator([example])
        length = int(alone["attention_mask"].sum())
        for name, value in alone.items():
            assert torch.equal(value[0], together[name][i] if value.dim() == 1 else together[name][i, :length])


def unpadded(batch):
    """Ids with what was masked put back, without padding."""
    tokens = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    return [row[mask.bool()].tolist() for row, mask in zip(tokens, batch["attention_mask"], strict=True)]


def test_examples_of_several_corpora_in_one_batch_draw_from_their_own(tokenizer):
    """A batch of `ConcatDataset`: negatives come from the corpus of the example."""
    sets = [
        DocumentChunks(
            datasets.Dataset.from_dict({"input_ids": [[[base + d, base + d]] * 4 for d in range(5)]}), 16, redraw=False
        )
        for base in (10, 30)
    ]
    both = torch.utils.data.ConcatDataset(sets)
    batch = DataCollatorForNextSentencePrediction(tokenizer, 16)([both[i] for i in (0, 5, 1, 6, 7, 2)])
    for row, high in zip(unpadded(batch), (False, True, False, True, True, False), strict=True):
        assert {token >= 30 for token in row if token > 4} == {high}
    one_by_one = DataCollatorForNextSentencePrediction(tokenizer, 16)([sets[1][1]])
    assert unpadded(batch)[3] == unpadded(one_by_one)[0]


def test_whole_words_of_a_segmented_corpus(tokenizer):
    """Column `word_starts`: words of two and one tokens, in blocks and in pairs."""
    ids = [[[10, 11, 12, 13, 14, 15]] * 4, [[20, 21, 22, 23, 24, 25]] * 4]
    starts = [[[1, 0, 1, 1, 0, 1]] * 4] * 2
    features = datasets.Features(
        {
            "input_ids": datasets.List(datasets.List(datasets.Value("int32"))),
            "word_starts": datasets.List(datasets.List(datasets.Value("uint8"))),
        }
    )
    corpus = datasets.Dataset.from_dict({"input_ids": ids, "word_starts": starts}, features=features)
    options = {"unit": "word", "mask_probability": 0.4}
    for dataset, collator in (
        (SentenceBlocks(corpus, 40), DataCollatorForMaskedLM(tokenizer, **options)),
        (DocumentChunks(corpus, 40), DataCollatorForSentenceOrderPrediction(tokenizer, 40, **options)),
    ):
        batch = collator([example for epoch in range(20) for example in dataset.at_epoch(epoch)[:]])
        labels = batch["labels"][batch["labels"] != -100].tolist()
        assert {label % 10 for label in labels} == set(range(6))
        for row in batch["labels"].tolist():
            for left, right in zip(row, row[1:], strict=False):
                for first in (10, 13, 20, 23):
                    assert (left == first) == (right == first + 1)


def test_parts_of_a_batch_have_one_form(tokenizer):
    texts = SentenceBlocks(documents(), 24, redraw=False)
    with pytest.raises(ValueError, match="examples and rows of a plain dataset"):
        DataCollatorForMaskedLM(tokenizer)([texts[0], {"input_ids": [1, 5, 2]}])
    with pytest.raises(ValueError, match="made of examples of DocumentChunks"):
        DataCollatorForSentenceOrderPrediction(tokenizer)([texts[0]])


def test_pairs_are_sampled_again_every_epoch(tokenizer):
    chunks = DocumentChunks(documents(), max_length=24)
    collator = DataCollatorForNextSentencePrediction(tokenizer, max_length=24)
    epochs = []
    for epoch in (0, 1, 0):
        chunks.set_epoch(epoch)
        epochs.append(collator([chunks[i] for i in range(len(chunks))]))
    assert torch.equal(epochs[0]["input_ids"], epochs[2]["input_ids"])
    assert not torch.equal(epochs[0]["next_sentence_label"], epochs[1]["next_sentence_label"])


def test_padding_of_plain_rows_stays_padding(tokenizer):
    rows = [
        {"input_ids": [1, 10, 2, 0, 0], "attention_mask": [1, 1, 1, 0, 0], "token_type_ids": [0, 0, 1, 0, 0]},
        {
            "input_ids": [0, 1, 10, 2, 11, 2],
            "attention_mask": [0, 1, 1, 1, 1, 1],
            "token_type_ids": [0, 0, 0, 0, 1, 1],
        },
    ]
    batch = DataCollatorForMaskedLM(tokenizer, mask_probability=1e-9)(rows)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 1, 1]]
    assert unpadded(batch) == [[1, 10, 2], [1, 10, 2, 11, 2]]


TRAINED = {
    "mlm": (HfeBertForMaskedLM, HfeBertConfig, DataCollatorForMaskedLM, {}),
    "nsp": (HfeBertForPreTraining, HfeBertConfig, DataCollatorForNextSentencePrediction, {"max_length": 24}),
    "sop": (HfeAlbertForPreTraining, HfeAlbertConfig, DataCollatorForSentenceOrderPrediction, {"max_length": 24}),
}


@pytest.mark.parametrize(("objective", "workers"), [("mlm", 0), ("nsp", 2), ("sop", 0)])
def test_stock_trainer_in_its_default_settings(tokenizer, objective, workers, tmp_path):
    """Every epoch is sampled again, also in workers; `remove_unused_columns` stays True."""
    model_class, config_class, collator_class, arguments = TRAINED[objective]
    model = model_class(config_class(**TINY_MODEL))
    corpus = documents()
    dataset = SentenceBlocks(corpus, 24) if objective == "mlm" else DocumentChunks(corpus, 24)
    collator, seen = collator_class(tokenizer, **arguments), []
    inner = model.forward

    def forward(**inputs):
        seen.append(inputs)
        return inner(**inputs)

    forward.__signature__ = __import__("inspect").signature(inner)
    model.forward = forward
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            tmp_path,
            num_train_epochs=2,
            per_device_train_batch_size=1000,
            report_to="none",
            save_strategy="no",
            dataloader_num_workers=workers,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=dataset,
        data_collator=collator,
    )
    trainer.train()
    first, second = (batch["labels"][batch["labels"] != -100].tolist() for batch in seen)
    assert first != second
    assert len(seen[0]["labels"]) == len(dataset)


@pytest.mark.parametrize("missing", ["mask_token", "pad_token", "cls_token", "sep_token"])
def test_tokenizers_without_the_tokens_needed_are_refused(tokenizer, missing):
    setattr(tokenizer, missing, None)
    with pytest.raises(ValueError, match=f"no {missing}"):
        DataCollatorForMaskedLM(tokenizer)


def test_rows_of_the_wrong_form_are_refused(tokenizer):
    with pytest.raises(ValueError, match="SentenceBlocks"):
        DataCollatorForMaskedLM(tokenizer)([{"input_ids": [[1, 2], [3]]}])
    with pytest.raises(ValueError, match="list of sentences"):
        DataCollatorForSentenceOrderPrediction(tokenizer, 16)([{"input_ids": [1, 2, 3]}])
    with pytest.raises(ValueError, match="max_length is needed"):
        DataCollatorForSentenceOrderPrediction(tokenizer)([{"input_ids": [[1, 2], [3]]}])
    with pytest.raises(ValueError, match="train on DocumentChunks"):
        DataCollatorForNextSentencePrediction(tokenizer, 16)([{"input_ids": [[1, 2], [3]]}])
    with pytest.raises(ValueError, match="pad_to_multiple_of=-3"):
        DataCollatorForMaskedLM(tokenizer, pad_to_multiple_of=-3)


def test_the_longest_pair_is_the_datasets(tokenizer):
    chunks = DocumentChunks(documents(), max_length=24, redraw=False)
    batch = DataCollatorForNextSentencePrediction(tokenizer)([chunks[i] for i in range(len(chunks))])
    assert batch["input_ids"].shape[1] == 24
    with pytest.raises(ValueError, match="max_length=16 is not the dataset.s, 24"):
        DataCollatorForNextSentencePrediction(tokenizer, 16)([chunks[0]])


def test_chunks_of_another_objective_are_refused(tokenizer):
    chunks = DocumentChunks(documents(), max_length=24, redraw=False, **presets.BERT_CHUNKS)
    for collator in (DataCollatorForMaskedLM(tokenizer), DataCollatorForSentenceOrderPrediction(tokenizer)):
        with pytest.raises(ValueError, match="put_back=True"):
            collator([chunks[0]])
    with pytest.raises(ValueError, match="max_length=4"):
        DataCollatorForSentenceOrderPrediction(tokenizer, max_length=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlm_probability": 0.15}, "Prediction has no option 'mlm_probability': it is mask_probability here"),
        ({"mask_probabilty": 0.2}, "did you mean 'mask_probability'"),
        ({"foo": 1}, "'foo': its options are tokenizer, .*pad_to_multiple_of, .*mask_probability, .*random_tokens"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        DataCollatorForNextSentencePrediction(tokenizer, **options)


def test_options_are_in_the_signature(tokenizer):
    collator_class = DataCollatorForNextSentencePrediction
    parameters = inspect.signature(collator_class).parameters
    expected = {field.name: field.default for field in dataclasses.fields(Masking)}
    assert {name: parameters[name].default for name in expected} == expected
    assert {"tokenizer", "packed", "pad_to_multiple_of", "first_position"} < parameters.keys()
    assert all(option.kind is not option.VAR_KEYWORD for option in parameters.values())
    defaults = {name: option.default for name, option in parameters.items() if option.default is not option.empty}
    assert collator_class(tokenizer, **defaults).masker.masking == Masking()


def test_batches_are_torch_tensors_as_callers_of_other_collators_ask_for(tokenizer):
    collator, rows = DataCollatorForMaskedLM(tokenizer), [{"input_ids": [1, 10, 11, 2]}]
    assert collator(rows, return_tensors="pt")["input_ids"].shape == (1, 4)
    with pytest.raises(ValueError, match="return_tensors='np': batches are torch tensors"):
        collator(rows, return_tensors="np")


def test_a_subclass_passes_the_options_on(tokenizer):
    class Mine(DataCollatorForMaskedLM):
        def __init__(self, tokenizer, extra=1, **options):
            super().__init__(tokenizer, **options)

    class MyChunks(DocumentChunks):
        def __init__(self, documents, **options):
            super().__init__(documents, 32, **options)

    assert Mine(tokenizer, mask_probability=0.3).masker.masking.mask_probability == 0.3
    assert MyChunks(documents(), segments="sentences").rule.segments == "sentences"
    with pytest.raises(ValueError, match="Mine has no option 'mask_probabilty': did you mean 'mask_probability'"):
        Mine(tokenizer, mask_probabilty=0.3)


def test_a_copy_with_another_seed_shares_its_epoch_with_workers():
    assert SentenceBlocks(documents(), 32).with_seed(1)._epoch.is_shared()
