"""List the public names besides those of the families, and the module of each.

`hf_encoders.<name>` imports the module when the name is first used. The classes of a family (`HfeBertForMaskedLM`) are
public by being registered. A name that is in neither is private.
"""

import importlib
from typing import Any


PUBLIC_NAMES = {  # module -> its public names
    "corpus.datatrove": ["CorpusTasks"],
    "corpus.documents": [
        "one_sentence_per_line",
        "read_documents",
        "split_sentences",
    ],
    "corpus.labelled_files": ["read_file"],
    "corpus.parallel": ["parallel_languages", "prepare_parallel_corpus"],
    "corpus.preparation": ["prepare_corpus"],
    "corpus.python_docs": ["read_python_documents"],
    "corpus.report": ["corpus_statistics", "CorpusReport", "token_counts", "warnings_for"],
    "corpus.similar_words": ["build_similar_words", "read_similar_words", "SimilarWords"],
    "corpus.tokenized": ["DocumentTokenizer", "split_train_validation", "tokenize_documents"],
    "corpus.tokenizer_training": ["padded_vocab_size", "train_tokenizer"],
    "corpus.units": ["jieba_entries", "read_entries"],
    "corpus.word_starts": ["jieba_segmenter"],
    "evaluation.embeddings": ["encode", "encode_sentences"],
    "evaluation.masked_lm": [
        "fill_masks",
        "FilledText",
        "pseudo_log_likelihoods",
        "pseudo_perplexity",
        "token_log_probabilities",
    ],
    "evaluation.metrics.accuracy": ["Accuracy"],
    "evaluation.metrics.correlation": ["Correlation"],
    "evaluation.metrics.f1": ["F1"],
    "evaluation.metrics.minimal_pair_accuracy": ["MinimalPairAccuracy"],
    "evaluation.metrics.pseudo_perplexity": ["PseudoPerplexity"],
    "evaluation.metrics.seqeval": ["Seqeval"],
    "evaluation.metrics.squad": ["Squad"],
    "loading": ["fingerprint"],
    "tokenizer_loading": ["load_tokenizer"],
    "objectives.blocks": ["ParallelPairs", "SentenceBlocks", "StreamedBlocks"],
    "objectives.clm": ["CausalLanguageModelling"],
    "objectives.dataset": ["Example"],
    "objectives.dialogue": ["DataCollatorForDialogueLM", "DialogueLanguageModelling", "Dialogues"],
    "objectives.distillation": ["Distillation", "DistillationOptions", "with_teacher"],
    "objectives.masking": ["Masking"],
    "objectives.mixture": ["MixedExamples"],
    "objectives.mlm": ["DataCollatorForMaskedLM", "MaskedLanguageModelling"],
    "objectives.objective": ["get_objective", "LossTerm", "Objective", "register_objective"],
    "objectives.plm": ["DataCollatorForPermutationLM", "PermutationLanguageModelling", "ReusedChunks"],
    "objectives.retromae": ["DataCollatorForRetroMAE", "RetroMAE", "RetroMAEModel"],
    "objectives.rtd": [
        "DataCollatorForReplacedTokenDetection",
        "ReplacedTokenDetection",
        "ReplacedTokenDetectionModel",
    ],
    "objectives.sentence_pairs": [
        "DataCollatorForNextSentencePrediction",
        "DataCollatorForSentenceOrderPrediction",
        "DocumentChunks",
        "NextSentencePrediction",
        "SentenceOrderPrediction",
    ],
    "objectives.student": ["spread_layers", "student_config", "student_family", "student_from"],
    "publishing.export": ["export_checkpoint"],
    "publishing.curves": ["logged_points", "write_comparison"],
    "publishing.publish": ["plan_publication", "publish"],
    "publishing.record": ["TrainingRecord"],
    "runs.recipe": ["load_recipe"],
    "runs.tiling": ["tile_weights"],
    "training.callbacks": ["CompactProgressCallback", "EpochCallback", "HubCodeCallback", "MaskRate"],
    "training.checkpoints": ["newest_good_checkpoint"],
    "training.fault_tolerance": ["FaultTolerantTrainer", "InterruptionCallback"],
    "training.health": ["HealthCallback"],
    "training.health_checks": ["NonFiniteLossError"],
    "training.trainer": ["PreTrainingTrainer"],
    "registration": ["add_family", "take_over_auto_classes"],
}
MODULES = {name: module for module, names in PUBLIC_NAMES.items() for name in names}


def public_names() -> list[str]:
    """Return all public names, those of the families included; imports torch."""
    from hf_encoders.registration import family_classes

    return ["__version__", "presets", *MODULES, *family_classes()]


def public_value(name: str) -> Any:
    """Return what `hf_encoders.<name>` is; AttributeError if it is not public."""
    if name == "presets":
        return importlib.import_module("hf_encoders.objectives.presets")
    if name in MODULES:
        return getattr(importlib.import_module(f"hf_encoders.{MODULES[name]}"), name)
    if name.startswith("Hfe"):
        from hf_encoders.registration import family_classes

        classes = family_classes()
        if name in classes:
            return classes[name]
    raise AttributeError(f"module 'hf_encoders' has no attribute {name!r}")
