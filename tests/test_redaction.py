"""What may be published of a command line, of arguments and of texts, and what is found in files."""

import json
from pathlib import Path

import pytest

from hf_encoders.data.tokenizer_training import train_tokenizer
from hf_encoders.publishing.saved_files import secrets_of_files
from hf_encoders.redaction import REDACTED, homes_in, published, published_command, secrets_in


# Made up, in the forms that services give theirs; put together here so that no scanner takes this file for a leak.
TOKENS = {
    "Hugging Face": "hf_" + "QweRtyUiop1234567890",
    "Hugging Face, short": "hf_" + "Abc12345",
    "Hugging Face organisation": "api_org_" + "QweRtyUiopAsdfGhjklZx",
    "GitHub": "ghp_" + "0123456789abcdefABCDEF0123456789abcd",
    "GitHub, fine-grained": "github_pat_" + "11ABCDEFG0_abcdefghijklmnopqrstuv",
    "GitLab": "glpat-" + "abcdEFGH1234ijklMNOP",
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "OpenAI": "sk-" + "proj-abcdEFGH1234ijklMNOP5678",
    "Google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "Slack": "xoxb-" + "123456789012-abcdefghij",
    "JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
    "URL": "https://bob:" + "pa55@host/corpus",
}


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node17.acme.example")


@pytest.mark.parametrize("kind", TOKENS)
def test_a_token_is_known_by_its_form_wherever_it_stands(kind):
    token = TOKENS[kind]
    secret = token.partition("://")[2].partition("@")[0] or token
    for text in (token, f"run with {token}, then", f'{{"note": "{token}"}}', f"--note={token}"):
        assert secret not in published(text) and REDACTED in published(text)
        assert secret not in published_command(["pretrain", text])
        ((line, what),) = secrets_in(f"first\n{text}\n")
        assert line == 2 and secret not in what


@pytest.mark.parametrize(
    "words",
    [
        ["--hub_token", "x"], ["--hub-token", "x"], ["--hub_token=x"], ["--trainer", "a=1", "hub_token=x"],
        ["--hub_token", "x="], ["--api_key", "x"], ["--password", "x"], ["--wandb-api-key=x"], ["--auth-token", "x"],
        ["--fsdp_config", '{"deep": {"secret": "x"}}'], ["https://host/corpus?access_token=x&page=2"],
        ["https://x@host/y"], ["--clientSecret", "x"], ["HF_TOKEN=x"], ["--note", "token=x"],
    ],
)  # fmt: skip
def test_a_value_is_kept_back_for_its_name(words):
    seen = published_command(["pretrain", *words])
    assert REDACTED in seen and "x" not in seen.replace("fsdp_config", "").replace(REDACTED, "")
    assert published_command(seen) == seen


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("/home/alice/acme/corpus", "corpus"), ("/data/acme/corpus/", "corpus"), ("~/acme/text.txt", "text.txt"),
        ("~bob/acme/text.txt", "text.txt"), ("file:///data/acme/text.txt", "text.txt"), ("../acme/text", "text"),
        ("a/../../acme/text", "text"), ("s3://acme/text", "text"), ("C:\\Users\\bob\\text.txt", "text.txt"),
        ("\\\\server\\acme\\text.txt", "text.txt"), ("/data/acme inc/my text.txt", "'my text.txt'"),
        ("--output=/data/acme/run", "--output=run"), ("output_dir=/data/acme/run", "output_dir=run"),
        ("/home/alice", "folder"), ("~", "folder"), ("/", "/"), ("alice/run", "run"), ("scratch/alice/run", "run"),
        ("node17.acme.example", REDACTED), ("alice", REDACTED),
        # These say nothing of the machine.
        ("runs/model", "runs/model"), ("me/encoder", "me/encoder"), ("1e-4", "1e-4"), ("https://host/a/b",) * 2,
        ("--average_tokens_across_devices", "--average_tokens_across_devices"), ("steps=10", "steps=10"),
        ("lr_scheduler_type=cosine", "lr_scheduler_type=cosine"), ("--hub_token", "--hub_token"),
    ],
)  # fmt: skip
def test_a_path_is_its_last_part(word, seen):
    assert published_command(["pretrain", word]) == f"pretrain {seen}"
    assert published_command(f"pretrain {seen}") == f"pretrain {seen}"


def test_a_path_inside_of_a_text_is_its_last_part():
    assert published("from /home/alice/acme/a.txt, and (~/b/c.txt); 9 tokens /s, and/or https://host/a/b") == (
        "from a.txt, and (c.txt); 9 tokens /s, and/or https://host/a/b"
    )
    assert published("see ../../acme/b.txt.") == "see b.txt."
    assert published({"data": [Path("/data/acme/x"), 3, None, True]}) == {"data": ["x", 3, None, True]}


def test_fields_with_secret_names_and_others_like_them():
    given = {"hub_token": "x", "push_to_hub_token": None, "mask_token": "[MASK]", "num_input_tokens_seen": "all",
             "label_key": "label", "api_key": "x", "tokens": 3, "bf16": True}  # fmt: skip
    assert published(given) == {**given, "hub_token": REDACTED, "api_key": REDACTED}


def test_the_files_of_a_model_hold_no_false_alarm(tmp_path):
    """The package's own code, and a tokenizer whose special tokens are `..._token`."""
    from hf_encoders import models
    from hf_encoders.models.configuration_bert import HfeBertConfig

    text = ["The key of the api is a secret token: nobody has the password 12345."] * 40
    train_tokenizer(text, HfeBertConfig, 120, 32).save_pretrained(tmp_path)
    assert list(secrets_of_files(tmp_path, {path.name for path in tmp_path.iterdir()})) == []
    folder = Path(models.__file__).parent
    assert list(secrets_of_files(folder, {path.name for path in folder.glob("*.py")})) == []


def test_values_that_look_random_are_found_by_the_name_before_them():
    random = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"
    for text in (f"wandb_api_key: {random}", json.dumps({"secret": random}), f"--hub_token {random}"):
        ((_, what),) = secrets_in(text)
        assert random not in what and "40 characters" in what
    # A commit is none.
    assert list(secrets_in(f"revision: {random}")) == []


def test_a_home_at_the_root_is_no_part_of_other_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/root")
    assert list(homes_in("/data/root/x\n/root/x")) == [(2, "/root")] and published("/root") == "folder"
    monkeypatch.setenv("HOME", "/")
    assert list(homes_in("https://host//x")) == []


def test_home_folders_are_found():
    text = "a\n/home/alice/x and /home/alice/y\n/Users/bob/z\nC:\\Users\\eve\\z"
    assert list(homes_in(text)) == [(2, "/home/alice"), (3, "/Users/bob"), (4, "C:\\Users\\eve")]
