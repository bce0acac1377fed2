"""Windows of question and context, and scores back to answers: hand-set scores, so every answer is worked out by hand.

The context `w5 w6 w7 w8` has its tokens at the characters 0-2, 3-5, 6-8 and 9-11.
"""

import math

import pytest
import torch

from hf_encoders.models.question_answering_pipeline import (
    Answer,
    AnswerWindow,
    answer_windows,
    best_answers,
)
from tests.hub.tiny_checkpoints import ALBERT, BERT, FAMILIES, Family, make_tokenizer


CONTEXT = "w5 w6 w7 w8"
OFFSETS = [(0, 2), (3, 5), (6, 8), (9, 11)]


def window(first: int = 0, last: int = 4, question: int = 0) -> AnswerWindow:
    """`[CLS] question [SEP]`, tokens `first` to `last` of the context, `[SEP]`."""
    offsets = [None, None, None, *OFFSETS[first:last], None]
    return AnswerWindow(question, list(range(len(offsets))), None, offsets, 0)


def scores(*context: float, null: float = 0.0, other: float = 50.0) -> torch.Tensor:
    """Scores of a window's tokens; question and separators score high, and must not count."""
    return torch.tensor([null, other, other, *context, other])


def answers_of(starts: list[torch.Tensor], ends: list[torch.Tensor], windows=None, **options) -> list[Answer]:
    return best_answers(CONTEXT, windows or [window()], starts, ends, **options)


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def test_best_span_ends_no_earlier_than_it_starts_and_is_in_the_context() -> None:
    """Best start w7, best end w5: reversed. The best valid sum is 4 + 1 of w7 w8; next 3 + 1 of w5 .. w8."""
    [first, second, third] = answers_of([scores(3, 0, 4, 0)], [scores(9, -9, -9, 1)])[:3]
    assert (first.text, first.start, first.end, first.start_logit, first.end_logit) == ("w5", 0, 2, 3, 9)
    assert (second.text, second.start, second.end) == ("w7 w8", 6, 11)
    assert (third.text, third.score) == ("w5 w6 w7 w8", 4)


def test_every_valid_span_is_a_candidate_once() -> None:
    found = answers_of([scores(1, 2, 3, 4)], [scores(1, 2, 3, 4)])
    assert len(found) == 10
    assert [answer.score for answer in found] == sorted((answer.score for answer in found), reverse=True)
    # The two best starts come after the two best ends, so no pair of them is a span.
    found = answers_of([scores(1, 0, 9, 9)], [scores(8, 8, 0, -9)], n_best=2)
    assert [(answer.text, answer.score) for answer in found] == [("w5", 9), ("w5 w6", 9)]


def test_longest_answer_counts_tokens() -> None:
    starts, ends = [scores(9, 0, 0, 0)], [scores(0, 0, 0, 9)]
    assert texts(answers_of(starts, ends))[0] == "w5 w6 w7 w8"
    found = answers_of(starts, ends, max_answer_length=2)
    assert all(len(answer.text.split()) <= 2 for answer in found)
    # 9 + 0 and 0 + 9 are equal: the earlier start goes first, then the shorter answer.
    assert texts(found)[:4] == ["w5", "w5 w6", "w7 w8", "w8"]


def test_equal_scores_have_one_order_and_windows_compete() -> None:
    flat = scores(0, 0, 0, 0)
    assert texts(answers_of([flat], [flat], n_best=5)) == ["w5", "w5 w6", "w5 w6 w7", "w5 w6 w7 w8", "w6"]
    short = [scores(0, 0)] * 2
    assert texts(answers_of(short, short, [window(2, 4), window(0, 2)], n_best=3)) == ["w5", "w5 w6", "w6"]
    of_two_windows = [scores(0, 2, 0), scores(3, 0, 0)]
    found = answers_of(of_two_windows, of_two_windows, [window(0, 3), window(1, 4)])
    assert (found[0].text, found[0].score) == ("w6", 6)
    assert texts(found).count("w6") == 1


def test_probabilities_are_a_softmax_over_the_candidates() -> None:
    found = answers_of([scores(0, 1, -99, -99)], [scores(0, 0, -99, -99)], n_best=2)
    expected = [("w6", math.e / (math.e + 1)), ("w5", 1 / (math.e + 1))]
    assert [(answer.text, pytest.approx(answer.probability)) for answer in found] == expected


def test_no_answer_is_the_lowest_score_of_any_window() -> None:
    windows = [window(0, 2), window(2, 4)]
    starts, ends = [scores(1, 0, null=4), scores(0, 0, null=1)], [scores(1, 0, null=4), scores(0, 0, null=0.5)]
    found = answers_of(starts, ends, windows, with_null=True)
    null = next(answer for answer in found if not answer.text)
    assert (null.start, null.end, null.start_logit, null.end_logit) == (0, 0, 1, 0.5)
    assert texts(found)[:2] == ["w5", ""]
    assert "" not in texts(answers_of(starts, ends, windows))
    assert sum(answer.probability for answer in found) == pytest.approx(1)


