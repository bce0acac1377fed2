"""Text -> documents of sentences -> token ids -> pairs or blocks -> masked batches.

The public names are imported when they are first used: the command line reads paths before it imports torch.
"""

import importlib
from typing import Any


_NAMES = {  # module -> its public names
    "blocks": ["SentenceBlocks"],
    "chunks": ["DocumentChunks"],
    "collators": ["DataCollatorForMaskedLM"],
    "corpus.documents": ["documents_from_dataset", "read_documents"],
    "corpus.lexicon": ["jieba_entries", "read_entries"],
    "corpus.parallel": ["parallel_languages", "prepare_parallel_corpus"],
    "corpus.preparation": ["prepare_corpus"],
    "corpus.report": ["CorpusReport", "corpus_statistics", "warnings_for"],
    "corpus.segmentation": ["one_sentence_per_line", "split_sentences"],
    "corpus.similar_words": ["build_similar_words", "read_similar_words"],
    "corpus.tokenized": ["split_train_validation", "tokenize_documents"],
    "dialogues": ["DataCollatorForDialogueLM", "Dialogues"],
    "mixture": ["MixedExamples"],
    "packing": ["TokenBudget"],
    "pair_collators": ["DataCollatorForNextSentencePrediction", "DataCollatorForSentenceOrderPrediction"],
    "parallel": ["ParallelPairs"],
    "permutation_collator": ["DataCollatorForPermutationLM", "ReusedChunks"],
    "streaming": ["StreamedBlocks", "StreamedChunks"],
    "vocabulary.padded_size": ["padded_vocab_size"],
    "vocabulary.tokenizer_training": ["train_tokenizer"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["presets", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("hf_encoders.data.presets")
    if name in _MODULES:
        return getattr(importlib.import_module(f"hf_encoders.data.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
