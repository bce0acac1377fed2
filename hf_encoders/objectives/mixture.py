"""Examples of several corpora in one dataset: languages, or domains, each as often as its size or a weight says.

Sources: XLM (arXiv 1901.07291, section 3.1) and XLM-R (arXiv 1911.02116, section 2), which sample languages
by their share of the text to a power below 1, so that small ones come more often; `set_sampling_probs` in
facebookresearch/XLM `xlm/utils.py`, `MultiLingualMaskedLMTask` in fairseq. Differs from them in: they draw with
replacement, so that of an example that should come three times one comes never and another eight times; here an epoch
takes whole passes over a source and a part of the next. Batches mix the sources, as in XLM-R; in XLM each has one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers.utils import logging

from hf_encoders.corpus.flat_corpus import FlatCorpus
from hf_encoders.corpus.text_files import Sampling
from hf_encoders.objectives.dataset import EpochDataset, Example
from hf_encoders.objectives.randomness import Key, RandomStream, generator
from hf_encoders.writing import text_table


logger = logging.get_logger(__name__)

# Passes over a source in an epoch of the mixture above which it is warned of; this package's choice.
MANY_PASSES = 10


class MixedExamples(EpochDataset):
    """Examples of several datasets, each as often as its size to a power, or its weight, says.

    An epoch has as many examples as the sources together, without those of share 0, or `examples_per_epoch`. A source
    that is drawn more often than it has examples is read again: the epoch takes a whole pass over it in random order,
    and then a part of the next one, where the following epoch continues. So over the run all examples of a source come
    equally often, to within one. Each pass is a new epoch of the source: its examples are sampled and masked again.

    Every choice is a function of the seed and of the source's *name* (`source_seed`): adding, removing or reordering
    sources changes no random number of the others, and two sources never share one. Pairs of sentences stay within a
    source. Examples `0, 1, 2, ...` are of the first source by name, and so on: give them in random order, as `Trainer`
    does.

    Args:
        sources (`Mapping[str, EpochDataset]`): Name -> dataset: `SentenceBlocks`, `DocumentChunks`, `ParallelPairs`.
            Their seeds are replaced.
        weights (`Mapping[str, float]`, *optional*): As in `Sampling`.
        alpha (`float`, *optional*): As in `Sampling`.
        languages (`Mapping[str, str]`, *optional*): Name of a source -> its language, which its examples carry to the
            collator unless they know it themselves; a source that is not named here has its own name.
        examples_per_epoch (`int`, *optional*): Length of the dataset.
        seed (`int`, *optional*, defaults to 0): Seed of all random choices.
        redraw (`bool`, *optional*, defaults to `True`): As in `EpochDataset`; the sources have True.

    Raises:
        ValueError: as `Sampling`; for a source of another kind, or one that would have no example in an epoch.

    Two languages of six and two blocks of one token, in equal shares. The four examples of `gsw` in an epoch are two
    passes over it; the next epoch continues with the two examples of `en` that are left, and a new pass:

    >>> from datasets import Dataset
    >>> from hf_encoders.objectives.blocks import SentenceBlocks
    >>> texts = {"en": [[[i]] for i in range(10, 16)], "gsw": [[[20]], [[21]]]}
    >>> blocks = {name: SentenceBlocks(Dataset.from_dict({"input_ids": text}), 3) for name, text in texts.items()}
    >>> mixed = MixedExamples(blocks, weights={"en": 1, "gsw": 1})
    >>> mixed.set_epoch(0)
    >>> [int(example.segments[0][0]) for example in mixed[:]]
    [11, 15, 14, 10, 21, 20, 21, 20]
    >>> mixed.set_epoch(1)
    >>> [int(example.segments[0][0]) for example in mixed[:4]]
    [12, 13, 14, 15]
    """

    def __init__(
        self,
        sources: Mapping[str, EpochDataset],
        weights: Mapping[str, float] | None = None,
        alpha: float | None = None,
        languages: Mapping[str, str] | None = None,
        examples_per_epoch: int | None = None,
        seed: int = 0,
        redraw: bool = True,
    ):
        super().__init__(seed, redraw)
        _check(sources, languages or {})
        # In the order of their names, so that another order of the same sources is the same mixture.
        self.sources = {name: sources[name].with_seed(source_seed(seed, name)) for name in sorted(sources)}
        self.names = list(self.sources)
        self.languages = {name: (languages or {}).get(name, name) for name in self.sources}
        if examples_per_epoch is not None and (not isinstance(examples_per_epoch, int) or examples_per_epoch < 1):
            raise ValueError(f"examples_per_epoch={examples_per_epoch!r} must be a whole number of at least 1.")
        self.sampling = Sampling(alpha, weights)
        self.sizes = {name: len(dataset) for name, dataset in self.sources.items()}
        self.shares = self.sampling.shares(self.sizes)
        drawn = sum(size for name, size in self.sizes.items() if self.shares[name])
        self.num_examples = drawn if examples_per_epoch is None else examples_per_epoch
        for name, share in self.shares.items():
            if 0 < share * self.num_examples < 1:
                raise ValueError(
                    f"source {name!r} has {share * self.num_examples:.2g} of the {self.num_examples:,} examples of an "
                    "epoch: raise its weight or examples_per_epoch, or leave it out."
                )
        self._opened: tuple[int, np.ndarray, np.ndarray] | None = None
        self._passes: dict[tuple[str, int], tuple[EpochDataset, np.ndarray]] = {}
        for warning in passes_warnings(self.passes):
            logger.warning_once(warning)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "_passes": {}}

    def __len__(self) -> int:
        return self.num_examples

    def facts(self) -> list[str]:
        """Return contents and options for `repr`."""
        of_sources = (f"{name}: {self.shares[name]:.1%}, {self.passes[name]:.3g} passes" for name in self.sources)
        return [f"{len(self):,} examples of {'; '.join(of_sources)}"]

    @property
    def corpora(self) -> list[FlatCorpus]:
        """The corpora of the sources, which checkpoints record."""
        return [corpus for dataset in self.sources.values() for corpus in dataset.corpora]

    @property
    def passes(self) -> dict[str, float]:
        """How often an epoch of the mixture reads each source."""
        return {name: self.shares[name] * len(self) / size for name, size in self.sizes.items()}

    def counts_before(self, epoch: int) -> np.ndarray:
        """Count the examples of each source in the epochs before one, `int64` of shape `(sources,)`.

        What the shares say, rounded by largest remainders, so that the counts of all sources are those of the epochs.
        """
        exact = np.array(list(self.shares.values())) * (len(self) * epoch)
        counts = np.floor(exact).astype(np.int64)
        missing = len(self) * epoch - int(counts.sum())
        counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
        return counts

    def example(self, index: int) -> Example:
        """Return example `index` of the current epoch, which belongs to one of the sources."""
        if self._opened is None or self._opened[0] != self.epoch:
            before, after = self.counts_before(self.epoch), self.counts_before(self.epoch + 1)
            self._opened, self._passes = (self.epoch, before, np.cumsum(after - before)), {}
        _, before, ends = self._opened
        source = int(ends.searchsorted(index, "right"))
        name = self.names[source]
        # Position in all passes over the source, one after the other.
        position = int(before[source]) + index - (int(ends[source - 1]) if source else 0)
        number, position = divmod(position, self.sizes[name])
        if (name, number) not in self._passes:
            dataset = self.sources[name].at_epoch(number)
            random = generator(Key(dataset.seed, number, 0), RandomStream.PASS_ORDER)
            self._passes[name, number] = dataset, random.permutation(self.sizes[name])
        dataset, order = self._passes[name, number]
        example = dataset.example(int(order[position]))
        if example.languages is None:
            example.languages = [self.languages[name]] * len(example.segments)
        return example


def source_seed(seed: int, name: str) -> int:
    """Return the seed of a source: a function of the mixture's seed and the source's name."""
    digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
    key = Key(seed, 0, int.from_bytes(digest, "big"))
    return int(generator(key, RandomStream.SOURCE_SEED).integers(2**63))


def passes_warnings(passes: Mapping[str, float]) -> list[str]:
    """Warn of each source that an epoch of a mixture reads very often; `passes` as in `MixedExamples`."""
    return [
        f"Source {name} is read {number:.1f} times in an epoch of the mixture: a model memorizes text that it sees so "
        "often. Raise alpha, lower its weight, or add text."
        for name, number in passes.items()
        if number > MANY_PASSES
    ]


def passes_table(phases: Sequence[tuple[MixedExamples, float]]) -> str:
    """Format shares and passes of each source in the phases of a run: mixtures of the sources, and epochs of each.

    >>> class Sized(EpochDataset):
    ...     def __init__(self, size):
    ...         super().__init__(seed=0, redraw=True)
    ...         self.size = size
    ...     def __len__(self):
    ...         return self.size
    >>> mixed = MixedExamples({"de": Sized(900), "gsw": Sized(100)}, alpha=0.5)
    >>> print(passes_table([(mixed, 4.0)]))
    source  share  passes an epoch  passes in all
    de      75.0%            0.833           3.33
    gsw     25.0%             2.50           10.0
    """
    names = phases[0][0].names
    columns = [[(f"{mixed.shares[n]:.1%}", _few_digits(mixed.passes[n])) for n in names] for mixed, _ in phases]
    is_same = all(column == columns[0] for column in columns)
    columns = columns[:1] if is_same else columns
    headings = ["share" if is_same else f"phase {number + 1}: share" for number in range(len(columns))]
    rows = [["source", *(word for heading in headings for word in (heading, "passes an epoch")), "passes in all"]]
    for i, name in enumerate(names):
        total = sum(mixture.passes[name] * epochs for mixture, epochs in phases)
        rows.append([name, *(word for column in columns for word in column[i]), _few_digits(total)])
    return text_table(rows, "<>")


def _few_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def _check(sources: Mapping[str, EpochDataset], languages: Mapping[str, str]) -> None:
    if not isinstance(sources, Mapping) or not sources:
        raise ValueError("sources: give one dataset for each name, such as {'en': SentenceBlocks(...)}.")
    for name, dataset in sources.items():
        is_dataset = isinstance(dataset, EpochDataset) and not isinstance(dataset, MixedExamples)
        if not (isinstance(name, str) and is_dataset and len(dataset)):
            raise ValueError(
                f"sources: {name!r} is a {type(dataset).__name__}: give names, each with a dataset of this package "
                "with examples, such as SentenceBlocks, DocumentChunks or ParallelPairs; not mixtures."
            )
        if not dataset.redraw:
            raise ValueError(
                f"sources: {name!r} has redraw=False, so all passes over it would have the same masks: leave it out, "
                "and give redraw=False to MixedExamples to evaluate."
            )
    for name in languages:
        if name not in sources:
            raise ValueError(f"languages: there is no source {name!r}: the sources are {', '.join(sources)}.")
