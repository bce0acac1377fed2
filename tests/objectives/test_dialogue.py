"""Dialogues: which turns make examples, what replaces them, what predicts a fake, and a run by the command."""

import json
import pickle

import numpy as np
import pytest
import torch
import yaml
from sklearn.ensemble import HistGradientBoostingClassifier

from hf_encoders import get_objective
from hf_encoders.cli import main
from hf_encoders.objectives import dialogue
from hf_encoders.objectives.dialogue import DataCollatorForDialogueLM, Dialogues, truncated_turns
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.objectives.sentence_pairs import DocumentChunks
from hf_encoders.runs.recipe import recipe_of
from tests.corpus.corpora import make_dataset, random_documents, write_corpus
from tests.training.tiny import NO_DROPOUT, make_tokenizer


def talks(number: int, seed: int = 0) -> list[list[list[int]]]:
    """Dialogues of three turns; each has its length, from 2 to 60 tokens, around which its turns vary."""
    generator = np.random.default_rng(seed)
    means = 2 + 20 * generator.exponential(0.5, number)
    lengths = np.clip(means[:, None] + generator.normal(0, 1.5, (number, 3)), 1, 60).astype(int)
    return [[generator.integers(5, 60, length).tolist() for length in row] for row in lengths]


def turns_of(example) -> list[list[int]]:
    return [turn.tolist() for turn in example.segments]


def labels_of(examples) -> np.ndarray:
    return np.array([example.labels["pair"] for example in examples])


def lengths_of(examples) -> np.ndarray:
    return np.array([[len(turn) for turn in example.segments] for example in examples])


