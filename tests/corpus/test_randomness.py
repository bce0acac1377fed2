import ast
from pathlib import Path

import numpy as np

import hf_encoders
from hf_encoders.corpus.randomness import RandomStream, example_keys, uniforms


STREAM_SECOND = ("random_", "uniforms", "integers_below", "generator")  # functions whose second argument is a stream


def test_keys_depend_on_each_of_seed_epoch_and_example():
    keys = {int(example_keys(s, e, i)) for s in range(4) for e in range(4) for i in range(50)}
    assert len(keys) == 4 * 4 * 50


def test_random_numbers_do_not_depend_on_others_of_the_call():
    keys = example_keys(1, 2, np.arange(100))
    together = uniforms(keys[:, None], RandomStream.CHUNK_TARGET, np.arange(7))
    alone = np.array([[uniforms(key, RandomStream.CHUNK_TARGET, counter) for counter in range(7)] for key in keys])
    assert np.array_equal(together, alone)


def test_random_numbers_are_uniform_and_independent():
    """200,000 draws: mean, variance, bin counts and correlations within five standard errors."""
    keys = example_keys(0, 0, np.arange(2000))
    u = uniforms(keys[:, None], RandomStream.SEGMENT_SPLIT, np.arange(100))
    n = u.size
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    assert (abs(counts - n / 64) < 5 * np.sqrt(n / 64)).all()
    other_stream = uniforms(keys[:, None], RandomStream.NEGATIVE_PAIR, np.arange(100))
    other_epoch = uniforms(example_keys(0, 1, np.arange(2000))[:, None], RandomStream.SEGMENT_SPLIT, np.arange(100))
    for pair in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), (u, other_stream), (u, other_epoch)):
        correlation = np.corrcoef(pair[0].ravel(), pair[1].ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(pair[0].size)


def test_random_streams_differ_and_keep_their_values():
    """A changed value would change the examples of every seed."""
    assert len(RandomStream.__members__) == len(set(RandomStream))
    assert (RandomStream.CHUNK_TARGET, RandomStream.MASK_CHOICE, RandomStream.SIDE_ORDER) == (1, 16, 36)
    keys = example_keys(0, 0, np.arange(50))
    numbers = np.concatenate([uniforms(keys, stream, 0) for stream in RandomStream])
    assert len(np.unique(numbers)) == len(numbers)


def test_every_random_number_of_the_package_is_from_a_named_stream():
    """The second argument of each call is a member of `RandomStream`, or a parameter `stream`; each member is used."""
    used = set()
    for path in Path(hf_encoders.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == RandomStream.__module__
            for alias in node.names
        }
        is_here = path.stem == "randomness"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "RandomStream":
                used.add(node.attr)
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if (name in imported or is_here) and name.startswith(STREAM_SECOND):
                stream = ast.unparse(node.args[1])
                assert stream.startswith("RandomStream.") or stream == "stream", f"{path}:{node.lineno}: {stream}"
    assert used == set(RandomStream.__members__)