@pytest.mark.parametrize(("threshold", "first"), [(0.0, ""), (0.9, ""), (1.0, "w5"), (2.0, "w5"), (-5.0, "")])
def test_no_answer_must_score_more_than_the_threshold_above(threshold: float, first: str) -> None:
    """Best answer 2 + 2, no answer 3 + 2; a difference equal to the threshold is an answer, as in the script."""
    found = answers_of(
        [scores(2, 0, 0, 0, null=3)], [scores(2, 0, 0, 0, null=2)], with_null=True, null_threshold=threshold
    )
    assert found[0].text == first
    assert len(found) == 11


def test_no_answer_is_a_candidate_next_to_n_best_or_none() -> None:
    found = answers_of([scores(2, 0, 0, 0, null=-99)], [scores(2, 0, 0, 0)], with_null=True, n_best=2)
    assert texts(found) == ["w5", "w5 w6", ""]
    empty = [window(0, 0)]
    assert answers_of([scores()], [scores()], empty) == []
    assert texts(answers_of([scores()], [scores()], empty, with_null=True)) == [""]


def test_blanks_are_no_part_of_an_answer() -> None:
    """Byte-level tokens whose characters begin with the blank before the word, and one of a blank alone."""
    blank = AnswerWindow(0, [0] * 5, None, [None, (0, 2), (2, 5), (5, 6), None], 0)
    starts, ends = torch.tensor([0.0, 0, 5, 9, 0]), torch.tensor([0.0, 0, 1, 2, 0])
    found = best_answers(CONTEXT, [blank], [starts], [ends])
    # The last token alone is no answer; of "w6" and "w6 " the better one stays.
    assert [(answer.text, answer.start, answer.end, answer.score) for answer in found[:1]] == [("w6", 3, 5, 7)]
    assert texts(found) == ["w6", "w5 w6", "w5"]


def test_sums_are_exact_and_nan_is_refused() -> None:
    """In bfloat16 256 + 1 is 256: sums are taken in 64 bits."""
    starts, ends = scores(256, 256, 0, 0).bfloat16(), scores(0, 1, -99, -99).bfloat16()
    assert answers_of([starts], [ends], n_best=1)[0].score == 257
    with pytest.raises(ValueError, match="NaN"):
        answers_of([scores(0, float("nan"), 0, 0)], [scores(0, 0, 0, 0)])


# Windows.
QUESTION, LONG = "the cat sat", "the cat sat on the mat . the dog slept all day long"


def test_windows_of_a_pair_exactly() -> None:
    found = list(answer_windows(make_tokenizer(BERT), [QUESTION], [LONG], 14, doc_stride=2, max_question_length=3))
    ids = [make_tokenizer(BERT).convert_ids_to_tokens(one.input_ids) for one in found]
    assert [" ".join(tokens) for tokens in ids] == [
        "[CLS] the cat sat [SEP] the cat sat on the mat . the [SEP]",
        "[CLS] the cat sat [SEP] . the dog slept all day long [SEP]",
    ]
    assert found[0].token_type_ids == [0] * 5 + [1] * 9
    assert found[0].offsets[:6] == [None] * 5 + [(0, 3)]
    assert (found[1].offsets[5], found[1].offsets[-2:]) == ((23, 24), [(47, 51), None])
    assert [one.null_column for one in found] == [0, 0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_windows_cover_the_context_and_every_offset_is_of_its_token(family: Family) -> None:
    tokenizer = make_tokenizer(family)
    found = list(answer_windows(tokenizer, [QUESTION, "dog"], [LONG, LONG.upper()], 30, doc_stride=3))
    assert {one.question for one in found} == {0, 1}
    covered = {offset for one in found if one.question == 0 for offset in one.offsets if offset}
    whole = tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert covered == set(whole)
    for one in found:
        assert len(one.input_ids) <= 30
        assert one.input_ids[one.null_column] == tokenizer.cls_token_id
        has_types = family.name in ("bert", "albert", "electra", "distilbert", "xlnet", "deberta-v2")
        assert (one.token_type_ids is not None) == has_types
        assert all(offset is None or offset[1] <= len(LONG) for offset in one.offsets)


def test_questions_are_cut_at_a_token_and_pairs_have_types() -> None:
    tokenizer = make_tokenizer(BERT)
    [cut] = answer_windows(tokenizer, [f"  {LONG}"], ["a dog"], 30, doc_stride=0, max_question_length=2)
    assert tokenizer.decode(cut.input_ids) == "[CLS] the cat [SEP] a dog [SEP]"
    assert "token_type_ids" not in make_tokenizer(ALBERT)("a", "dog")  # only when asked for
    [pair] = answer_windows(make_tokenizer(ALBERT), ["a"], ["dog"], 20)
    assert pair.token_type_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 20, "doc_stride": 11}, "doc_stride=11.*20 tokens has room for 11.*question of 6.*0 to 10"),
        ({"max_length": 20, "doc_stride": -1}, "doc_stride=-1"),
        ({"max_length": 20, "max_question_length": 0}, "a question at least 1"),
        ({"max_length": 20, "max_question_length": 17}, "room for 0"),
    ],
)
def test_windows_that_cannot_move_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(answer_windows(make_tokenizer(BERT), ["a"], ["dog"], **options))


def test_tokenizer_without_first_special_token_is_refused() -> None:
    tokenizer = make_tokenizer(BERT)
    tokenizer.cls_token = None
    with pytest.raises(ValueError, match="no cls_token, which stands for 'no answer'"):
        list(answer_windows(tokenizer, ["a"], ["dog"], 20))