class TestWhichTurns:
    def test_qrq_qrr_and_qqr_of_each_dialogue(self):
        q, r, nobody = [10], [20], []
        documents = [
            [q, r, q, r, q],  # QRQRQ: two of QRQ, and RQR between them
            [q, nobody, q, r, nobody, r],  # QQRR: QQR and QRR
            [q, nobody, q, nobody, q, r],  # QQQR: QQR
            [nobody, r, q, r, q],  # RQRQ: RQR, QRQ
            [q, r],
            [nobody, r, nobody, r, nobody, r],
        ]
        examples = Dialogues(make_dataset(documents), 16, redraw=False)
        roles = [example.token_types for example in examples]
        assert roles == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 0]]
        assert [[turn[0] // 10 - 1 for turn in example.segments] for example in examples] == roles
        assert examples.num_left_out == 2
        assert examples.left_out() == "2 of 6 dialogues, without three such turns"
        assert "6 examples of " in repr(examples) and "2 dialogues left out, max_length=16" in repr(examples)

    def test_no_example_crosses_the_end_of_a_dialogue(self):
        examples = list(Dialogues(make_dataset([[[i], [i], [i]] for i in range(5, 50)]), 16, redraw=False))
        same = [sum(turn == [i] for turn in turns_of(example)) for i, example in enumerate(examples, 5)]
        labels = labels_of(examples)
        assert same == np.where(labels == 1, 2, 3).tolist() and (labels == 1).sum() > 10

    def test_the_longest_turns_lose_their_ends(self):
        documents = [[list(range(10, 30)), [30, 31], list(range(40, 50))]] + [[[5], [6], [7]]] * 2
        drawn = [Dialogues(make_dataset(documents), 16, seed=seed, redraw=False)[0] for seed in range(9)]
        real = [turns_of(example) for example in drawn if example.labels["pair"] == 0]
        assert real and all(turns == [[10, 11, 12, 13, 14], [30, 31], [40, 41, 42, 43, 44]] for turns in real)

    def test_truncation_is_fair_and_fills_the_room(self):
        for lengths in np.random.default_rng(0).integers(1, 40, (2000, 3)).tolist():
            kept = truncated_turns(lengths, 34)
            assert sum(kept) == min(sum(lengths), 30) and min(kept) >= 1
            cut = [after for after, before in zip(kept, lengths, strict=True) if after < before]
            assert not cut or (max(kept) == max(cut) <= min(cut) + 1)


class TestFakes:
    def test_a_fake_has_one_turn_of_the_same_role_from_another_dialogue(self):
        # Token = 1000 * dialogue + place, so that a turn says where it is from.
        documents = [[[1000 * i + place] * (1 + (i + place) % 3) for place in range(5)] for i in range(300)]
        examples = Dialogues(make_dataset(documents), 16)
        examples.set_epoch(3)
        first = np.array([[turn[0] for turn in example.segments] for example in examples])
        numbers = np.repeat(np.arange(300), 2)  # QRQ twice of each
        is_from_elsewhere = first // 1000 != numbers[:, None]
        assert (is_from_elsewhere.sum(axis=1) == (labels_of(examples) == 1)).all()
        assert (first % 1000 % 2).tolist() == [example.token_types for example in examples]
        expected = 1 + (numbers[:, None] + np.arange(3) + 2 * np.tile([0, 1], 300)[:, None]) % 3
        assert (lengths_of(examples) == expected).all()

    @pytest.mark.parametrize("share", [0.5, 0.2])
    def test_shares(self, share):
        """2,000 examples, 3 epochs: labels and replaced turns within five standard errors."""
        documents = talks(2000)
        examples = Dialogues(make_dataset(documents), 200, fake_probability=share)
        labels, replaced = [], []
        for epoch in range(3):
            examples.set_epoch(epoch)
            labels.append(labels_of(examples))
            for turns, example in zip(documents, examples, strict=True):
                if example.labels["pair"] == 1:
                    replaced.append([one != other for one, other in zip(turns, turns_of(example), strict=True)])
        assert (labels[0] != labels[1]).any()
        labels = np.concatenate(labels)
        assert (labels >= 0).mean() > 0.99
        count = (labels >= 0).sum()
        assert abs((labels == 1).sum() / count - share) < 5 * np.sqrt(share * (1 - share) / count)
        assert np.abs(np.mean(replaced, axis=0) - 1 / 3).max() < 5 * np.sqrt(2 / 9 / len(replaced))

    def test_every_turn_is_as_often_a_replacement_as_it_is_in_an_example(self):
        """60 dialogues, 150 epochs: fakes a turn, within five standard errors of Poisson counts."""
        examples = Dialogues(make_dataset([[[5 * i + j] for j in range(5)] for i in range(60)]), 16)
        used, counts = np.bincount(examples.pool, minlength=300), np.zeros(300)
        for epoch in range(150):
            examples.set_epoch(epoch)
            for i, example in enumerate(examples):
                for turn in example.segments:
                    counts[turn[0]] += turn[0] // 5 != i // 2
        for role in (0, 1):
            is_of_role = examples.roles == role
            expected = counts[is_of_role].sum() * used / used[is_of_role].sum()
            error = np.abs(counts - expected)[is_of_role] / np.sqrt(np.maximum(expected[is_of_role], 1))
            assert error.max() < 5

    @pytest.mark.slow
    def test_lengths_do_not_predict_a_fake(self, monkeypatch):
        """A boosted predictor of all three lengths, on 6,000 examples it has not seen; within four standard errors.

        Dialogues have their lengths, so a turn of any length would be noticed.
        """

        def accuracy() -> float:
            examples = list(Dialogues(make_dataset(talks(12_000)), 256, redraw=False))
            labels = labels_of(examples)
            features, labels = lengths_of(examples)[labels >= 0], labels[labels >= 0]
            half = len(labels) // 2
            model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features[:half], labels[:half])
            return model.score(features[half:], labels[half:])

        assert abs(accuracy() - 0.5) < 4 * 0.5 / np.sqrt(6_000)
        monkeypatch.setattr(dialogue, "TURNS_TO_CHOOSE_FROM", 10**6)
        assert accuracy() > 0.65

    def test_it_is_drawn_until_it_is_from_another_dialogue(self):
        """Of two long dialogues: half of the draws are from the same one."""
        examples = Dialogues(make_dataset([[[5]] * 401, [[6]] * 401]), 16, redraw=False)
        assert (labels_of(examples) >= 0).all() and len(examples) == 400

    def test_without_a_turn_to_replace_it_there_is_no_label(self):
        """A dialogue that has all the turns of a length: the others keep theirs."""
        short = [[[3 * i], [3 * i + 1], [3 * i + 2]] for i in range(20, 220)]
        documents = [[[10 + i % 3] * 50 for i in range(300)], *short]  # first a dialogue of 300 long turns
        examples = Dialogues(make_dataset(documents), 200, redraw=False)
        labels, lengths = labels_of(examples), lengths_of(examples)
        assert set(labels[:149]) == {-100} and set(labels[149:]) == {0, 1}
        assert (lengths[:149] == 50).all() and (lengths[149:] == 1).all()

    @pytest.mark.parametrize(("max_length", "least"), [(24, 0.99), (9, 0.7)])
    def test_a_fake_never_reads_like_the_real_one(self, max_length, least):
        """A third of the turns are one of ten phrases; at 9 tokens, what is cut off may be all that differs."""
        random = np.random.default_rng(0)
        phrases = [[5, 5 + i] for i in range(10)]
        documents = [
            [
                phrases[random.integers(10)] if random.random() < 0.35 else [*random.integers(5, 30, 6)]
                for _ in range(4)
            ]
            for _ in range(800)
        ]
        examples, fakes, labelled = Dialogues(make_dataset(documents), max_length), 0, 0
        for epoch in range(4):
            examples.set_epoch(epoch)
            for first, example in zip(examples.first_turns, examples, strict=True):
                real = [documents[first // 4][place] for place in range(first % 4, first % 4 + 3)]
                shown = truncated_turns([len(turn) for turn in real], max_length)
                shown = [turn[:length] for turn, length in zip(real, shown, strict=True)]
                assert (turns_of(example) == shown) == (example.labels["pair"] != 1)
            labels = labels_of(examples)
            fakes, labelled = fakes + (labels == 1).sum(), labelled + (labels >= 0).sum()
        assert labelled > least * 4 * len(examples) and 0.47 < fakes / labelled < 0.53

    def test_where_all_turns_read_alike_there_is_no_label(self):
        examples = Dialogues(make_dataset([[[5], [6], [5]]] * 30), 16, redraw=False)
        assert set(labels_of(examples)) == {-100}


class TestBatches:
    def test_an_example_is_the_same_in_another_process_and_another_in_another_epoch(self):
        examples = Dialogues(make_dataset(random_documents(300)), 24, seed=3)
        examples.set_epoch(2)
        again, later = pickle.loads(pickle.dumps(examples)), examples.at_epoch(3)
        for i in (0, 5, len(examples) - 1):
            assert turns_of(again[i]) == turns_of(examples[i])
            assert (again[i].labels, again[i].key) == (examples[i].labels, examples[i].key)
        assert [turns_of(later[i]) for i in range(60)] != [turns_of(examples[i]) for i in range(60)]

    def test_packed_rows_are_those_of_the_padded_batch(self, tokenizer):
        examples = Dialogues(make_dataset(random_documents(100)), 24, redraw=False)[:20]
        padded, packed = (DataCollatorForDialogueLM(tokenizer, packed=flag)(examples) for flag in (False, True))
        real = padded["attention_mask"].bool()
        for name in ("input_ids", "labels", "token_type_ids"):
            assert torch.equal(padded[name][real], packed[name][0])
        assert torch.equal(padded["next_sentence_label"], packed["next_sentence_label"])

    def test_types_are_the_roles(self, tokenizer):
        documents = [[[10, 11], [], [12], [13, 14], [], [15]], [[20], [21], [22]]]
        examples = Dialogues(make_dataset(documents), 16, redraw=False, seed=5)
        batch = DataCollatorForDialogueLM(tokenizer, label_name="order", mask_probability=0.5)(examples[:])
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        ids = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
        assert ids[:, 0].tolist() == [cls] * 3 and (ids == sep).sum(dim=1).tolist() == [3] * 3
        turn = torch.cumsum(torch.cat([torch.zeros(3, 1, dtype=torch.int64), (ids == sep)[:, :-1].long()], 1), 1)
        roles = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0]])
        assert torch.equal(batch["token_type_ids"], roles.gather(1, turn) * batch["attention_mask"])
        assert batch["order"].shape == (3,) and "next_sentence_label" not in batch

    def test_sources_of_a_mixture(self, tokenizer):
        sources = {name: Dialogues(make_dataset(random_documents(60, i)), 24) for i, name in enumerate("ab")}
        mixed = MixedExamples(sources)
        mixed.set_epoch(0)
        batch = DataCollatorForDialogueLM(tokenizer)(mixed.__getitems__(range(len(mixed))))
        assert len(batch["next_sentence_label"]) == len(mixed) == sum(map(len, sources.values()))


