"""The documents of a run by source: examples, held-out documents, unigram baselines."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.tokenized import split_train_validation
from hf_encoders.corpus.named_sources import UNNAMED
from hf_encoders.corpus.report import cross_entropy, token_counts
from hf_encoders.corpus.sentence_store import SentenceStore
from hf_encoders.objectives.examples import EpochDataset
from hf_encoders.objectives.mixture import MixedExamples
from hf_encoders.corpus.sampling import Sampling
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.objective import Objective
from hf_encoders.runs.masking_data import Corpus
from hf_encoders.runs.phases import RunExamples


DECODED_SENTENCES = 20_000  # most of a source whose bytes are counted


@dataclass(frozen=True)
class Source:
    """Prepared documents of one source of a run.

    Args:
        documents (`datasets.Dataset`): Tokenised documents.
        languages (`tuple[str, ...]`): Language of the text; of parallel text both, that of the first sentence first.
        folders (`tuple[Path, ...]`): The folders of the prepared corpora that the documents are from.
        option (`str`, *optional*, defaults to `"--corpus"`): What messages call the source.
    """

    documents: datasets.Dataset
    languages: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    option: str = "--corpus"

    @property
    def is_parallel(self) -> bool:
        """Whether documents are pairs of a sentence and its translation."""
        return len(self.languages) > 1

    def examples(
        self, objective: Objective, max_length: int, options: Mapping[str, Any], **draws: Any
    ) -> EpochDataset:
        """The examples of an objective; `options` of a recipe are those of running text."""
        if self.is_parallel:
            return objective.make_parallel_examples(self.documents, max_length, self.languages, **draws)
        return objective.make_examples(self.documents, max_length, **options, **draws)

    def divided(self, objective: Objective, validation_share: float, seed: int) -> "tuple[Source, Source]":
        """Documents to train on, and to evaluate on.

        Raises:
            ValueError: if there are too few.
        """
        least = objective.least_documents
        if len(self.documents) < 2 * least:
            raise ValueError(
                f"{self.option} holds {len(self.documents)} document(s), and {objective.name} "
                f"needs {2 * least}: {least} to train on and {least} to evaluate on. Separate documents by blank "
                "lines."
            )
        share = max(validation_share, least / len(self.documents))
        parts = split_train_validation(self.documents, validation_share=share, seed=seed)
        # Written contiguously once: every dataset and count made of a selection would write it again.
        return tuple(replace(self, documents=SentenceStore(part).dataset) for part in parts)


Sources = dict[str, Source]  # by name, or one under `UNNAMED`
Documents = datasets.Dataset | Sources  # a dataset is the documents of one source without a name


def named_sources(documents: Documents) -> Sources:
    """Documents as sources."""
    return documents if isinstance(documents, dict) else {UNNAMED: Source(documents, ("en",))}


def check_languages(config: EncoderConfig, sources: Sources) -> None:
    """Raise ValueError if a model with language embeddings lacks the language of a source."""
    if "langs" not in config.extra_ids:
        return
    if UNNAMED in sources:
        raise ValueError(
            f"model: n_langs={config.n_langs}, and --corpus names no source, whose language the model needs: "
            "give NAME=PATH."
        )
    for source in sources.values():
        if unknown := set(source.languages) - set(config.lang2id or {}):
            raise ValueError(
                f"model: lang2id={config.lang2id} has no {min(unknown)!r}, the language of {source.option}: give one "
                "that it has, with --language; or, in a recipe, add it or leave out lang2id and n_langs."
            )


def corpora_of(sources: Sources) -> list[Corpus]:
    """The documents of all sources, and where they are from."""
    return [(source.documents, source.folders) for source in sources.values()]


def divided(sources: Sources, objective: Objective, validation_share: float, seed: int) -> tuple[Sources, Sources]:
    """Documents of each source to train on, and to evaluate on.

    Raises:
        ValueError: for a source of too few documents.
    """
    training, held_out = {}, {}
    for name, source in sources.items():
        training[name], held_out[name] = source.divided(objective, validation_share, seed)
    return training, held_out


def examples_of(
    name: str, source: Source, objective: Objective, max_length: int, options: Mapping[str, Any], **draws: Any
) -> EpochDataset:
    """`Source.examples`, with the source's name in errors."""
    try:
        return source.examples(objective, max_length, options, **draws)
    except ValueError as error:
        if name == UNNAMED:
            raise
        raise ValueError(f"{source.option}: {error}") from error


def mixed(
    examples: Mapping[str, EpochDataset],
    sources: Mapping[str, Source],
    sampling: Sampling,
    seed: int,
    redraw: bool = True,
) -> EpochDataset:
    """The datasets of sources with names as one, whose examples know their language; the only one without a name."""
    if UNNAMED in examples:
        return examples[UNNAMED]
    languages = {name: sources[name].languages[0] for name in examples}
    return MixedExamples(examples, sampling.weights, sampling.alpha, languages, seed=seed, redraw=redraw)


def unigrams(
    examples: RunExamples, evaluated: Any, documents: Documents, held_out: Documents, vocab_size: int
) -> tuple[float, dict[str, float]]:
    """Unigram cross-entropy in nats per held-out token: over all sources, and of each one with a name.

    A source's is under its own token frequencies. That over all is under those of the mixture of the last phase, of
    the held-out tokens that are evaluated.
    """
    sources, others = named_sources(documents), named_sources(held_out)
    counts = {name: token_counts(source.documents, vocab_size) for name, source in sources.items()}
    of_source = {name: cross_entropy(counts[name], others[name].documents) for name in sources}
    if UNNAMED in sources:
        return of_source[UNNAMED], {}
    passes = examples.phases[-1].dataset.passes
    mixture = sum(passes[name] * counts[name] for name in sources)
    nats, weights = [], []
    for name, source in others.items():
        nats.append(cross_entropy(mixture, source.documents))
        share = len(evaluated[name]) / len(evaluated[name].dataset)
        weights.append(share * len(SentenceStore(source.documents).tokens))
    return float(np.average(nats, weights=weights)), of_source


def bytes_per_token(sources: Sources, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Mean UTF-8 bytes of a token by source, of evenly spread sentences as the tokenizer decodes them.

    Sentences are the same with another tokenizer, so losses per byte can be compared where losses per token cannot.
    """
    found = {}
    for name, source in sources.items():
        store = SentenceStore(source.documents)
        spread = np.linspace(0, store.num_sentences - 1, min(store.num_sentences, DECODED_SENTENCES)).astype(int)
        bounds = zip(store.sentence_offsets[spread], store.sentence_offsets[spread + 1], strict=True)
        sentences = [store.tokens[begin:end].tolist() for begin, end in bounds]
        num_bytes = sum(len(text.encode()) for text in tokenizer.batch_decode(sentences))
        found[name] = num_bytes / sum(map(len, sentences))
    return found


def corpora_facts(documents: Documents) -> dict[str, Any]:
    """What identifies the text of a run, for `run.json`."""
    sources = named_sources(documents)
    if UNNAMED in sources:
        return {"corpus": sources[UNNAMED].documents._fingerprint}
    return {
        "corpus": {name: source.documents._fingerprint for name, source in sources.items()},
        "languages": {name: list(source.languages) for name, source in sources.items()},
    }
