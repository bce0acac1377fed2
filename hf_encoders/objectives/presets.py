"""The data of the papers as their code makes it, artefacts included: options for datasets and collators.

By default this package leaves the known artefacts out. `sentence_pairs.py` lists those of the chunks; those of
masking are options of `Masking`, combined here.
Sources: `create_pretraining_data.py` of google-research/bert and google-research/albert with the defaults of its
flags; fairseq's `masked_lm` task, `mask_tokens_dataset.py` and `token_block_dataset.py` with its RoBERTa recipe.

>>> from hf_encoders.objectives.masking import Masking
>>> Masking(**{**BERT_MASKING, "max_predictions": 76}).max_predictions  # BERT's README at length 512
76

BERT and ALBERT wrote their examples to disk several times (`dupe_factor`, 10 and 40 by default); an epoch of
`DocumentChunks(..., dupe_factor=10, **BERT_CHUNKS)` is one of these passes.
"""

from hf_encoders.corpus.word_starts import ContinuationStarts, SentencePieceStarts, SpaceMarkedStarts


# google-research/bert, `create_instances_from_document`.
BERT_CHUNKS = {"original_code": True, "put_back": True}
# `create_masked_lm_predictions`; 20 predictions are for length 128, the README has 76 to 80 for 512.
BERT_MASKING = {
    "num_masked": "nearest",
    "max_predictions": 20,
    "pass_over_long_words": True,
    "count_special_tokens": True,
    "random_tokens": "any",
}
# `do_whole_word_mask`: a wordpiece that continues a word joins the one before it, over a separator too.
BERT_WHOLE_WORD_MASKING = {
    **BERT_MASKING,
    "unit": "word",
    "units_cross_separators": True,
    "word_starts": ContinuationStarts,
}

# google-research/albert: as BERT, and nothing is put back.
ALBERT_CHUNKS = {**BERT_CHUNKS, "put_back": False}
# `ngram=3`, `favor_shorter_ngram`, `do_whole_word_mask`; `max_predictions_per_seq` is 20 at length 512 too.
ALBERT_MASKING = {
    **BERT_MASKING,
    "unit": "ngram",
    "max_ngram": 3,
    "units_cross_separators": True,
    "word_starts": SentencePieceStarts,
}

# fairseq, `--sample-break-mode complete`; add "cross_documents": False for `complete_doc`.
ROBERTA_BLOCKS = {"cross_documents": True, "sentence_separators": True, "cut_long_sentences": False}
# `mask_tokens_dataset.py`: special tokens are counted, masked and predicted like others, and the number to mask may be
# zero; random tokens are all but the first four entries: `<s>`, `<pad>`, `</s>`, `<unk>`.
ROBERTA_MASKING = {
    "num_masked": "rounded",
    "at_least_one": False,
    "count_special_tokens": True,
    "mask_special_tokens": True,
    "random_tokens": "ordinary_and_mask",
}
# `mask_whole_words`: the share is of the words, and each word is masked, replaced or kept as a whole. A token without
# a space before it joins the special token before it.
ROBERTA_WHOLE_WORD_MASKING = {
    **ROBERTA_MASKING,
    "unit": "word",
    "share_of_words": True,
    "replacement_per": "unit",
    "word_starts": SpaceMarkedStarts,
}

# MacBERT (https://arxiv.org/abs/2004.13922, section 3.2), which has no released code; n counts words (its issue 15).
# N-grams of 1 to 4 words, up to 15 % of the tokens; each word becomes a similar one, a random one, or stays.
MACBERT_MASKING = {
    "unit": "ngram",
    "ngram_probabilities": (0.4, 0.3, 0.2, 0.1),
    "replacement_per": "word",
    "mask_replace_probability": 0.0,
    "similar_replace_probability": 0.8,
    "random_replace_probability": 0.1,
}

# ERNIE 1.0: `mask` in `batching.py` of PaddlePaddle/ERNIE, release/r2.0. Every token, or every unit, independently;
# 80/10/10 for each token of a unit on its own; special tokens may be random tokens. As it is, its character mode; with
# `unit` "word", "phrase" or "entity" its word mode, whose units were those of a lexical analyser.
ERNIE_MASKING = {"num_masked": "bernoulli", "at_least_one": False, "random_tokens": "any"}

# DistilBERT: `prepare_batch_mlm` in `distiller.py` and `mlm_smoothing` in `train.py` of the research projects of
# transformers. The number to mask was of the batch, and is of the example here; unknown tokens were never predicted.
DISTILBERT_MASKING = {"frequency_power": 0.7, "count_special_tokens": True, "random_tokens": "any"}
# XLM: `mask_out` in `trainer.py` with `sample_alpha` 0.5 (https://arxiv.org/abs/1901.07291, section 3.2; the models of
# 17 and 100 languages). Its default, 0, is without `frequency_power`. The number was of the batch there too.
XLM_MASKING = {**DISTILBERT_MASKING, "frequency_power": 0.5}

# ELECTRA: `mask` in `pretrain/pretrain_helpers.py` of google-research/electra. It draws with replacement, so that some
# tokens are drawn twice (about 14 % of the tokens, not 15 %); here without (https://arxiv.org/abs/2003.10555,
# section 3.2: a random set of positions).
ELECTRA_MASKING = {
    "num_masked": "nearest",
    "count_special_tokens": True,
    "mask_replace_probability": 0.85,
    "random_replace_probability": 0.0,
}

# DeBERTa v3: `NGramMaskGenerator` in `DeBERTa/apps/tasks/mlm_task.py` of microsoft/DeBERTa with `max_gram` 1, for the
# 512 tokens of the published models.
DEBERTA_MASKING = {
    "num_masked": "windows",
    "mask_replace_probability": 1.0,
    "random_replace_probability": 0.0,
    "max_predictions": 80,
}

# facebookresearch/XLM, `StreamDataset`; for the released models at max_length 256 (`bptt`).
XLM_BLOCKS = {"cross_documents": True, "sentence_separators": True, "whole_sentences": False}
# fairseq, task `multilingual_masked_lm`: `--sample-break-mode complete` is its default too.
XLMR_BLOCKS = ROBERTA_BLOCKS