class TestWrongInput:
    @pytest.mark.parametrize(
        ("documents", "max_length", "options", "message"),
        [
            (None, 16, {"fake_probability": 0}, "fake_probability=0 must be above 0 and below 1"),
            (None, 16, {"fake_probability": "half"}, "fake_probability='half' must be"),
            (None, 6, {}, "max_length=6 .* at least 7"),
            (None, "9", {}, "max_length='9' .* at least 7"),
            ([[[5], [6]], [[7]]], 16, {}, r"holds 0 dialogue\(s\) .*--turns-column"),
            ([[[5], [6], [7]], [[8], [9]]], 16, {}, r"holds 1 dialogue\(s\)"),
        ],
    )
    def test_wrong_arguments_are_named(self, documents, max_length, options, message):
        with pytest.raises(ValueError, match=message):
            Dialogues(make_dataset(documents or talks(5)), max_length, **options)

    def test_examples_of_others(self, tokenizer):
        chunks = DocumentChunks(make_dataset(random_documents(9)), 24, redraw=False)
        for features in ([chunks[0]], [{"input_ids": [[5], [6], [7]]}]):
            with pytest.raises(ValueError, match="not examples of Dialogues"):
                DataCollatorForDialogueLM(tokenizer)(features)


WORDS = "of the examples (three turns; token types 0 query, 1 response) with a turn from another dialogue (label 1)"
TOPICS = ("cat", "dog", "house", "river", "teacher", "engine", "song", "letter")
RECIPE = {
    "family": "bert",
    "objective": "dialogue",
    "model": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.1,
        **NO_DROPOUT,
    },
    "tokenizer": {"vocab_size": 150},
    "phases": [{"steps": 200, "length": 32, "examples": 48}],
    "training": {"learning_rate": 0.005, "warmup_steps": 0.1, "logging_steps": 50, "save_steps": 100},
}


