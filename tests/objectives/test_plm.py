"""Permutation LM: which tokens are predicted and in which order, rows, and a run by the command with its card."""

import json

import datasets
import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForPreTraining, AutoTokenizer, XLNetTokenizer

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.objectives.plm import DataCollatorForPermutationLM, Permutation, ReusedChunks, choose_tokens, permute
from hf_encoders.objectives.sentence_pairs import DocumentChunks
from hf_encoders.runs.recipe import recipe_of
from tests.corpus.corpora import make_dataset, random_documents, write_corpus
from tests.hub.tiny_checkpoints import FAMILIES
from tests.hub.tiny_checkpoints import make_tokenizer as make_tokenizer_of
from tests.training.tiny import make_tokenizer


TOKENIZER = make_tokenizer_of(next(family for family in FAMILIES if family.name == "xlnet"))
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
IGNORED, ROWS, HALF = -100, 768, 256


def permuted_rows(**options):
    """Rows of 512 as the original makes them, with words that begin at 70 % of the tokens; arrays `(ROWS, 512)`."""
    random = np.random.default_rng(0)
    is_functional = np.zeros((ROWS, 2 * HALF), dtype=bool)
    is_functional[np.arange(ROWS), HALF + random.integers(1, HALF - 4, ROWS)] = True
    is_functional[:, -2:] = True
    starts = (random.random(is_functional.shape) < 0.7) | is_functional
    permuted = [permute(starts[i], is_functional[i], HALF, Permutation(**options), random) for i in range(ROWS)]
    return is_functional, starts, *map(np.array, zip(*permuted, strict=True))


def shares_of_runs(is_chosen: np.ndarray) -> tuple[np.ndarray, float]:
    """Shares of runs of 1 to 5 chosen tokens in halves, longer ones counted as 5, and their mean length."""
    padded = np.pad(is_chosen.reshape(-1, HALF), ((0, 0), (1, 1))).astype(int).ravel()
    lengths = np.flatnonzero(np.diff(padded) == -1) - np.flatnonzero(np.diff(padded) == 1)
    return np.bincount(np.minimum(lengths, 5), minlength=6)[1:] / len(lengths), lengths.mean()


def test_spans_without_a_goal_are_those_of_the_original() -> None:
    _, starts, is_chosen, _, is_reversed = permuted_rows(fill_up=False)
    # .1379 of 256 tokens; 1,536 halves of a standard deviation of .02 each, and without separators that were chosen.
    assert is_chosen[:, :HALF].mean() == pytest.approx(0.1379, abs=0.0025)
    shares, mean = shares_of_runs(is_chosen)
    # 25,000 spans: standard errors of .003; two spans may touch, and a separator cuts one.
    assert shares == pytest.approx([0.446, 0.216, 0.146, 0.108, 0.083], abs=0.015)
    assert mean == pytest.approx(2.17, abs=0.05)
    # Spans begin words, or end with the first token of one where the text is read in reverse.
    for direction, edge in ((False, 1), (True, -1)):
        rows = is_reversed == direction
        assert 0.4 < rows.mean() < 0.6
        chosen = is_chosen[rows][:, :HALF]
        before = np.roll(chosen, edge, axis=1)
        before[:, 0 if edge == 1 else -1] = False
        assert starts[rows][:, :HALF][chosen & ~before].all()


