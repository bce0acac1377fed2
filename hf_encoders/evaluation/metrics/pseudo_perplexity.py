"""Pseudo-perplexity of a masked language model on sentences (Salazar et al. 2020, https://arxiv.org/abs/1910.14659).

Needs the package `hf_encoders`, also if loaded by path.
"""

import datasets
import evaluate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.evaluation.pseudo_likelihood import MAX_TOKENS, pseudo_perplexity, token_log_probabilities


class PseudoPerplexity(evaluate.Metric):
    """exp of the mean negative log-probability of a token given all others; lower is better.

    It compares only models with the same tokenizer, because it is a mean over tokens.
    `metric.compute(predictions=sentences, model=model, tokenizer=tokenizer)`.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("string")})
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self,
        predictions: list[str],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        mask_rest_of_word: bool = False,
        max_tokens: int = MAX_TOKENS,
    ) -> dict[str, float]:
        """Score sentences.

        Args:
            predictions (`list` of `str`): The sentences.
            model, tokenizer, mask_rest_of_word, max_tokens: As for
                `hf_encoders.evaluation.pseudo_likelihood.token_log_probabilities`.

        Returns:
            `pseudo_perplexity`, at least 1; `tokens`, the number of tokens that were scored.
        """
        scores = token_log_probabilities(model, tokenizer, predictions, mask_rest_of_word, max_tokens)
        return {"pseudo_perplexity": pseudo_perplexity(scores), "tokens": sum(map(len, scores))}