def write_dialogues(path, number: int = 400):
    """Dialogues about one thing each, which every turn names; roles are given in every second."""
    generator = np.random.default_rng(0)
    lines = []
    for i in range(number):
        topic = TOPICS[i % 8]
        turns = [f"{generator.choice(['see', 'hear', 'know'])} the {topic}", f"the {topic} {i % 50}", f"yes {topic}"]
        roles = ["user", "assistant", generator.choice(["user", "assistant"])]
        with_roles = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
        lines.append(json.dumps({"turns": with_roles if i % 2 else turns}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def pretrain(folder, output, *words, corpus="dialogues.jsonl"):
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    options = ["--validation-share", "0.2", "--disable_tqdm", "True", "--use_cpu", *words]
    paths = ["--corpus", str(folder / corpus), "--output", str(folder / output)]
    return main(["pretrain", str(folder / "tiny.yaml"), *paths, *options])


@pytest.mark.slow
def test_a_model_learns_what_is_fake(tmp_path, capsys):
    write_dialogues(tmp_path / "dialogues.jsonl")
    assert pretrain(tmp_path, "run") == 0
    record = json.loads((tmp_path / "run" / "model" / "training_record.json").read_text())
    assert set(record["losses"]) == {"masked tokens, held-out", "dialogues, held-out"}
    assert record["objectives"]["dialogue language modelling"] == f"half {WORDS}"
    (accuracy,) = (one["value"] for one in record["evaluation"] if one["task"] == "text-classification")
    assert accuracy > 0.8  # chance 0.5; a turn on the same topic, one of 8, cannot be told
    assert "dialogues loss" in capsys.readouterr().out


def test_text_and_corpora_of_text_are_refused(tmp_path, capsys):
    write_dialogues(tmp_path / "dialogues.jsonl", 80)
    words = ["--input", str(tmp_path / "dialogues.jsonl"), "--output", str(tmp_path / "tokenizer")]
    assert main(["tokenizer", *words, "--turns-column", "turns", "--family", "bert", "--vocab-size", "150"]) == 0
    (tmp_path / "texts.jsonl").write_text('{"text": "see the cat"}\n')
    assert pretrain(tmp_path, "other", corpus="texts.jsonl") == 2
    assert "line 1: no field 'turns'" in capsys.readouterr().err
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    tokenizer = ("--tokenizer", str(tmp_path / "tokenizer"))
    prepared = ["--output", str(tmp_path / "prepared"), "--workers", "1", *tokenizer]
    assert main(["corpus", "--input", str(tmp_path / "text.txt"), *prepared]) == 0
    assert pretrain(tmp_path, "other", *tokenizer, corpus="prepared") == 2
    assert (
        "is of text, not of dialogues: prepare them with hf-encoders corpus --turns-column" in capsys.readouterr().err
    )
    words = [
        "corpus",
        "--input",
        str(tmp_path / "dialogues.jsonl"),
        "--turns-column",
        "turns",
        "--overwrite",
        *prepared,
    ]
    assert main(words) == 0
    assert pretrain(tmp_path, "other", *tokenizer, "--max_steps", "2", corpus="prepared") == 0


def test_commands_that_read_documents_do_not_offer_it(capsys):
    with pytest.raises(SystemExit):
        main(["quickstart", "--objective", "dialogue"])
    assert "invalid choice: 'dialogue'" in capsys.readouterr().err


def test_lines_of_text_files_are_turns(tmp_path):
    write_corpus(tmp_path / "text.txt", 60, "alpha")
    assert pretrain(tmp_path, "run", "--max_steps", "2", corpus="text.txt") == 0


def test_the_card_says_the_share_of_fakes():
    collator = get_objective("dialogue").collator_class(make_tokenizer())
    words = get_objective("dialogue").describe(collator, (), {}, {"pair_label_1_share": 0.3})
    assert words["dialogue language modelling"] == f"30 % {WORDS}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "roberta"}, "roberta has no head for dialogues"),
        ({"examples": {"fake_probability": 1.0}}, "examples: fake_probability=1.0 must be above 0 and below 1"),
        ({"examples": {"fakes": 0.5}}, "dialogue has no option 'fakes': its options are fake_probability"),
        ({"examples": {"short_sequence_probability": 0.5}}, "no option 'short_sequence_probability'"),
    ],
)
def test_wrong_recipes(change, message):
    with pytest.raises(ValueError, match=message):
        recipe_of("tiny", {**RECIPE, **change})
