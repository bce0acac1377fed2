"""What `Trainer`'s pushes may send: the model, and nothing else of the output folder.

`Trainer` uploads its whole output folder but checkpoints and names with an underscore: with it go `training_args.bin`,
a pickle with `hub_token` in plain text, logs named after the machine, notes of the run with local paths, and whatever
the user keeps there.
"""

import glob
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import transformers.trainer
from huggingface_hub import HfApi
from transformers.trainer import TRAINING_ARGS_NAME

from hf_encoders.saved_files import published_files, secrets_of_files


class ModelUploads:
    """The Hub's client for `Trainer`, which holds back what is not the model's in the folders given to `watch_pushes`.

    Args:
        api (`HfApi`): does the work. All that is not `upload_folder` is its own.
    """

    # Output folders, of all trainers of this process.
    watched: set[Path] = set()

    def __init__(self, api: HfApi):
        self.api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    def upload_folder(self, *, folder_path: str | Path, run_as_future: bool = False, **options: Any) -> Any:
        """As in `HfApi`, of the model's files alone; of a checkpoint, without the pickle of the arguments.

        Raises:
            ValueError: naming file and line, if one of them holds what looks like a token, or a path of this user's
                home; in the background, the returned job does.
        """
        folder = Path(folder_path)
        try:
            if folder.absolute() in self.watched:
                names = published_files(folder)
                options["allow_patterns"] = [glob.escape(name) for name in sorted(names)]
                check_upload(folder, names)
            elif folder.absolute().parent in self.watched:
                options["ignore_patterns"] = [TRAINING_ARGS_NAME]
                check_upload(folder, {path.name for path in folder.glob("*.json")})
        except ValueError as error:
            if not run_as_future:
                raise
            failed: Future = Future()
            failed.set_exception(error)
            return failed
        return self.api.upload_folder(folder_path=folder_path, run_as_future=run_as_future, **options)


def check_upload(folder: Path, names: set[str]) -> None:
    """Refuse files that hold a secret.

    Raises:
        ValueError: naming file and line.
    """
    if found := [leak.text for leak in secrets_of_files(folder, names) if leak.is_error]:
        raise ValueError(f"{folder} was not pushed: {'; '.join(found)}: take it out, and push again.")


def watch_pushes(output_dir: str | Path) -> None:
    """Hold back, from now on, what is not the model's in pushes of an output folder and its checkpoints."""
    ModelUploads.watched.add(Path(output_dir).absolute())
    # `Trainer` has no other way to say which files go.
    if not isinstance(transformers.trainer.hf_api(), ModelUploads):
        client = transformers.trainer.hf_api
        transformers.trainer.hf_api = lambda: ModelUploads(client())
