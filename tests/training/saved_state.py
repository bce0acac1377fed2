"""What is asked of a run's folder after a fault."""

from pathlib import Path

from safetensors.numpy import load_file

from hf_encoders import newest_good_checkpoint
from hf_encoders.training.checkpoints import FILE_LIST, checksum, problem_of_checkpoint
from tests import processes
from tests.training import tiny_run


# These two have the name of the output folder in them, and this one seconds.
OTHERS_IN_EACH_RUN = ("training_args.bin", FILE_LIST, "trainer_state.json")


def contents(folder: Path) -> dict[str, str]:
    """Checksum of every file, but for those that are not the same in any two runs."""
    return {path.name: checksum(path) for path in folder.rglob("*") if path.name not in OTHERS_IN_EACH_RUN}


def is_untouched(run: Path, untouched: Path, steps: tuple[int, ...]) -> bool:
    """Whether these checkpoints are whole, and those of the run that nothing happened to, byte for byte."""
    names = [f"checkpoint-{step}" for step in steps]
    assert [problem_of_checkpoint(run / name) for name in names] == [None] * len(names)
    return all(contents(run / name) == contents(untouched / name) for name in names)


def good_steps(run: Path) -> list[int]:
    """Steps of the folders that anybody takes for checkpoints."""
    return sorted(int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*"))


def newest(run: Path) -> tuple[str | None, list[str]]:
    """Name of the newest good checkpoint, and what was said."""
    said = []
    found = newest_good_checkpoint(run, log=said.append)
    return found and found.name, said


def resumed(run: Path, **settings) -> processes.Ended:
    """The run taken up again."""
    return processes.run(tiny_run.train, run, True, **settings)


def is_as_if_never_stopped(run: Path, untouched: Path) -> bool:
    """Whether the parameters after the last step are those of the run that nothing happened to, bit for bit."""
    one, other = (load_file(folder / "checkpoint-8" / "model.safetensors") for folder in (run, untouched))
    assert one.keys() == other.keys()
    optimizers = [checksum(folder / "checkpoint-8" / "optimizer.pt") for folder in (run, untouched)]
    return all((one[name] == other[name]).all() for name in one) and optimizers[0] == optimizers[1]
