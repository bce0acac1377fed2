"""Entity precision, recall and F1 of token classification, overall and by type, over seqeval."""

import datasets
import evaluate
import seqeval.metrics
import seqeval.scheme
from seqeval.metrics import sequence_labeling, v1


IOBES_PREFIXES = {"L": "E", "U": "S", "M": "I"}  # of the last word, the only one, and one in the middle
SCHEMES = ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU")


class Seqeval(evaluate.Metric):
    """Entity metrics: an entity is right if its type, its first and its last word are.

    The default mode reads any tagging scheme and also counts entities that begin with `I-`, as `conlleval.pl` of
    CoNLL-2000 does; `mode="strict"` counts only entities that are well-formed in `scheme`.

    >>> Seqeval().compute(
    ...     predictions=[["B-PER", "I-PER", "O", "B-LOC"]], references=[["B-PER", "I-PER", "O", "O"]]
    ... )  # doctest: +NORMALIZE_WHITESPACE
    {'overall_precision': 0.5, 'overall_recall': 1.0, 'overall_f1': 0.6666666666666666, 'overall_accuracy': 0.75,
     'LOC_precision': 0.0, 'LOC_recall': 0.0, 'LOC_f1': 0.0, 'LOC_number': 0,
     'PER_precision': 1.0, 'PER_recall': 1.0, 'PER_f1': 1.0, 'PER_number': 1}
    """

    def _info(self) -> evaluate.MetricInfo:
        tags = datasets.Sequence(datasets.Value("string"))
        features = datasets.Features({"predictions": tags, "references": tags})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self,
        predictions: list[list[str]],
        references: list[list[str]],
        mode: str | None = None,
        scheme: str | None = None,
    ) -> dict[str, float]:
        """Compute precision, recall and F1.

        Args:
            predictions, references (`list` of `list` of `str`): Tags such as `B-PER` and `O`, one per word.
            mode (`str`, *optional*): None or `strict`.
            scheme (`str`, *optional*): For `strict`, IOB1, IOB2, IOE1, IOE2, IOBES (also called BIOES) or BILOU.

        Returns:
            `overall_precision`, `overall_recall`, `overall_f1` of all entities, `overall_accuracy` of all words;
            `<type>_precision`, `<type>_recall`, `<type>_f1`; all in [0, 1], 0 if undefined; `<type>_number`, true
            entities of the type. The type `overall` becomes `overall_`.
        """
        for number, (predicted, true) in enumerate(zip(predictions, references, strict=True)):
            if len(predicted) != len(true):
                lengths = f"{len(predicted)} predictions, {len(true)} references"
                raise ValueError(f"sentence {number}: {lengths}: pass a tag per word.")
        # Not `classification_report`, whose averages overwrite types of the same name.
        if mode is None and scheme is None:
            score, options = sequence_labeling.precision_recall_fscore_support, {}
            predictions, references = (
                [list(map(iobes_tag, tags)) for tags in rows] for rows in (predictions, references)
            )
            entities = sequence_labeling.get_entities(references) + sequence_labeling.get_entities(predictions)
            kinds = sorted({kind for kind, _, _ in entities})
        else:
            name = "IOBES" if scheme == "BIOES" else scheme
            if mode != "strict" or name not in SCHEMES:
                raise ValueError(
                    f"mode={mode!r}, scheme={scheme!r}: leave both out, or pass mode='strict' and one of "
                    f"{', '.join(SCHEMES)}."
                )
            score, options = v1.precision_recall_fscore_support, {"scheme": getattr(seqeval.scheme, name)}
            kinds = v1.unique_labels(references, predictions, options["scheme"])
        precision, recall, f1, _ = score(references, predictions, average="micro", zero_division=0, **options)
        by_kind = score(references, predictions, average=None, zero_division=0, **options)
        metrics = {
            "overall_precision": float(precision),
            "overall_recall": float(recall),
            "overall_f1": float(f1),
            "overall_accuracy": float(seqeval.metrics.accuracy_score(references, predictions)),
        }
        for kind, precision, recall, f1, number in zip(kinds, *by_kind, strict=True):
            name = name_in_metrics(kind)
            metrics |= {f"{name}_precision": float(precision), f"{name}_recall": float(recall)}
            metrics |= {f"{name}_f1": float(f1), f"{name}_number": int(number)}
        return metrics


def iobes_tag(tag: str) -> str:
    """Return a tag of BILOU or BMES (middle), whose prefixes seqeval's default mode does not know, as one of IOBES.

    >>> list(map(iobes_tag, ["U-LOC", "B-PER", "L-PER", "O", "M-PER"]))
    ['S-LOC', 'B-PER', 'E-PER', 'O', 'I-PER']
    """
    return IOBES_PREFIXES.get(tag[0], tag[0]) + tag[1:] if tag[1:2] == "-" else tag


def name_in_metrics(kind: str) -> str:
    """Return the name of an entity type in the metrics, distinct from that of all types together.

    >>> [name_in_metrics(kind) for kind in ("PER", "overall", "overall_")]
    ['PER', 'overall_', 'overall__']
    """
    return f"{kind}_" if kind.rstrip("_") == "overall" else kind
