"""Restricts `Trainer`'s pushes to the model's files.

`Trainer` uploads its output folder without checkpoints and names that begin with an underscore. This includes
`training_args.bin`, a pickle with `hub_token` in plain text, logs named after the machine, local paths, and any other
file of the user.
"""

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import transformers.trainer
from huggingface_hub import CommitOperationAdd, HfApi
from transformers.trainer import TRAINING_ARGS_NAME

from hf_encoders.publishing.files import GENERATOR_FOLDER, has_generator, published_files, refuse_secrets


class ModelUploads:
    """`HfApi` for `Trainer`, with an `upload_folder` restricted to the model in the folders given to `watch_pushes`.

    Args:
        api (`HfApi`): Serves every other call.
    """

    # Output folders of all trainers in this process.
    watched: set[Path] = set()

    def __init__(self, api: HfApi):
        self.api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def upload_folder(self, *, folder_path: str | Path, run_as_future: bool = False, **options: Any) -> Any:
        """As in `HfApi`, but only the model's files, in one commit; a checkpoint goes without `training_args.bin`.

        Raises:
            ValueError: With file and line, if a file holds a token or a path of this user's home folder; with
                `run_as_future`, raised by the returned future.
        """
        folder = Path(folder_path)
        try:
            if folder.absolute() in self.watched:
                names = sorted(published_files(folder))
                refuse_secrets(folder, names)
                # `upload_folder` would list the folder in the background, while old checkpoints are removed from it,
                # and fail. Nothing that `ignore_patterns` names is among the model's files.
                options.pop("ignore_patterns", None)
                options["operations"] = [CommitOperationAdd(name, folder / name) for name in names]
                return self.api.create_commit(run_as_future=run_as_future, **options)
            if folder.absolute().parent in self.watched:
                options["ignore_patterns"] = [TRAINING_ARGS_NAME]
                refuse_secrets(folder, {path.name for path in folder.glob("*.json")})
        except ValueError as error:
            if not run_as_future:
                raise
            failed: Future = Future()
            failed.set_exception(error)
            return failed
        return self.api.upload_folder(folder_path=folder_path, run_as_future=run_as_future, **options)


def copy_generator(checkpoint: Path, output_dir: Path) -> None:
    """Copy a generator, and the code of a model saved with one, to the folder that is pushed: `Trainer` does not."""
    if not has_generator(checkpoint):
        return
    for name in published_files(checkpoint):
        if name.startswith(f"{GENERATOR_FOLDER}/") or name.endswith(".py"):
            (output_dir / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint / name, output_dir / name)


def watch_pushes(output_dir: str | Path) -> None:
    """Restrict all later pushes of an output folder and its checkpoints to the model's files."""
    ModelUploads.watched.add(Path(output_dir).absolute())
    # `Trainer` has no option for the files to push.
    if not isinstance(transformers.trainer.hf_api(), ModelUploads):
        client = transformers.trainer.hf_api
        transformers.trainer.hf_api = lambda: ModelUploads(client())
