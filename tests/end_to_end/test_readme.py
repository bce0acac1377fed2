"""The README says what is there: its pre-training block runs, its files exist, its first command comes early."""

import re
from pathlib import Path


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_command_comes_by_line_25():
    assert README.splitlines().index("```bash") < 25


def test_every_file_it_names_exists():
    names = re.findall(r"`((?:hf_encoders|examples|tests|model_cards)/[\w/.<>]*)`", README)
    assert len(names) > 15
    for name in names:
        pattern = name.rstrip("/").replace("<family>", "bert")
        assert (ROOT / pattern).exists(), name


def test_its_pretraining_block_trains(tmp_path, monkeypatch):
    block = next(b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "trainer.train()" in b)
    for long, short in (
        ("vocab_size=8_000", "vocab_size=200"),
        ("max_steps=500", "max_steps=2, use_cpu=True, report_to='none'"),
    ):
        assert long in block
        block = block.replace(long, short)
    monkeypatch.chdir(tmp_path)
    documents = (f"This is document {i}. It has two sentences.\nAnd one more line." for i in range(40))
    Path("sample", "text").mkdir(parents=True)
    Path("sample", "text", "library.txt").write_text("\n\n".join(documents))
    exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "bert" / "model.safetensors").exists()