def test_targets_with_a_goal_are_those_of_the_original() -> None:
    _, _, is_predicted, order, _ = permuted_rows()
    counts = is_predicted.sum(axis=1)
    assert counts.mean() == pytest.approx(84.6, abs=0.15) and counts.min() >= 82 and counts.max() == 85
    assert (is_predicted[:, :HALF].sum(axis=1) == 43).all()  # no separator in this half
    shares, mean = shares_of_runs(is_predicted[:, :HALF])
    assert shares == pytest.approx([0.567, 0.175, 0.110, 0.081, 0.063], abs=0.02)
    assert mean == pytest.approx(1.91, abs=0.06)
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
    _, _, is_predicted, order, _ = permuted_rows()
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


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_as_many_tokens_are_chosen_as_wanted_and_there_are(length: int) -> None:
    random = np.random.default_rng(length)
    for goal in (1, 3, 50):
        for starts in (np.ones(length, bool), random.random(length) < 0.3, np.zeros(length, bool)):
            assert choose_tokens(starts, goal, Permutation(), random).sum() == min(goal, length)
    one, functional = np.ones(length, bool), np.zeros(length, bool)
    for first in (0, length):  # one part, as the other is empty
        is_predicted, order, _ = permute(one, functional, first, Permutation(), random)
        assert is_predicted.sum() == max(length // 6, 1) == order.max()


def known_documents(number: int, sentences: tuple[int, int]):
    """Random documents of ids of the tokenizer."""
    documents = random_documents(number, 0, sentences)
    return make_dataset([[[9 + token % 15 for token in sentence] for sentence in one] for one in documents])


def make_chunks(reuse: bool = True, max_length: int = 40, **options) -> ReusedChunks:
    return ReusedChunks(known_documents(40, (3, 12)), max_length=max_length, reuse=reuse, redraw=False, **options)


def test_rows_are_the_text_before_a_pair_and_the_pair_with_cls_last() -> None:
    chunks, collator = make_chunks(), DataCollatorForPermutationLM(TOKENIZER)
    examples, corpus, has_reuse = chunks[:], chunks.corpus, 0
    batch = collator(examples)
    assert batch["attention_mask"].sum(dim=1).max() <= 40
    for row, example in enumerate(examples):
        length = int(batch["attention_mask"][row].sum())
        ids, types = batch["input_ids"][row, :length], batch["token_type_ids"][row, :length]
        document = corpus.document_starts[np.searchsorted(corpus.document_starts, example.begin, "right") - 1]
        reused = corpus.tokens[max(document, example.begin - 20) : example.begin].tolist()
        assert ids[: len(reused)].tolist() == reused
        has_reuse += bool(reused)
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


def test_a_packed_batch_is_the_padded_one_and_an_example_the_same_in_any_batch() -> None:
    examples = make_chunks()[:9]
    padded, packed = (DataCollatorForPermutationLM(TOKENIZER, packed=flag)(examples) for flag in (False, True))
    is_real = padded["attention_mask"] == 1
    for name in ("input_ids", "labels", "order", "token_type_ids"):
        assert torch.equal(padded[name][is_real], packed[name][0])
        alone = DataCollatorForPermutationLM(TOKENIZER)(examples[3:4])[name]
        assert torch.equal(padded[name][3][is_real[3]], alone[0])
    assert torch.equal(padded["is_reversed"], packed["is_reversed"])
    assert torch.equal(packed["cu_seq_lens_q"].diff(), is_real.sum(dim=1).int())


def test_plain_chunks_and_tokenized_rows_are_taken() -> None:
    collator, documents = DataCollatorForPermutationLM(TOKENIZER), known_documents(9, (3, 6))
    chunks, same = (kind(documents, max_length=20, redraw=False)[:4] for kind in (DocumentChunks, ReusedChunks))
    batch, other = collator(chunks), collator(same)
    assert all(torch.equal(batch[name], other[name]) for name in batch)
    rows = TOKENIZER(["the cat sat on a mat .", "the dog"], return_token_type_ids=True)
    batch = collator([{name: rows[name][i] for name in rows} for i in range(2)])
    assert batch["token_type_ids"].tolist() == [[0] * 8 + [2], [0] * 3 + [2] + [3] * 5]
    assert (batch["labels"] != IGNORED).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predicted_one_in": 1}, "predicted_one_in=1 .* at least 2"),
        ({"max_span": 0}, "max_span=0 .* at least 1"),
        ({"fill_up": 1}, "fill_up=1"),
        ({"reversed_share": 1.5}, "reversed_share=1.5"),
        ({"mask_probability": 0.2}, "'mask_probability': its options are"),
        ({"max_spam": 3}, "'max_spam': did you mean 'max_span'"),
        ({"packed": True, "pad_to_multiple_of": 8}, "pad_to_multiple_of .* leave out packed"),
        ({"packed": True, "for_transformers": True}, "for_transformers .* leave out packed"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataCollatorForPermutationLM(TOKENIZER, **options)


def test_wrong_examples_are_named() -> None:
    collator = DataCollatorForPermutationLM(TOKENIZER)
    with pytest.raises(ValueError, match=r"row 1 of the batch end with 4, .* <cls> \(3\): tokenize with XLNet"):
        collator([{"input_ids": [9, SEP, CLS]}, {"input_ids": [9, 9, SEP]}])
    with pytest.raises(ValueError, match="a dict: train on ReusedChunks"):
        collator([make_chunks()[0], {"input_ids": [9]}])
    with pytest.raises(ValueError, match="reuse=1"):
        make_chunks(reuse=1)
    sentences = datasets.Dataset.from_dict({"input_ids": [[[9] * 6] * 4]})
    with pytest.raises(ValueError, match="max_length=12 .* leave out reuse"):
        ReusedChunks(sentences, max_length=24, reuse=True)
    with pytest.raises(ValueError, match="ids from 3 to 60, .* give the collator the tokenizer"):
        collator([{"input_ids": [60, 9, SEP, CLS]}])
    with pytest.raises(ValueError, match="return_tensors='np'"):
        collator([make_chunks()[0]], return_tensors="np")


RECIPE = {
    "family": "xlnet",
    "objective": "plm",
    "model": {"n_layer": 2, "d_model": 24, "n_head": 3, "d_inner": 40, "dropout": 0.0, "initializer_range": 0.1},
    "tokenizer": {"vocab_size": 150},
    "examples": {"reuse": True},
    "phases": [{"steps": 60, "length": 32, "examples": 16}],
    "training": {"learning_rate": 0.005, "warmup_steps": 0.1, "logging_steps": 20, "save_steps": 30},
}


def pretrain(folder, output, *words):
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    options = ["--validation-share", "0.2", "--disable_tqdm", "True", "--use_cpu", *words]
    paths = ["--corpus", str(folder / "text.txt"), "--output", str(folder / output)]
    return main(["pretrain", str(folder / "tiny.yaml"), *paths, *options])


@pytest.mark.slow
def test_a_run_saves_what_transformers_reads(tmp_path, capsys):
    write_corpus(tmp_path / "text.txt", 120, "alpha")
    assert pretrain(tmp_path, "run") == 0
    folder = tmp_path / "run" / "model"
    record = json.loads((folder / "training_record.json").read_text())
    assert set(record["losses"]) == {"predicted tokens, held-out"}
    (words,) = record["objectives"].values()
    assert "in a random order, in spans of up to 5" in words and "50% read in reverse" in words
    assert not record["fills_masks"]
    assert "predicted tokens loss" in capsys.readouterr().out
    model = AutoModelForPreTraining.from_pretrained(folder)
    assert type(model).__module__.startswith("transformers.")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, XLNetTokenizer) and tokenizer.padding_side == "left"
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    assert tokenizer.convert_ids_to_tokens(range(9)) == special
    ids = tokenizer("alpha saw cat")["input_ids"]
    assert ids[-2:] == [tokenizer.sep_token_id, tokenizer.cls_token_id] and tokenizer.unk_token_id not in ids


def test_what_the_card_says():
    objective = get_objective("plm")
    collator = objective.collator_class(make_tokenizer(), fill_up=False, reversed_share=0.0)
    (words,) = objective.describe(collator, (), {"reuse": True}, {"mask_rate": 0.138}).values()
    assert words == (
        "13.8% of the tokens in a random order, in spans of up to 5; pairs of segments, half random; each after the "
        "text before it, in an order of its own; 0% read in reverse"
    )
    assert objective.loss_baselines(6.5) == {"plm_loss": ("unigram cross-entropy", 6.5)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"family": "bert", "model": {}},
            "objective plm: bert has no head for predicted tokens. Use .*mlm .*or the family",
        ),
        ({"objective": "mlm"}, "objective mlm: xlnet has no head for masked tokens. Use plm, or the family bert"),
        ({"masking": {"unit": "word"}}, "masking: plm has no option 'unit': its options are predicted_one_in"),
        ({"masking": {"max_span": 0}}, "masking: max_span=0 must be a whole number"),
        ({"examples": {"reused": True}}, "examples: plm has no option 'reused'"),
        ({"mask_rate": [0.3, 0.15]}, "mask_rate: plm has none: its order depends on what is predicted"),
        ({"phases": [{**RECIPE["phases"][0], "masking": {"max_span": 3}}]}, "phases: plm is the same in every phase"),
        ({"model": {**RECIPE["model"], "d_model": 25}}, "model: d_model=25 must be even"),
    ],
)
def test_wrong_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        recipe_of("tiny", {**RECIPE, **change})


def test_commands_of_masked_tokens_do_not_offer_it(capsys):
    with pytest.raises(SystemExit):
        main(["quickstart", "--objective", "plm"])
    assert "invalid choice: 'plm'" in capsys.readouterr().err
