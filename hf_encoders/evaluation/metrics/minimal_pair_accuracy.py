"""Accuracy on minimal pairs by pseudo-likelihood (BLiMP, Warstadt et al. 2020, https://arxiv.org/abs/1912.00582).

Needs the package `hf_encoders`, also if loaded by path.
"""

import datasets
import evaluate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.evaluation.minimal_pairs import compare_pairs
from hf_encoders.evaluation.pseudo_likelihood import MAX_TOKENS, pseudo_log_likelihoods


class MinimalPairAccuracy(evaluate.Metric):
    """Share of pairs whose acceptable sentence has the higher pseudo-log-likelihood; chance is about one half.

    Inputs are the columns `sentence_good` and `sentence_bad`, in the configuration `blimp` also `UID`, the paradigm:
    `MinimalPairAccuracy("blimp").compute(**rows, model=model, tokenizer=tokenizer)`.
    """

    def _info(self) -> evaluate.MetricInfo:
        columns = {"default": ("sentence_good", "sentence_bad"), "blimp": ("sentence_good", "sentence_bad", "UID")}
        if self.config_name not in columns:
            raise ValueError(f"config_name={self.config_name!r}: must be one of {', '.join(columns)}.")
        text = datasets.Value("string")
        features = datasets.Features(dict.fromkeys(columns[self.config_name], text))
        return evaluate.MetricInfo(__doc__, citation="", features=features, inputs_description=self._compute.__doc__)

    def _compute(
        self,
        sentence_good: list[str],
        sentence_bad: list[str],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        UID: list[str] | None = None,
        mask_rest_of_word: bool = False,
        max_tokens: int = MAX_TOKENS,
    ) -> dict[str, float]:
        """Score and compare the sentences of each pair.

        Args:
            sentence_good, sentence_bad (`list` of `str`): The acceptable and the other sentence, `(pairs,)`.
            model, tokenizer, mask_rest_of_word, max_tokens: As for
                `hf_encoders.evaluation.pseudo_likelihood.token_log_probabilities`.
            UID (`list` of `str`): With `blimp`, the paradigm of each pair.

        Returns:
            `minimal_pair_accuracy`, in [0, 1]; `minimal_pairs`, their number; `minimal_pair_ties`, pairs with equal
            scores, which count as wrong; with `blimp` `minimal_pair_accuracy_<UID>` of each paradigm.
        """
        sentences = [*sentence_good, *sentence_bad]
        scores = pseudo_log_likelihoods(model, tokenizer, sentences, mask_rest_of_word, max_tokens)
        good, bad = scores[: len(sentence_good)], scores[len(sentence_good) :]
        overall, by_paradigm = compare_pairs(good, bad, UID or [""] * len(good))
        metrics = {
            "minimal_pair_accuracy": overall.accuracy,
            "minimal_pairs": overall.pairs,
            "minimal_pair_ties": overall.ties,
        }
        if UID is not None:
            metrics |= {f"minimal_pair_accuracy_{name}": found.accuracy for name, found in by_paradigm.items()}
        return metrics
