"""Metrics as `evaluate.Metric` modules that need no network.

Each class has a file of its own: `evaluate.load("hf_encoders/evaluation/metrics/f1.py")` gives the same metric as
`hf_encoders.F1()`. The result is one flat dictionary of numbers, as `evaluate.combine`, `evaluate.evaluator`'s
bootstrap intervals and `Trainer`'s log expect.
"""

from hf_encoders.evaluation.metrics.accuracy import Accuracy
from hf_encoders.evaluation.metrics.f1 import F1
from hf_encoders.evaluation.metrics.matthews_correlation import MatthewsCorrelation
from hf_encoders.evaluation.metrics.minimal_pair_accuracy import MinimalPairAccuracy
from hf_encoders.evaluation.metrics.pair_accuracy import PairAccuracy
from hf_encoders.evaluation.metrics.pearson_correlation import PearsonCorrelation
from hf_encoders.evaluation.metrics.pseudo_perplexity import PseudoPerplexity
from hf_encoders.evaluation.metrics.seqeval import Seqeval
from hf_encoders.evaluation.metrics.spearman_correlation import SpearmanCorrelation
from hf_encoders.evaluation.metrics.squad import Squad
from hf_encoders.evaluation.metrics.squad_v2 import SquadV2


__all__ = [
    "Accuracy",
    "F1",
    "MatthewsCorrelation",
    "MinimalPairAccuracy",
    "PairAccuracy",
    "PearsonCorrelation",
    "PseudoPerplexity",
    "Seqeval",
    "SpearmanCorrelation",
    "Squad",
    "SquadV2",
]
