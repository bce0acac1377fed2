"""Accuracy on minimal pairs by pseudo-likelihood (BLiMP, Warstadt et al. 2020, https://arxiv.org/abs/1912.00582).

Needs the package `hf_encoders`, also if loaded by path.
"""

from typing import Any

import datasets
import evaluate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.evaluation.masked_lm import pseudo_log_likelihoods
from hf_encoders.evaluation.scores import compare_pairs


class MinimalPairAccuracy(evaluate.Metric):
    """Share of pairs whose acceptable sentence has the higher pseudo-log-likelihood; chance is about one half.

    Inputs are the columns `sentence_good` and `sentence_bad`, in the configuration `blimp` also `UID`, the paradigm:
    `MinimalPairAccuracy("blimp").compute(**rows, model=model, tokenizer=tokenizer)`.
    """

    def _info(self) -> evaluate.MetricInfo:
        columns = {"default": ("sentence_good", "sentence_bad"), "blimp": ("sentence_good", "sentence_bad", "UID")}
        if self.config_name not in columns:
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(columns)}.")
        features = datasets.Features(dict.fromkeys(columns[self.config_name], datasets.Value("string")))
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self,
        sentence_good: list[str],
        sentence_bad: list[str],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        UID: list[str] | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Score and compare the sentences of each pair; other arguments are those of `token_log_probabilities`.

        Returns:
            `minimal_pair_accuracy`, in [0, 1]; `minimal_pairs`, their number; `minimal_pair_ties`, pairs with equal
            scores, which count as wrong; with `blimp` `minimal_pair_accuracy_<UID>` of each paradigm.
        """
        scores = pseudo_log_likelihoods(model, tokenizer, [*sentence_good, *sentence_bad], **options)
        good, bad = scores[: len(sentence_good)], scores[len(sentence_good) :]
        result = compare_pairs(good, bad, UID or [])
        metrics = {
            "minimal_pair_accuracy": result["accuracy"],
            "minimal_pairs": result["pairs"],
            "minimal_pair_ties": result["ties"],
        }
        for name, of_paradigm in result["paradigms"].items():
            metrics[f"minimal_pair_accuracy_{name}"] = of_paradigm["accuracy"]
        return metrics
