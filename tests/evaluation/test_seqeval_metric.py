"""Entity metrics: by hand in three tagging schemes, and the same as seqeval's own."""

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme

from hf_encoders import Seqeval


# The same four entities in each scheme: PER found; two LOC taken for one; ORG with a tag that the scheme does not put
# there; one LOC invented in the last sentence. Columns: references, predictions.
SENTENCES = {
    "IOB1": (
        [["I-PER", "I-PER", "O", "I-LOC", "B-LOC"], ["I-ORG", "I-ORG", "O"], ["O", "O"]],
        [["I-PER", "I-PER", "O", "I-LOC", "I-LOC"], ["B-ORG", "I-ORG", "O"], ["O", "I-LOC"]],
    ),
    "IOB2": (
        [["B-PER", "I-PER", "O", "B-LOC", "B-LOC"], ["B-ORG", "I-ORG", "O"], ["O", "O"]],
        [["B-PER", "I-PER", "O", "B-LOC", "I-LOC"], ["I-ORG", "I-ORG", "O"], ["O", "B-LOC"]],
    ),
    "IOBES": (
        [["B-PER", "E-PER", "O", "S-LOC", "S-LOC"], ["B-ORG", "E-ORG", "O"], ["O", "O"]],
        [["B-PER", "E-PER", "O", "B-LOC", "E-LOC"], ["B-ORG", "I-ORG", "O"], ["O", "S-LOC"]],
    ),
}
WORDS_RIGHT = {"IOB1": 7, "IOB2": 7, "IOBES": 6}  # of 10


@pytest.fixture
def metric(tmp_path):
    return Seqeval(cache_dir=str(tmp_path))


@pytest.mark.parametrize("scheme", SENTENCES)
def test_default_mode_takes_any_scheme(metric, scheme):
    references, predictions = SENTENCES[scheme]
    found = metric.compute(predictions=predictions, references=references)
    # 4 predicted (PER, LOC over two words, ORG, LOC), 4 true, PER and ORG right
    assert {name: found[name] for name in ("overall_precision", "overall_recall", "overall_f1")} == {
        "overall_precision": 0.5, "overall_recall": 0.5, "overall_f1": 0.5,
    }  # fmt: skip
    assert found["overall_accuracy"] == WORDS_RIGHT[scheme] / 10
    assert [found[f"{name}_number"] for name in ("LOC", "ORG", "PER")] == [2, 1, 1]
    assert (found["ORG_f1"], found["PER_f1"], found["LOC_f1"]) == (1.0, 1.0, 0.0)


def test_tags_of_bilou_and_bmes_are_known(metric):
    """Neighbours of one type are two entities, which seqeval's own default mode takes for one, or leaves out."""
    references = [
        ["B-PER", "L-PER", "B-PER", "L-PER", "U-LOC", "U-LOC"],
        ["B-ORG", "M-ORG", "E-ORG", "O", "U-LOC", "O"],
    ]
    predictions = [[*references[0][:5], "O"], [*references[1][:4], "O", "O"]]
    metrics = metric.compute(predictions=predictions, references=references)
    assert [metrics[f"{name}_number"] for name in ("LOC", "ORG", "PER")] == [3, 1, 2]
    assert (metrics["overall_precision"], metrics["overall_recall"]) == (1.0, 4 / 6)


@pytest.mark.parametrize(
    ("scheme", "num_predicted"),
    # A span that is not well-formed in the scheme is no entity; in IOB1 a needless B- is one of its own.
    [("IOB1", 4), ("IOB2", 3), ("IOBES", 3), ("BIOES", 3)],
)
def test_strict_mode_counts_well_formed_entities(metric, scheme, num_predicted):
    references, predictions = SENTENCES["IOBES" if scheme == "BIOES" else scheme]
    found = metric.compute(predictions=predictions, references=references, mode="strict", scheme=scheme)
    assert found["overall_precision"] == 1 / num_predicted
    assert found["overall_recall"] == 1 / 4
    assert (found["ORG_f1"], found["PER_f1"]) == (0.0, 1.0)


def random_tags(scheme: str, seed: int) -> list[list[str]]:
    random = np.random.default_rng(seed)
    prefixes = {"IOB1": "IB", "IOB2": "IB", "IOBES": "BIES"}[scheme]
    tags = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC", "MISC"))]
    return [random.choice(tags, size=random.integers(1, 12)).tolist() for _ in range(30)]


@pytest.mark.parametrize("mode", [None, "strict"])
@pytest.mark.parametrize("scheme", SENTENCES)
def test_metrics_are_those_of_seqeval(metric, scheme, mode):
    references = random_tags(scheme, seed=1)
    # Mostly right, so that the metrics are not all near zero.
    mistakes, tags = np.random.default_rng(2), ["O", "S-LOC" if scheme == "IOBES" else "B-LOC"]
    predictions = [
        [mistakes.choice(tags).item() if mistakes.random() < 0.2 else tag for tag in sentence]
        for sentence in references
    ]
    arguments = {} if mode is None else {"mode": mode, "scheme": scheme}
    found = metric.compute(predictions=predictions, references=references, **arguments)

    if mode is not None:
        arguments["scheme"] = getattr(seqeval.scheme, scheme)
    for name in ("precision", "recall", "f1"):
        function = getattr(seqeval.metrics, f"{name}_score")
        assert 0.1 < found[f"overall_{name}"] < 1
        assert found[f"overall_{name}"] == function(references, predictions, zero_division=0, **arguments)
        by_type = function(references, predictions, average=None, zero_division=0, **arguments)
        assert [found[f"{kind}_{name}"] for kind in ("LOC", "MISC", "PER")] == by_type.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"predictions": [["O"]]}, "sentence 0: 1 predictions, 2 references"),
        ({"mode": "loose"}, "mode='loose'"),
        ({"mode": "strict"}, "scheme=None"),
        ({"scheme": "IOB2"}, "mode=None"),
    ],
)
def test_wrong_input_is_a_value_error(metric, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(**{"predictions": [["O", "O"]], "references": [["O", "B-X"]], **arguments})


@pytest.mark.parametrize("arguments", [{}, {"mode": "strict", "scheme": "IOB2"}])
@pytest.mark.parametrize("kind", ["overall", "overall_", "micro avg", "accuracy"])
def test_a_type_may_be_called_like_a_figure(metric, kind, arguments):
    """One of two entities of that type is found, and one of two of another, besides one that is wrong."""
    references = [["B-X", "O", "B-X", "O"], [f"B-{kind}", "O", f"B-{kind}", "O"]]
    predictions = [["B-X", "O", "O", "O"], [f"B-{kind}", "B-X", "O", "O"]]
    found = metric.compute(predictions=predictions, references=references, **arguments)
    plain = [[[tag.replace(kind, "OTHER") for tag in tags] for tags in rows] for rows in (predictions, references)]
    expected = metric.compute(predictions=plain[0], references=plain[1], **arguments)
    assert expected["overall_f1"] == pytest.approx(4 / 7) and expected["OTHER_f1"] == pytest.approx(2 / 3)
    name = f"{kind}_" if kind.startswith("overall") else kind
    assert found == {metric.replace("OTHER_", f"{name}_"): value for metric, value in expected.items()}
