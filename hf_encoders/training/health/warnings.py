"""What in a run's log means that it does not learn, or not as fast as it could: all thresholds, in one place.

A warning looks at nothing but the log, so it can be asked of any run that `HealthCallback` watched, also of one that
has ended. Each is given once a run: it stands in the entry of the log with which it came up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hf_encoders.records.run_files import WARNINGS_FIELD


# The loss is at the unigram cross-entropy if it differs from it by at most this share of it, and falls if it has lost
# this share from the earlier to the later half of the logs.
PLATEAU_MARGIN = 0.03
PLATEAU_FALL = 0.01
# It has risen if it is this share above the lowest mean of half as many logs before: more than noise, also where a log
# is of a few hundred tokens.
RISE = 0.05
PLATEAU_LOGS = 10  # so many logs after warm-up
PLATEAU_SHARE = 0.05  # and so much of the run after warm-up: a run that logs every step is not judged after ten

# Pairs are guessed if accuracy is at most so much above the share of the label that is more frequent. Three points are
# one standard error of ten logs of 28 pairs each; with fewer pairs noise may hide that they are guessed.
EVEN, CHANCE_MARGIN = 0.5, 0.03
CHANCE_LOGS = 20
CHANCE_SHARE = 0.1  # pairs are learned later than frequencies are

# Hardly any example has two sentences, or a label that lengths do not tell: the pair head learns from almost nothing.
FEW_PAIRS, FEW_PAIRS_LOGS = 0.02, 3

# A tenth is what a faster loader could win; the first steps wait for workers that have just started.
WAIT_SHARE = 0.1
WAIT_LOGS = 3
WAIT_FIRST_STEP = 20


@dataclass(frozen=True)
class WarningContext:
    """What a log does not say by itself.

    Args:
        warmup_steps, max_steps (`int`): of the schedule, optimizer steps.
        unigram_cross_entropy (`float`, *optional*): nats a token; without, the plateau is not looked for.
        num_workers (`int`): `dataloader_num_workers`.
    """

    warmup_steps: int
    max_steps: int
    unigram_cross_entropy: float | None = None
    num_workers: int = 0


def new_warnings(log_history: Sequence[dict[str, Any]], context: WarningContext) -> dict[str, str]:
    """Warnings that the last entry of a log gives rise to, `{name: message}`, without those given before.

    Args:
        log_history: `trainer.state.log_history`.
        context (`WarningContext`): the schedule.

    >>> log = [{"step": step, "loss": 7.1, "mlm_loss": 7.1} for step in range(10, 301, 10)]
    >>> list(new_warnings(log, WarningContext(warmup_steps=100, max_steps=1000, unigram_cross_entropy=7.0)))
    ['unigram_plateau']
    """
    given = {name for entry in log_history for name in entry.get(WARNINGS_FIELD, ())}
    entries = [entry for entry in log_history if "loss" in entry]
    found = {}
    for judge in (unigram_plateau, above_unigram, rising_loss, few_pairs, pairs_at_chance, data_starvation):
        if judge.__name__ not in given and (message := judge(entries, context)):
            found[judge.__name__] = message
    return found


def unigram_plateau(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """The MLM loss is where a model is that knows how frequent tokens are and nothing else."""
    loss = stalled_loss(entries, context)
    if loss is None or loss.has_risen or loss.lowest > (1 + PLATEAU_MARGIN) * context.unigram_cross_entropy:
        return None
    return (
        f"{loss} sits at the unigram plateau ({context.unigram_cross_entropy:.3f} nats a token): the model has "
        "learned which tokens are frequent, and does not look at the context. More steps may be all it needs; else "
        "begin with shorter examples (a first phase), raise learning_rate (or lower it, if grad_norm is large), "
        "initializer_range (0.05 for widths below 512) or the batch."
    )


def above_unigram(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """The MLM loss is that of a model that does not even know how frequent tokens are, and stays there."""
    loss = stalled_loss(entries, context)
    if loss is None or loss.has_risen or loss.lowest <= (1 + PLATEAU_MARGIN) * context.unigram_cross_entropy:
        return None
    return (
        f"{loss} does not fall, and is above the unigram cross-entropy ({context.unigram_cross_entropy:.3f} nats a "
        f"token): after {entries[-1]['step']} steps the model has not learned which tokens are frequent. More steps "
        "may be all it needs; else raise learning_rate (or lower it, if grad_norm is large), shorten the warm-up "
        f"({context.warmup_steps} of {context.max_steps} steps), or look at the batches: labels are the ids of the "
        "tokenizer that the corpus was made with."
    )


def rising_loss(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """The MLM loss went up again, to where nothing is known of the context."""
    loss = stalled_loss(entries, context)
    if loss is None or not loss.has_risen:
        return None
    return (
        f"{loss} has risen from {loss.lowest:.3f}, and is not below the unigram cross-entropy "
        f"({context.unigram_cross_entropy:.3f} nats a token): the run diverges. Go back to a checkpoint before, and "
        "lower learning_rate, lengthen the warm-up, or clip gradients at less (max_grad_norm)."
    )


@dataclass(frozen=True)
class StalledLoss:
    """An MLM loss that is not below the unigram cross-entropy and does not fall; in words, `str` of it.

    Args:
        value (`float`): mean of the later half of the last logs, in nats a token.
        lowest (`float`): lowest mean of as many logs, from the first of the run on.
        logs (`int`): how many logs the last ones are.
    """

    value: float
    lowest: float
    logs: int

    @property
    def has_risen(self) -> bool:
        """Whether it was clearly lower before."""
        return self.value > (1 + RISE) * self.lowest

    def __str__(self) -> str:
        return f"mlm_loss {self.value:.3f} over the last {self.logs // 2} logs"


def stalled_loss(entries: list[dict[str, Any]], context: WarningContext) -> StalledLoss | None:
    """The MLM loss of the last logs after warm-up, where it is not below the unigram cross-entropy and does not fall.

    None also before there are enough logs, and where the cross-entropy is not known.
    """
    unigram = context.unigram_cross_entropy
    losses = values_after_warmup(entries, "mlm_loss", PLATEAU_LOGS, PLATEAU_SHARE, context)
    if unigram is None or not losses:
        return None
    earlier, later = halves(losses)
    if later < max((1 - PLATEAU_MARGIN) * unigram, (1 - PLATEAU_FALL) * earlier):
        return None
    whole, size = [entry["mlm_loss"] for entry in entries if "mlm_loss" in entry], len(losses) // 2
    lowest = min(fmean(whole[i : i + size]) for i in range(len(whole) - size + 1))
    return StalledLoss(later, lowest, len(losses))


def few_pairs(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """Hardly any example has a pair label, so that MLM is trained almost alone."""
    shares = [entry["pair_share"] for entry in entries if "pair_share" in entry][-FEW_PAIRS_LOGS:]
    if len(shares) < FEW_PAIRS_LOGS or max(shares) > FEW_PAIRS:
        return None
    return (
        f"pair_share {fmean(shares):.1%}: hardly any example has a sentence-pair label, and the pair head learns "
        "nothing. Raise max_length if an example has room for one sentence only; give a text of several documents of "
        "several sentences, none of which is most of it; or train with mlm alone."
    )


def pairs_at_chance(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """The classes of sentence pairs are guessed: no better than to say the same one of all."""
    accuracies = values_after_warmup(entries, "pair_accuracy", CHANCE_LOGS, CHANCE_SHARE, context)
    if not accuracies:
        return None
    # A log without the share is of a run before it was logged.
    shares = [entry.get("pair_label_1_share", EVEN) for entry in entries if "pair_accuracy" in entry][-CHANCE_LOGS:]
    # Of all these logs: which label is the more frequent one of a few pairs is noise.
    if fmean(shares) < EVEN:
        shares = [1 - share for share in shares]
    if any(a > chance + CHANCE_MARGIN for a, chance in zip(halves(accuracies), halves(shares), strict=True)):
        return None
    return (
        f"pair_accuracy {fmean(accuracies):.3f} over the last {len(accuracies)} logs is chance: {fmean(shares):.3f} "
        "is what one gets who says the more frequent label of every pair. Sentence pairs are guessed. Often they are "
        "learned only after mlm_loss has left its plateau, so give it more steps; else look at the corpus, whose "
        "documents must be longer than a sentence, in their order and apart from each other (hf-encoders corpus "
        "reports it), or raise learning_rate or the batch."
    )


def data_starvation(entries: list[dict[str, Any]], context: WarningContext) -> str | None:
    """Steps wait for their batches."""
    last = [entry for entry in entries if entry["step"] >= WAIT_FIRST_STEP][-WAIT_LOGS:]
    shares = [entry.get("data_wait_share", 0.0) for entry in last]
    if len(shares) < WAIT_LOGS or min(shares) <= WAIT_SHARE:
        return None
    return (
        f"data_wait_share: {fmean(shares):.0%} of the time of the last {len(shares)} logs went into waiting for data. "
        f"Raise dataloader_num_workers (now {context.num_workers}), up to the CPU cores that are free."
    )


def values_after_warmup(
    entries: list[dict[str, Any]], name: str, number: int, share: float, context: WarningContext
) -> list[float]:
    """The last `number` values of a figure after warm-up; none before there are as many, over `share` of the run."""
    later = [entry for entry in entries if entry["step"] > context.warmup_steps and name in entry]
    if len(later) < number or later[-1]["step"] - context.warmup_steps < share * context.max_steps:
        return []
    return [entry[name] for entry in later[-number:]]


def halves(values: list[float]) -> tuple[float, float]:
    """Means of the earlier and the later half: noise of single logs is gone, and a trend would show."""
    middle = len(values) // 2
    return fmean(values[:middle]), fmean(values[middle:])
