import numpy as np

from hf_encoders.data.randomness import example_keys, uniforms


def test_keys_depend_on_each_of_seed_epoch_and_example():
    keys = {int(example_keys(s, e, i)) for s in range(4) for e in range(4) for i in range(50)}
    assert len(keys) == 4 * 4 * 50


def test_draws_do_not_depend_on_what_is_drawn_beside_them():
    keys = example_keys(1, 2, np.arange(100))
    together = uniforms(keys[:, None], 3, np.arange(7))
    alone = np.array([[uniforms(key, 3, counter) for counter in range(7)] for key in keys])
    assert np.array_equal(together, alone)


def test_draws_are_uniform_and_independent():
    """200,000 draws: mean, variance, bin counts and correlations within five standard errors."""
    keys = example_keys(0, 0, np.arange(2000))
    u = uniforms(keys[:, None], 1, np.arange(100))
    n = u.size
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    assert (abs(counts - n / 64) < 5 * np.sqrt(n / 64)).all()
    other_stream = uniforms(keys[:, None], 2, np.arange(100))
    other_epoch = uniforms(example_keys(0, 1, np.arange(2000))[:, None], 1, np.arange(100))
    for pair in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), (u, other_stream), (u, other_epoch)):
        correlation = np.corrcoef(pair[0].ravel(), pair[1].ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(pair[0].size)
