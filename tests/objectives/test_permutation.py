"""Permutation language modelling: which tokens are predicted, in which order, against the original's procedure."""

import datasets
import numpy as np
import pytest
import torch

from hf_encoders.corpus.ragged import offsets_of
from hf_encoders.corpus.randomness import RandomStream, example_keys, uniforms
from hf_encoders.objectives.batches import IGNORED
from hf_encoders.objectives.chunk_arrays import DocumentChunks
from hf_encoders.objectives.permutation import Permutation, TokenPermuter
from hf_encoders.objectives.permutation_collator import DataCollatorForPermutationLM, ReusedChunks
from tests.corpus.corpora import make_dataset, random_documents
from tests.hub.tiny_checkpoints import FAMILIES, make_tokenizer


TOKENIZER = make_tokenizer(next(family for family in FAMILIES if family.name == "xlnet"))
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
ORDINARY = len(TOKENIZER) - 1  # stands for all ordinary tokens: only where words begin matters
ROWS, HALF = 768, 256


def original_rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 512 as the original makes them, `(ROWS, 512)`, and where words begin, of 70 % of the tokens."""
    generator = np.random.default_rng(seed)
    ids = np.full((ROWS, 2 * HALF), ORDINARY)
    first = generator.integers(1, HALF - 4, ROWS)
    ids[np.arange(ROWS), HALF + first] = ids[:, -2] = SEP
    ids[:, -1] = CLS
    starts = (generator.random(ids.shape) < 0.7) | (ids != ORDINARY)
    return ids, starts.astype(np.uint8)


def permuted_rows(**options):
    ids, starts = original_rows()
    permuter = TokenPermuter(TOKENIZER, **options)
    keys = example_keys(0, 0, np.arange(ROWS))
    lengths, first = np.full(ROWS, 2 * HALF), np.full(ROWS, HALF)
    return ids, starts, permuter(ids.ravel(), lengths, keys, first, starts.ravel())


def predicted(found) -> np.ndarray:
    is_predicted = np.zeros(ROWS * 2 * HALF, dtype=bool)
    is_predicted[found.positions] = True
    return is_predicted.reshape(ROWS, 2 * HALF)


def shares_of_runs(is_chosen: np.ndarray) -> tuple[np.ndarray, float]:
    """Shares of runs of 1 to 5 chosen tokens in halves, longer ones counted as 5, and their mean length."""
    padded = np.pad(is_chosen.reshape(-1, HALF), ((0, 0), (1, 1))).astype(int).ravel()
    lengths = np.flatnonzero(np.diff(padded) == -1) - np.flatnonzero(np.diff(padded) == 1)
    return np.bincount(np.minimum(lengths, 5), minlength=6)[1:] / len(lengths), lengths.mean()


def test_spans_without_a_goal_are_those_of_the_original() -> None:
    ids, starts, found = permuted_rows(fill_up=False)
    ranked = found.order.reshape(ids.shape).copy()
    ranked[:, HALF:] -= ranked[:, HALF:].min(axis=1, keepdims=True)
    is_chosen = (ranked > 0) & (ids == ORDINARY)
    assert np.array_equal(is_chosen, predicted(found))
    # .1379 of 256 tokens; 1,536 halves of a standard deviation of .02 each, and without separators that were chosen.
    assert is_chosen[:, :HALF].mean() == pytest.approx(0.1379, abs=0.0025)
    shares, mean = shares_of_runs(is_chosen)
    # 25,000 spans: standard errors of .003; two spans may touch, and a separator cuts one.
    assert shares == pytest.approx([0.446, 0.216, 0.146, 0.108, 0.083], abs=0.015)
    assert mean == pytest.approx(2.17, abs=0.05)
    # Spans begin words, or end with the first token of one where the text is read in reverse.
    for direction, edge in ((False, 1), (True, -1)):
        rows = found.is_reversed == direction
        assert 0.4 < rows.mean() < 0.6
        chosen = is_chosen[rows][:, :HALF]
        before = np.roll(chosen, edge, axis=1)
        before[:, 0 if edge == 1 else -1] = False
        assert starts[rows][:, :HALF][chosen & ~before].all()


def test_targets_with_a_goal_are_those_of_the_original() -> None:
    ids, _, found = permuted_rows()
    is_predicted = predicted(found)
    counts = is_predicted.sum(axis=1)
    assert counts.mean() == pytest.approx(84.6, abs=0.15) and counts.min() >= 82 and counts.max() == 85
    assert (is_predicted[:, :HALF].sum(axis=1) == 43).all()  # no separator in this half
    shares, mean = shares_of_runs(is_predicted[:, :HALF])
    assert shares == pytest.approx([0.567, 0.175, 0.110, 0.081, 0.063], abs=0.02)
    assert mean == pytest.approx(1.91, abs=0.06)

    order = found.order.reshape(ids.shape)
    seen, others = [[], []], []
    for half in (0, 1):
        part = slice(half * HALF, (half + 1) * HALF)
        for row in range(0, ROWS, 4):
            targets = order[row, part][is_predicted[row, part]]
            before = order[row][None, :] < targets[:, None]
            seen[half].extend(before.sum(axis=1))
            others.append(before[:, part][:, is_predicted[row, part]].sum() / (len(targets) * (len(targets) - 1)))
    assert np.mean(others) == pytest.approx(0.5, abs=1e-12)  # of every pair, one sees the other
    assert np.mean(seen[0]) == pytest.approx(234.0, abs=0.01)
    assert np.mean(seen[1]) == pytest.approx(489.2, abs=0.3)
    assert (order[:, :HALF].max(axis=1) < order[:, HALF:].min(axis=1)).all()  # nothing of the second half is seen


def test_codes_are_the_original_matrix() -> None:
    """With ranks of tokens that are chosen or functional, and -1 for the others (`_local_perm`)."""
    ids, _, found = permuted_rows()
    order, is_predicted = found.order.reshape(ids.shape), predicted(found)
    for row in range(0, ROWS, 16):
        base = np.repeat([0, order[row, HALF:].min()], HALF)
        ranks = order[row] - base - 1
        is_ranked = ranks >= 0
        own = np.where(is_predicted[row], ranks, ranks + 1)
        hidden = (own[:, None] <= ranks[None, :]) & is_ranked[None, :]
        hidden[:HALF, HALF:], hidden[HALF:, :HALF] = True, False
        threshold = order[row] - is_predicted[row]
        assert np.array_equal(order[row][None, :] > threshold[:, None], hidden)
        content = hidden & ~np.eye(2 * HALF, dtype=bool)
        assert np.array_equal(order[row][None, :] > order[row][:, None], content)
        for part in (slice(0, HALF), slice(HALF, None)):
            assert sorted(ranks[part][is_ranked[part]]) == list(range(is_ranked[part].sum()))


def spans_one_by_one(
    starts: np.ndarray, goal: int | None, key: np.ndarray, part: int, options: Permutation
) -> set[int]:
    """Chosen tokens of one part in the direction of reading, one span after the other, from the same numbers."""
    shares = 1 / np.arange(1, options.max_span + 1)
    bounds, chosen, at, slot = np.cumsum(shares / shares.sum())[:-1], set(), 0, 0
    while at < len(starts) and (goal is None or len(chosen) < goal):
        counter = 2 * slot + part
        size = 1 + int((uniforms(key, RandomStream.SPAN_LENGTH, counter) >= bounds).sum())
        if goal is not None:
            size = min(size, goal - len(chosen))
        context = options.predicted_one_in * size
        before = int(uniforms(key, RandomStream.SPAN_CONTEXT, counter) * context)
        begin = at + before
        while begin < len(starts) and not starts[begin]:
            begin += 1
        end = begin + size
        if end >= len(starts):
            break
        chosen |= set(range(begin, end))
        at, slot = end + context - before, slot + 1
    return chosen


@pytest.mark.parametrize("fill_up", [False, True])
def test_whole_batches_choose_what_one_span_after_the_other_does(fill_up: bool) -> None:
    generator = np.random.default_rng(1)
    lengths = generator.integers(1, 60, 50)
    first = np.where(np.arange(50) % 3, lengths // 2, 0)
    ids, starts = np.full(lengths.sum(), ORDINARY), (generator.random(lengths.sum()) < 0.6).astype(np.uint8)
    permuter = TokenPermuter(TOKENIZER, fill_up=fill_up, predicted_one_in=4)
    keys = example_keys(3, 1, np.arange(50))
    found = permuter(ids, lengths, keys, first, starts)
    for row, begin in enumerate(offsets_of(lengths)[:-1]):
        got = set(found.positions[found.rows == row] - begin)
        goal, expected, parts = max(lengths[row] // 4, 1), set(), [(0, first[row]), (first[row], lengths[row])]
        parts = parts if 0 < first[row] < lengths[row] else [(0, lengths[row])]
        for number, (start, end) in enumerate(parts):
            of_second = goal * (lengths[row] - first[row]) // lengths[row] if len(parts) == 2 else 0
            own_goal = (of_second if number else goal - of_second) if fill_up else None
            text = starts[begin + start : begin + end] == 1
            text = text[::-1] if found.is_reversed[row] else text
            chosen = spans_one_by_one(text, own_goal, keys[row], number, permuter.options)
            expected |= {end - 1 - i if found.is_reversed[row] else start + i for i in chosen}
        assert got == expected if not fill_up else expected <= got
        if fill_up:
            assert len(got) == min(goal, lengths[row])


def test_an_example_is_permuted_alike_in_any_batch_and_in_another_way_in_every_epoch() -> None:
    ids, starts = original_rows()
    permuter = TokenPermuter(TOKENIZER)
    keys = example_keys(0, 0, np.arange(4))
    lengths = np.full(4, 2 * HALF)
    together = permuter(ids[:4].ravel(), lengths, keys, lengths // 2, starts[:4].ravel())
    for row in range(4):
        alone = permuter(ids[row], lengths[:1], keys[row : row + 1], lengths[:1] // 2, starts[row])
        assert np.array_equal(alone.order, together.order.reshape(4, -1)[row])
        assert np.array_equal(alone.positions, together.positions[together.rows == row] - row * 2 * HALF)
        assert alone.is_reversed[0] == together.is_reversed[row]
    again = permuter(ids[:4].ravel(), lengths, example_keys(0, 1, np.arange(4)), lengths // 2, starts[:4].ravel())
    assert not np.array_equal(again.order, together.order)


def known_documents(number: int, sentences: tuple[int, int]):
    """Random documents of ids of the tokenizer."""
    documents = random_documents(number, 0, sentences)
    return make_dataset([[[9 + token % 15 for token in sentence] for sentence in one] for one in documents])


def make_chunks(reuse: bool = True, max_length: int = 40, **options) -> ReusedChunks:
    return ReusedChunks(known_documents(40, (3, 12)), max_length=max_length, reuse=reuse, redraw=False, **options)


def test_rows_are_the_text_before_a_pair_and_the_pair_with_cls_last() -> None:
    chunks, collator = make_chunks(), DataCollatorForPermutationLM(TOKENIZER)
    examples = chunks[list(range(len(chunks)))]
    batch = collator([examples])
    lengths = batch["attention_mask"].sum(dim=1)
    assert torch.equal(lengths, torch.from_numpy(collator.example_lengths(examples)))
    assert lengths.max() <= 40 and chunks.max_length == 40
    corpus, has_reuse = examples.corpus, 0
    for row, length in enumerate(lengths):
        ids, types = batch["input_ids"][row, :length], batch["token_type_ids"][row, :length]
        begin, middle = examples.reused_begin[row], examples.begin[row]
        assert middle - begin <= 20
        assert ids[: middle - begin].tolist() == corpus.tokens[begin:middle].tolist()
        document = corpus.document_starts[np.searchsorted(corpus.document_starts, middle, "right") - 1]
        assert begin == max(document, middle - 20)
        has_reuse += middle > begin
        assert ids[-1] == CLS and ids[-2] == SEP and types[-1] == 2
        separators = (ids == SEP).nonzero().squeeze(1)
        assert types[: separators[0] + 1].unique().tolist() == [0]
        if len(separators) == 2:
            assert types[separators[0] + 1 : -1].unique().tolist() == [1]
        assert (batch["labels"][row, :length][(ids == SEP) | (ids == CLS)] == IGNORED).all()
    assert has_reuse > len(examples) / 2
    is_target = batch["labels"] != IGNORED
    assert torch.equal(batch["labels"][is_target], batch["input_ids"][is_target])  # true tokens
    assert (batch["order"][is_target] > 0).all()
    assert (batch["token_type_ids"][batch["attention_mask"] == 0] == 3).all()


def test_packed_is_padded() -> None:
    examples = make_chunks()[list(range(9))]
    padded, packed = (DataCollatorForPermutationLM(TOKENIZER, packed=flag)([examples]) for flag in (False, True))
    is_real = padded["attention_mask"] == 1
    for name in ("input_ids", "labels", "order", "token_type_ids"):
        assert torch.equal(padded[name][is_real], packed[name][0])
    assert torch.equal(padded["is_reversed"], packed["is_reversed"])
    assert torch.equal(packed["cu_seq_lens_q"].diff(), is_real.sum(dim=1).int())


def test_plain_chunks_and_tokenized_rows_are_taken() -> None:
    collator = DataCollatorForPermutationLM(TOKENIZER)
    documents = known_documents(9, (3, 6))
    chunks = DocumentChunks(documents, max_length=20, redraw=False)
    same = ReusedChunks(documents, max_length=20, redraw=False)
    one, other = (collator([dataset[[0, 3, 5]]]) for dataset in (chunks, same))
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = TOKENIZER(["the cat sat on a mat .", "the dog"], return_token_type_ids=True)
    batch = collator([{name: rows[name][i] for name in rows} for i in range(2)])
    assert batch["token_type_ids"].tolist() == [[0] * 8 + [2], [0] * 3 + [2] + [3] * 5]
    assert (batch["labels"] != IGNORED).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predicted_one_in": 1}, "predicted_one_in=1 must be a whole number of at least 2"),
        ({"max_span": 0}, "max_span=0 must be a whole number of at least 1"),
        ({"fill_up": 1}, "fill_up=1 must be true or false"),
        ({"reversed_share": 1.5}, r"reversed_share=1.5 must be in \[0, 1\]"),
        ({"mask_probability": 0.2}, "takes no 'mask_probability': its options are"),
        ({"max_spam": 3}, "takes no 'max_spam': did you mean 'max_span'"),
        ({"packed": True, "pad_to_multiple_of": 8}, "pad_to_multiple_of=8 must be a whole number, of a batch that is"),
        ({"packed": True, "for_transformers": True}, "for_transformers=True: .* takes no packed batch"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForPermutationLM(TOKENIZER, **options)


def test_wrong_examples_are_named() -> None:
    collator = DataCollatorForPermutationLM(TOKENIZER)
    with pytest.raises(ValueError, match=r"row 1 of the batch end with 4, and XLNet's with <cls> \(3\)"):
        collator([{"input_ids": [9, SEP, CLS]}, {"input_ids": [9, 9, SEP]}])
    with pytest.raises(ValueError, match=r"features are \['dict'\]: train on ReusedChunks"):
        collator([make_chunks()[0], {"input_ids": [9]}])
    with pytest.raises(ValueError, match="reuse=1 must be true or false"):
        make_chunks(reuse=1)
    sentences = datasets.Dataset.from_dict({"input_ids": [[[9] * 6] * 4]})
    with pytest.raises(ValueError, match="max_length=24 leaves no room .*: raise it, or leave out reuse, which"):
        ReusedChunks(sentences, max_length=24, reuse=True)
    with pytest.raises(ValueError, match="ids from 3 to 60, but those of the tokenizer go from 0 to 24"):
        collator([{"input_ids": [60, 9, SEP, CLS]}])
    with pytest.raises(ValueError, match="return_tensors='np'"):
        collator([make_chunks()[0]], return_tensors="np")
