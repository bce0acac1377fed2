import numpy as np
import pytest

from hf_encoders.data.masking import IGNORED, MaskingRule, mask_tokens
from hf_encoders.data.randomness import example_keys


MASK = 4
RULE = MaskingRule(0.15, 0.8, 0.1, MASK, replacement_ids=np.arange(5, 1000), special_ids=np.array([0, 1, 2, 4]))


def batch(lengths, epoch=0, seed=0):
    ids = np.random.default_rng(0).integers(5, 1000, sum(lengths))
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        ids[start], ids[start + length - 1] = 1, 2
    return ids, np.array(lengths), example_keys(seed, epoch, np.arange(len(lengths)))


def test_labels_are_the_original_ids_and_the_rest_stays():
    ids, lengths, keys = batch([9, 30, 4, 128])
    masked, labels = mask_tokens(ids, lengths, keys, RULE)
    predicted = labels != IGNORED
    assert np.array_equal(labels[predicted], ids[predicted])
    assert np.array_equal(masked[~predicted], ids[~predicted])
    assert not np.isin(ids[predicted], [0, 1, 2, 4]).any()


def test_every_example_predicts_its_share_rounded_up_or_down_and_at_least_one_token():
    lengths = [3, 4, 9, 42, 102, 128] * 50
    ids, lengths, keys = batch(lengths)
    _, labels = mask_tokens(ids, lengths, keys, RULE)
    for row, length in zip(np.split(labels, np.cumsum(lengths)[:-1]), lengths, strict=True):
        share = (length - 2) * 0.15
        assert max(1, np.floor(share)) <= (row != IGNORED).sum() <= max(1, np.ceil(share))


def test_shares_of_masked_random_and_kept_tokens():
    """About 60,000 predictions; each share within five standard errors."""
    ids, lengths, keys = batch([402] * 1000)
    masked, labels = mask_tokens(ids, lengths, keys, RULE)
    predicted = labels != IGNORED
    n = predicted.sum()
    assert abs(n / (400 * 1000) - 0.15) < 5 * np.sqrt(0.25 / 1000) / 400
    is_mask = (masked == MASK)[predicted].mean()
    kept = (masked == ids)[predicted].mean()
    for share, expected in ((is_mask, 0.8), (kept, 0.1 + 0.1 / 995), (1 - is_mask - kept, 0.1)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)
    # Every position is as likely as any other.
    counts = predicted.reshape(1000, 402)[:, 1:-1].sum(axis=0)
    assert abs(counts - 150).max() < 5 * np.sqrt(1000 * 0.15 * 0.85)


def test_random_tokens_are_never_special():
    ids, lengths, keys = batch([402] * 50)
    masked, labels = mask_tokens(ids, lengths, keys, RULE._replace(random_replace_probability=0.2))
    predicted = labels != IGNORED
    assert not np.isin(masked[predicted], [0, 1, 2]).any()


def test_masks_do_not_depend_on_the_batch_but_on_the_epoch():
    ids, lengths, keys = batch([50, 60, 70])
    _, together = mask_tokens(ids, lengths, keys, RULE)
    _, alone = mask_tokens(ids[50:110], lengths[1:2], keys[1:2], RULE)
    assert np.array_equal(together[50:110], alone)
    _, next_epoch = mask_tokens(*batch([50, 60, 70], epoch=1), RULE)
    assert not np.array_equal(together, next_epoch)


@pytest.mark.parametrize("ids", [[1, 2], [0, 0, 0]])
def test_an_example_of_special_tokens_alone_predicts_nothing(ids):
    masked, labels = mask_tokens(np.array(ids), np.array([len(ids)]), example_keys(0, 0, [0]), RULE)
    assert masked.tolist() == ids and (labels == IGNORED).all()
