"""Dialogues: which turns make examples, what replaces them, and what tells a fake from a real one."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from hf_encoders import (
    DataCollatorForDialogueLM,
    Dialogues,
    DocumentChunks,
    MixedExamples,
)
from hf_encoders.objectives import dialogues
from hf_encoders.objectives.dialogues import truncated_turns
from tests.corpus.corpora import make_dataset, random_documents


def talks(number: int, turns: int = 3, seed: int = 0) -> list[list[list[int]]]:
    """Dialogues of as many turns; each has a length of its own, from 2 to 60 tokens, around which its turns vary."""
    generator = np.random.default_rng(seed)
    own = 2 + 20 * generator.exponential(0.5, number)
    lengths = np.clip(own[:, None] + generator.normal(0, 1.5, (number, turns)), 1, 60).astype(int)
    return [[generator.integers(5, 60, length).tolist() for length in row] for row in lengths]


def turns_of(examples, i: int) -> list[list[int]]:
    return [turn.tolist() for turn in examples.token_ids(i)]


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
        found = examples[range(len(examples))]
        assert found.roles.reshape(-1, 3).tolist() == [
            [0, 1, 0],
            [0, 1, 0],
            [0, 0, 1],
            [0, 1, 1],
            [0, 0, 1],
            [0, 1, 0],
        ]
        assert (found.segments.tokens[found.segments.begin] // 10 - 1 == found.roles).all()
        assert examples.num_left_out == 2
        told = f"2 of {len(documents)} dialogues, without three such turns"
        assert examples.left_out() == told
        assert "6 examples of " in repr(examples) and "2 dialogues left out, max_length=16" in repr(examples)

    def test_no_example_crosses_the_end_of_a_dialogue(self):
        documents = [[[i], [i], [i]] for i in range(5, 50)]
        examples = Dialogues(make_dataset(documents), 16, redraw=False)
        found = examples[range(len(examples))]
        tokens = np.array([turn[0] for i in range(45) for turn in turns_of(found, i)]).reshape(-1, 3)
        same = (tokens == np.arange(5, 50)[:, None]).sum(axis=1)
        assert (same == np.where(found.labels == 1, 2, 3)).all() and (found.labels == 1).sum() > 10

    def test_the_longest_turns_lose_their_ends(self):
        documents = [[list(range(10, 30)), [30, 31], list(range(40, 50))]] + [[[5], [6], [7]]] * 2
        examples = Dialogues(make_dataset(documents), max_length=16, seed=5, redraw=False)
        found = examples[[0]]
        assert found.labels.tolist() == [0]
        assert turns_of(found, 0) == [[10, 11, 12, 13, 14], [30, 31], [40, 41, 42, 43, 44]]

    def test_truncation_is_fair_and_fills_the_room(self):
        lengths = np.random.default_rng(0).integers(1, 40, (2000, 3))
        kept = truncated_turns(lengths, 34)
        total = lengths.sum(axis=1)
        assert (kept.sum(axis=1) == np.minimum(total, 30)).all() and kept.min() >= 1
        longest = np.where(kept < lengths, kept, 0).max(axis=1)  # of what was cut
        assert (kept.max(axis=1)[total > 30] <= longest[total > 30]).all()
        cut = np.where(kept < lengths, kept, 99)
        assert (longest[total > 30] - cut.min(axis=1)[total > 30] <= 1).all()
        assert (kept[total <= 30] == lengths[total <= 30]).all()


class TestFakes:
    def test_a_fake_has_one_turn_of_the_same_role_from_another_dialogue(self):
        # Token = 1000 * dialogue + place, so that a turn tells where it is from.
        documents = [[[1000 * i + place] * (1 + (i + place) % 3) for place in range(5)] for i in range(300)]
        examples = Dialogues(make_dataset(documents), 16)
        examples.set_epoch(3)
        found = examples[range(len(examples))]
        first = np.array([turn[0] for i in range(len(found)) for turn in turns_of(found, i)]).reshape(-1, 3)
        own = np.repeat(np.arange(300), 2)  # QRQ twice of each
        is_own = first // 1000 == own[:, None]
        assert ((~is_own).sum(axis=1) == (found.labels == 1)).all()
        assert (first % 1000 % 2 == found.roles.reshape(-1, 3)).all()
        lengths = (found.segments.end - found.segments.begin).reshape(-1, 3)
        assert (lengths == 1 + (own[:, None] + np.arange(3) + 2 * np.tile([0, 1], 300)[:, None]) % 3).all()

    @pytest.mark.parametrize("share", [0.5, 0.2])
    def test_shares(self, share):
        """4,000 examples, 5 epochs: labels and replaced places within five standard errors."""
        examples = Dialogues(make_dataset(talks(4000)), 200, fake_probability=share)
        labels, replaced, draws = [], [], []
        for epoch in range(5):
            examples.set_epoch(epoch)
            found = examples[range(4000)]
            labels.append(found.labels)
            begin = examples.bounds[examples.first_turns[:, None] + np.arange(3)]
            replaced.append((found.segments.begin.reshape(-1, 3) != begin)[found.labels == 1].mean(axis=0))
            draws.append(found.segments.begin)
        labels = np.concatenate(labels)
        assert (labels >= 0).mean() > 0.99
        count = (labels >= 0).sum()
        assert abs((labels == 1).sum() / count - share) < 5 * np.sqrt(share * (1 - share) / count)
        fakes = (labels == 1).sum()
        assert np.abs(np.mean(replaced, axis=0) - 1 / 3).max() < 5 * np.sqrt(2 / 9 / fakes)
        assert (draws[0] != draws[1]).any()

    def test_every_turn_is_as_often_a_replacement_as_it_is_in_an_example(self):
        """60 dialogues, 600 epochs: fakes a turn, within five standard errors of Poisson counts."""
        examples = Dialogues(make_dataset([[[i], [i], [i], [i], [i]] for i in range(60)]), 16)
        used = np.bincount(examples.pool, minlength=300)
        counts = np.zeros(300)
        for epoch in range(600):
            examples.set_epoch(epoch)
            found = examples[range(120)]
            own = examples.bounds[examples.first_turns[:, None] + np.arange(3)].ravel()
            counts += np.bincount(found.segments.begin[found.segments.begin != own], minlength=300)
        roles = examples.roles
        for role in (0, 1):
            expected = counts[roles == role].sum() * used / used[roles == role].sum()
            error = np.abs(counts - expected)[roles == role] / np.sqrt(np.maximum(expected[roles == role], 1))
            assert error.max() < 5

    @pytest.mark.slow
    def test_lengths_do_not_tell_a_fake(self, monkeypatch):
        """A boosted predictor of all three lengths, on 20,000 examples it has not seen; within four standard errors.

        Dialogues have lengths of their own, so a turn of any length would be found out.
        """

        def accuracy() -> float:
            examples = Dialogues(make_dataset(talks(40_000)), 256, redraw=False)
            found = examples[range(40_000)]
            lengths = (found.segments.end - found.segments.begin).reshape(-1, 3)
            features, labels = lengths[found.labels >= 0], found.labels[found.labels >= 0]
            half = len(labels) // 2
            model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features[:half], labels[:half])
            return model.score(features[half:], labels[half:])

        assert abs(accuracy() - 0.5) < 4 * 0.5 / np.sqrt(20_000)
        monkeypatch.setattr(dialogues, "TURNS_TO_CHOOSE_FROM", 10**6)
        assert accuracy() > 0.65

    def test_it_is_drawn_until_it_is_from_another_dialogue(self):
        """Of two long dialogues: half of the draws are from the same one."""
        examples = Dialogues(make_dataset([[[5]] * 401, [[6]] * 401]), 16, redraw=False)
        assert (examples[range(len(examples))].labels >= 0).all() and len(examples) == 400

    def test_without_a_turn_to_replace_it_there_is_no_label(self):
        """A dialogue that has all the turns of a length: the others keep theirs."""
        short = [[[3 * i], [3 * i + 1], [3 * i + 2]] for i in range(20, 220)]
        documents = [[[10] * 50, [11] * 50, [12] * 50]] * 100 + short
        documents[0:100] = [sum(documents[0:100], [])]  # one dialogue of 300 long turns
        examples = Dialogues(make_dataset(documents), 200, redraw=False)
        found = examples[range(len(examples))]
        is_long = (found.segments.end - found.segments.begin).reshape(-1, 3)[:, 0] == 50
        assert (found.labels[is_long] == -100).all() and is_long.sum() == 149
        assert set(found.labels[~is_long].tolist()) == {0, 1}
        assert ((found.segments.end - found.segments.begin)[: 3 * 149] == 50).all()

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
            found = examples[range(len(examples))]
            for i in np.flatnonzero(found.labels == 1):
                first = examples.first_turns[i]
                real = [documents[first // 4][place] for place in range(first % 4, first % 4 + 3)]
                shown = truncated_turns(np.array([[len(turn) for turn in real]]), max_length)[0]
                assert turns_of(found, i) != [turn[:length] for turn, length in zip(real, shown, strict=True)]
            fakes, labelled = fakes + (found.labels == 1).sum(), labelled + (found.labels >= 0).sum()
        assert labelled > least * 4 * len(examples) and 0.47 < fakes / labelled < 0.53

    def test_where_all_turns_read_alike_there_is_no_label(self):
        examples = Dialogues(make_dataset([[[5], [6], [5]]] * 30), 16, redraw=False)
        assert (examples[range(30)].labels == -100).all()


class TestDraws:
    def test_an_example_does_not_depend_on_its_batch(self):
        examples = Dialogues(make_dataset(random_documents(300)), 24, seed=3)
        examples.set_epoch(2)
        together, again = examples[range(len(examples))], pickle.loads(pickle.dumps(examples))
        for i in (0, 5, len(examples) - 1):
            for alone in (examples[i], again[[i, 0]]):
                assert turns_of(alone, 0) == turns_of(together, i)
                assert (alone.labels[0], alone.keys[0]) == (together.labels[i], together.keys[i])
        assert [turns_of(examples.at_epoch(3)[[i]], 0) for i in range(60)] != [
            turns_of(together, i) for i in range(60)
        ]

    def test_packed_rows_are_those_of_the_padded_batch(self, tokenizer):
        examples = Dialogues(make_dataset(random_documents(100)), 24, redraw=False)
        parts = [examples[range(7)], examples[range(7, 20)]]
        padded = DataCollatorForDialogueLM(tokenizer)(parts)
        packed = DataCollatorForDialogueLM(tokenizer, packed=True)(parts)
        real = padded["attention_mask"].bool()
        for name in ("input_ids", "labels", "token_type_ids"):
            assert torch.equal(padded[name][real], packed[name][0])
        assert torch.equal(padded["next_sentence_label"], packed["next_sentence_label"])
        lengths = DataCollatorForDialogueLM(tokenizer).example_lengths(examples[range(20)])
        assert packed["cu_seq_lens_q"].tolist() == [0, *np.cumsum(lengths)]

    def test_sources_of_a_mixture(self, tokenizer):
        sources = {name: Dialogues(make_dataset(random_documents(60, i)), 24) for i, name in enumerate("ab")}
        mixed = MixedExamples(sources)
        mixed.set_epoch(0)
        batch = DataCollatorForDialogueLM(tokenizer)(mixed.__getitems__(range(len(mixed))))
        assert len(batch["next_sentence_label"]) == len(mixed) == sum(map(len, sources.values()))

    def test_types_are_the_roles(self, tokenizer):
        documents = [[[10, 11], [], [12], [13, 14], [], [15]], [[20], [21], [22]]]
        examples = Dialogues(make_dataset(documents), 16, redraw=False, seed=5)
        collator = DataCollatorForDialogueLM(tokenizer, label_name="order", mask_probability=0.5)
        batch = collator([examples[range(3)]])
        cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        ids = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
        assert ids[:, 0].tolist() == [cls] * 3 and (ids == sep).sum(dim=1).tolist() == [3] * 3
        turn = torch.cumsum(torch.cat([torch.zeros(3, 1, dtype=torch.int64), (ids == sep)[:, :-1].long()], 1), 1)
        roles = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0]])
        assert torch.equal(batch["token_type_ids"], roles.gather(1, turn) * batch["attention_mask"])
        assert batch["order"].shape == (3,) and "next_sentence_label" not in batch


class TestWrongInput:
    @pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, "half"])
    def test_shares(self, share):
        with pytest.raises(ValueError, match=f"fake_probability={share!r} must be above 0 and below 1"):
            Dialogues(make_dataset(talks(5)), 16, fake_probability=share)

    def test_lengths(self):
        with pytest.raises(ValueError, match="max_length=6 leaves no room for three turns: use at least 7"):
            Dialogues(make_dataset(talks(5)), 6)
        with pytest.raises(ValueError, match="max_length='9' leaves no room"):
            Dialogues(make_dataset(talks(5)), "9")

    @pytest.mark.parametrize(
        ("documents", "count"),
        [([[[5], [6]], [[7]]], 0), ([[[5], [6], [7]], [[8], [9]]], 1), ([[[], [5], [6]]] * 9, 0)],
    )
    def test_too_few_dialogues(self, documents, count):
        with pytest.raises(ValueError, match=rf"holds {count} dialogue\(s\) with three consecutive.*--turns-column"):
            Dialogues(make_dataset(documents), 16)

    def test_examples_of_others(self, tokenizer):
        chunks = DocumentChunks(make_dataset(random_documents(9)), 24, redraw=False)
        for features in ([chunks[0]], [{"input_ids": [[5], [6], [7]]}]):
            with pytest.raises(ValueError, match="not examples of Dialogues"):
                DataCollatorForDialogueLM(tokenizer)(features)
