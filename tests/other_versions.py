"""Loads a checkpoint of every family where another version of transformers is installed.

    python tests/other_versions.py 4.57.6 5.14.1

Each version is installed by pip into a temporary environment, which takes everything else from this one. With those
that the code of checkpoints supports, it gives the outputs of this process; with older ones it is refused with the
remedy, and so the class of transformers gives those outputs. (`electra`: the discriminator's encoder.) Tokenizers give
the same ids; those that transformers 4 cannot read are said.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import torch
from packaging.version import Version


sys.path.insert(0, str(Path(__file__).parents[1]))

from hf_encoders.models.encoder_configuration import OLDEST_TRANSFORMERS
from tests.hub.tiny_checkpoints import FAMILIES, TEXTS, make_batch, make_model, make_tokenizer, save_checkpoint


# Whose tokenizers transformers 4 does not read: version 5 writes a list of special tokens where 4 expects a mapping
# (XLNet), and XLM's was in Python, of other files.
READ_FROM_5_ON = ("xlm", "xlnet")
# The newest huggingface_hub that transformers 4 and the first versions of 5 accept are older ones.
REQUIREMENTS = {4: ["huggingface_hub<1"], 5: ["huggingface_hub<2"]}
LOAD = """
import sys
import torch
import transformers

transformers.logging.set_verbosity_error()
folder, supported = sys.argv[1], sys.argv[2] == "True"
inputs, expected, texts, ids, tokenizer_is_read = torch.load(f"{folder}.pt")


def difference(**options):
    model = transformers.AutoModel.from_pretrained(folder, **options).eval()
    with torch.no_grad():
        found = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].bool()
    return type(model).__name__, (found - expected)[mask].abs().max().item()


def tokenizer_ids():
    try:
        return transformers.AutoTokenizer.from_pretrained(folder)(texts).input_ids
    except Exception as unreadable:  # of any kind, in versions that know less than the file has
        print(f"  tokenizer: {type(unreadable).__name__}: {str(unreadable).splitlines()[0]}")
        return "unreadable"


try:
    name, error = difference(trust_remote_code=True)
    assert supported and name.startswith("Hfe") and error < 1e-5, (name, error)
except ImportError as refused:
    said = str(refused)
    assert not supported and "needs transformers" in said and "leave out trust_remote_code" in said, said
    assert "\\n" not in said, said
name, error = difference()
assert not name.startswith("Hfe") and error < 1e-5, (name, error)
assert tokenizer_ids() == (ids if supported or tokenizer_is_read else "unreadable")
print(f"  {name}: {'with the code and without' if supported else 'without the code, refused,'} equal to {error:.0e}")
"""


def main() -> None:
    """Save, install, load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of transformers, such as 4.57.6")
    versions = parser.parse_args().versions
    with tempfile.TemporaryDirectory() as name:
        folders = []
        for family in FAMILIES:
            # transformers 4 cannot run an ALBERT with several layers in a group.
            fields = {"inner_group_num": 1} if "inner_group_num" in family.own_sizes else {}
            model, batch = make_model(family, "AutoModel", **fields).eval(), make_batch(family)
            with torch.no_grad():
                expected = model(**batch).last_hidden_state
            folders.append(save_checkpoint(model, family, Path(name) / family.name))
            tokens = list(TEXTS), make_tokenizer(family)(list(TEXTS)).input_ids, family.name not in READ_FROM_5_ON
            torch.save((dict(batch), expected, *tokens), f"{folders[-1]}.pt")
        for version in versions:
            print(f"transformers {version}", flush=True)
            python = install(version, Path(name) / version)
            supported = Version(version).release >= OLDEST_TRANSFORMERS
            for folder in folders:
                environment = os.environ | {"HF_MODULES_CACHE": f"{name}/modules-{version}", "HF_HUB_OFFLINE": "1"}
                command = [str(python), "-W", "ignore", "-c", LOAD, str(folder), str(supported)]
                subprocess.run(command, env=environment, check=True, cwd=name)


def install(version: str, folder: Path) -> Path:
    """An environment with this version before all that is installed here; the path of its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    requirements = [f"transformers=={version}", *REQUIREMENTS[Version(version).major]]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements], check=True)
    own = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    others = sysconfig.get_path("purelib")
    Path(own, "others.pth").write_text(f"import site; site.addsitedir({others!r})\n")
    return python


if __name__ == "__main__":
    main()
