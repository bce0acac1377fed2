"""Pseudo-perplexity of a masked language model on sentences (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).

Needs the package `hf_encoders`, also if loaded by path.
"""

from typing import Any

import datasets
import evaluate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.evaluation.masked_lm import pseudo_perplexity, token_log_probabilities


class PseudoPerplexity(evaluate.Metric):
    """exp of the mean negative log-probability of a token given all others; lower is better.

    It compares only models with the same tokenizer, because it is a mean over tokens.
    `metric.compute(predictions=sentences, model=model, tokenizer=tokenizer)`.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("string")})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self, predictions: list[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
    ) -> dict[str, float]:
        """Score the sentences `predictions`; the other arguments are those of `token_log_probabilities`.

        Returns:
            `pseudo_perplexity`, at least 1; `tokens`, the number of tokens that were scored.
        """
        scores = token_log_probabilities(model, tokenizer, predictions, **options)
        return {"pseudo_perplexity": pseudo_perplexity(scores), "tokens": sum(map(len, scores))}
