import ast
from pathlib import Path

import numpy as np

import hf_encoders
from hf_encoders.objectives.randomness import Key, RandomStream, generator


def test_random_numbers_depend_on_each_of_seed_epoch_example_and_stream():
    first = {
        generator(Key(seed, epoch, example), stream).random()
        for seed in range(4)
        for epoch in range(4)
        for example in range(50)
        for stream in RandomStream
    }
    assert len(first) == 4 * 4 * 50 * len(RandomStream)


def test_random_numbers_are_uniform_and_independent():
    """200,000 draws: mean, bin counts and correlations within five standard errors."""

    def draws(epoch=0, stream=RandomStream.MASK_CHOICE):
        return np.stack([generator(Key(0, epoch, example), stream).random(100) for example in range(2000)])

    u = draws()
    assert abs(u.mean() - 0.5) < 5 * np.sqrt(1 / 12 / u.size)
    counts, _ = np.histogram(u, bins=64, range=(0, 1))
    assert (abs(counts - u.size / 64) < 5 * np.sqrt(u.size / 64)).all()
    others = draws(stream=RandomStream.REPLACEMENT), draws(epoch=1)
    for pair in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), *((u, other) for other in others)):
        correlation = np.corrcoef(pair[0].ravel(), pair[1].ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(pair[0].size)


def test_random_streams_differ_and_keep_their_values():
    """A changed value would change the examples of every seed."""
    assert len(RandomStream.__members__) == len(set(RandomStream))
    assert (RandomStream.MASK_CHOICE, RandomStream.SIDE_ORDER, RandomStream.CHUNKS) == (16, 36, 43)


def test_every_random_number_of_the_package_is_from_a_named_stream():
    """Each call of `generator` names a member of `RandomStream`, and each member is used."""
    used = set()
    for path in Path(hf_encoders.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "RandomStream":
                used.add(node.attr)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "generator":
                stream = ast.unparse(node.args[1])
                assert stream.startswith("RandomStream."), f"{path}:{node.lineno}: {stream}"
    assert used == set(RandomStream.__members__)
