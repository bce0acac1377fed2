"""Blocks of a stream: those of a stored corpus, with masks that no worker, shard or restart changes."""

from itertools import islice

import datasets
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from hf_encoders import (
    DataCollatorForMaskedLM,
    DocumentTokenizer,
    HfeBertConfig,
    HfeBertForMaskedLM,
    PreTrainingTrainer,
    SentenceBlocks,
    StreamedBlocks,
)
from tests.corpus.corpora import TINY_MODEL, as_text, make_dataset, random_documents


DOCUMENTS = random_documents(300, 0, (3, 9), (4, 9))


@pytest.fixture
def blocks(tokenizer):
    """Blocks of a stream of text, tokenised on the way; of the first epoch."""

    def make(shards: int = 4, shuffled: bool = False, **options) -> StreamedBlocks:
        text = [" ".join(f"{sentence}." for sentence in document) for document in as_text(DOCUMENTS)]
        stream = datasets.Dataset.from_dict({"text": text, "url": text}).to_iterable_dataset(shards)
        stream = stream.shuffle(seed=0, buffer_size=1) if shuffled else stream  # the order of shards
        stream = stream.map(DocumentTokenizer(tokenizer), batched=True, batch_size=64, remove_columns=["text"])
        examples = StreamedBlocks(stream.map(lambda row: row | {"url": "a"}), 24, **options)
        examples.set_epoch(0)
        return examples

    return make


def masked(examples, tokenizer, workers: int = 0, **options) -> list[tuple[list[int], list[int]]]:
    """Token ids and labels of every block, as the loader has them."""
    collator = DataCollatorForMaskedLM(tokenizer, pad_to_multiple_of=24, **options)
    batches = list(DataLoader(examples, 5, collate_fn=collator, num_workers=workers))
    ids, labels = (torch.cat([batch[name] for batch in batches]).tolist() for name in ("input_ids", "labels"))
    return list(zip(ids, labels, strict=True))


def test_they_are_the_blocks_of_a_stored_corpus():
    documents = make_dataset(DOCUMENTS).add_column("word_starts", [[[1] * len(s) for s in d] for d in DOCUMENTS])
    stored = SentenceBlocks(documents, 24, cross_documents=False, redraw=False)
    streamed = list(StreamedBlocks(documents.to_iterable_dataset(3), 24, redraw=False))
    assert len(streamed) == len(stored)
    for block, expected in zip(streamed, stored, strict=True):
        assert block.segments[0].tolist() == expected.segments[0].tolist()
        assert block.word_starts[0].tolist() == expected.word_starts[0].tolist()


def test_shards_and_batches_do_not_change_masks_and_epochs_do(blocks, tokenizer):
    whole = masked(blocks(shards=1), tokenizer)
    assert sorted(masked(blocks(shards=4, shuffled=True), tokenizer)) == sorted(whole)
    assert sorted(masked(blocks(shards=4, seed=1), tokenizer)) != sorted(whole)
    examples = blocks(shards=4, shuffled=True)
    first = masked(examples, tokenizer)
    examples.set_epoch(1)
    second = masked(examples, tokenizer)
    assert sorted(first) == sorted(whole) and len(second) == len(whole) and sorted(second) != sorted(whole)
    kept = blocks(shards=4, shuffled=True, redraw=False)
    kept.set_epoch(1)
    assert sorted(masked(kept, tokenizer)) == sorted(whole)


@pytest.mark.processes
def test_workers_do_not_change_masks(blocks, tokenizer):
    whole = masked(blocks(shards=1), tokenizer)
    assert sorted(masked(blocks(), tokenizer, workers=2)) == sorted(whole)


@pytest.mark.parametrize("taken", [1, 130])  # inside a document, and in a later batch of them
def test_a_killed_stream_goes_on_where_it_was(blocks, tokenizer, taken):
    collator = DataCollatorForMaskedLM(tokenizer)

    def made(examples):
        return [(batch["input_ids"].tolist(), batch["labels"].tolist()) for batch in map(collator, examples)]

    examples = blocks(shuffled=True)
    examples.set_epoch(3)
    whole = made([example] for example in examples)
    examples = blocks(shuffled=True)
    examples.set_epoch(3)
    before = made([example] for example in islice(examples, taken))
    state = examples.state_dict()
    later = blocks(shuffled=True)
    later.load_state_dict(state)
    assert len(whole) > taken and before + made([example] for example in later) == whole
    later.set_epoch(4)
    assert len(list(later)) == len(whole)


def test_a_trainer_resumes_within_the_first_pass_only(tokenizer, tmp_path):
    def trained(steps, checkpoint=None):
        stream = make_dataset(DOCUMENTS[:60]).to_iterable_dataset(4)
        torch.manual_seed(0)
        trainer = PreTrainingTrainer(
            HfeBertForMaskedLM(HfeBertConfig(**TINY_MODEL)),
            TrainingArguments(
                str(tmp_path),
                max_steps=steps,
                save_steps=2,
                per_device_train_batch_size=32,
                accelerator_config={"dispatch_batches": False},
                use_cpu=True,
                disable_tqdm=True,
            ),
            DataCollatorForMaskedLM(tokenizer, packed=True),
            StreamedBlocks(stream, 24),
        )
        trainer.train(resume_from_checkpoint=checkpoint and str(tmp_path / checkpoint))
        return trainer.model.state_dict()

    whole, resumed = trained(3), trained(3, "checkpoint-2")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    trained(6)
    with pytest.raises(ValueError, match="resume_from_checkpoint: it is in pass 2 "):
        trained(6, "checkpoint-6")


def test_what_is_no_stream_of_token_ids_is_refused():
    with pytest.raises(ValueError, match="documents .*SentenceBlocks"):
        StreamedBlocks(make_dataset(DOCUMENTS), 24)
    with pytest.raises(ValueError, match="max_length=2 "):
        StreamedBlocks(make_dataset(DOCUMENTS).to_iterable_dataset(), 2)
    with pytest.raises(ValueError, match="the epoch of the dataset was not set"):
        next(iter(StreamedBlocks(make_dataset(DOCUMENTS).to_iterable_dataset(), 24)))
    with pytest.raises(ValueError, match="input_ids"):
        next(iter(StreamedBlocks(datasets.Dataset.from_dict({"text": ["a"]}).to_iterable_dataset(), 24, redraw=False)))
