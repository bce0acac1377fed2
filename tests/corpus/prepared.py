"""Texts that corpora are prepared of, and how to look at what became of them."""

import random

import datasets


def texts(num_documents: int, seed: int = 0) -> list[str]:
    """Documents of several lines, all different."""
    generator = random.Random(seed)

    def sentence() -> str:
        return " ".join(f"w{generator.randrange(5, 60)}" for _ in range(generator.randrange(1, 9))) + " ."

    lines = [[sentence() + " W " + sentence() for _ in range(generator.randrange(1, 5))] for _ in range(num_documents)]
    return [f"w{5 + i % 50} w{5 + i // 50} .\n" + "\n".join(document) for i, document in enumerate(lines)]


def write_text(path, documents: list[str]):
    path.write_bytes("\r\n\n".join(documents).encode())
    return path


def rows(directory) -> list[list[list[int]]]:
    return datasets.load_from_disk(directory)["input_ids"][:]


def columns(directory) -> dict[str, list]:
    return datasets.load_from_disk(directory).to_dict()


class Killed(Exception):
    """In place of a kill, for a test within this process; `tests/commands/test_corpus.py` has a real one."""


def killed(*_, **__):
    raise Killed
