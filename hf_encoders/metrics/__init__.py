"""Metrics as `evaluate.Metric` modules that need no network.

Each class has a file of its own, so both `hf_encoders.metrics.F1()` and `evaluate.load("hf_encoders/metrics/f1.py")`
give it. All figures come as one flat dictionary of numbers, which `evaluate.combine`, bootstrap intervals of
`evaluate.evaluator` and the log of `Trainer` can take as it is.
"""

from hf_encoders.metrics.accuracy import Accuracy
from hf_encoders.metrics.f1 import F1
from hf_encoders.metrics.matthews_correlation import MatthewsCorrelation
from hf_encoders.metrics.minimal_pair_accuracy import MinimalPairAccuracy
from hf_encoders.metrics.pair_accuracy import PairAccuracy
from hf_encoders.metrics.pearson_correlation import PearsonCorrelation
from hf_encoders.metrics.pseudo_perplexity import PseudoPerplexity
from hf_encoders.metrics.seqeval import Seqeval
from hf_encoders.metrics.spearman_correlation import SpearmanCorrelation
from hf_encoders.metrics.squad import Squad
from hf_encoders.metrics.squad_v2 import SquadV2


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
