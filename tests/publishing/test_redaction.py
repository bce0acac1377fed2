"""What may be published of a command line, of arguments and of texts, and what is found in files."""

import json
import shlex
from pathlib import Path

import pytest

from hf_encoders.corpus.tokenizer_training import train_tokenizer
from hf_encoders.publishing.files import secrets_of_files
from hf_encoders.publishing.secrets import REDACTED, homes_in, published, published_command, secrets_in


# Made up, in the forms that services give theirs; put together here so that no scanner takes this file for a leak.
TOKENS = {
    "Hugging Face": "hf_" + "QweRtyUiop" * 3 + "AsDf",
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
    "URL, a slash in the password": "https://bob:" + "pa/55@host/corpus",
    "NVIDIA": "nvapi-" + "a1B2c3D4e5F6g7H8i9J0k1L2-m3N4",
    "xAI": "xai-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4",
    "Perplexity": "pplx-" + "a1b2c3d4e5f6a7b8c9d0a1b2c3d4",
    "SendGrid": "SG." + "a1B2c3D4e5F6g7H8i9J0k1.L2m3N4o5P6q7R8s9T0u1V2w3X4y5",
    "Docker": "dckr_pat_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N",
    "Vault": "hvs." + "CAESIa1B2c3D4e5F6g7H8i9J0",
    "Shopify": "shpat_" + "0123456789abcdef" * 2,
    "Linear": "lin_api_" + "a1B2c3D4e5" * 4,
    "Notion": "ntn_" + "a1B2c3D4e5" * 4,
    "Figma": "figd_" + "a1B2c3D4e5" * 4,
    "Figma, with hyphens": "figd_" + "a1B2-c3D4_" * 4,
    "Together": "tgp_v1_" + "a1B2c3D4e5" * 4,
    "Together, with hyphens": "tgp_v1_" + "a1B2-c3D4_" * 4,
    "Stripe": "sk_live_" + "abCDefGHijKLmnOPqrSTuvWX",
    "Slack app": "xapp-" + "1-A012B345C-6789012345-0a1b2c3d",
    "Telegram": "1234567890:" + "AAa1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q",
    "Pinecone": "pcsk_" + "a1B2c_" + "a1B2c3D4e5" * 6,
    "Tavily": "tvly-" + "dev-a1B2c3D4e5F6g7H8i9J0",
    "LangSmith": "lsv2_pt_" + "0123456789abcdef" * 2 + "_0123456789",
    "Langfuse": "sk-lf-" + "01234567-89ab-cdef-0123-456789abcdef",
    "RunPod": "rpa_" + "A1B2C3D4E5" * 4,
    "Fireworks": "fw_" + "a1B2c3D4e5F6g7H8i9J0k1L2",
    "Cerebras": "csk-" + "a1b2c3d4e5" * 4,
    "Supabase": "sbp_" + "0123456789abcdef" * 2 + "01234567",
    "PlanetScale": "pscale_tkn_" + "a1B2-c3D4_e5F6-g7H8_i9J0-k1L2",
    "Mailgun": "key-" + "0123456789abcdef" * 2,
    "Twilio": "SK" + "0123456789abcdef" * 2,
    "age": "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN" * 2,
}


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node17.acme.example")


# Text, and the secret in it.
WITHIN = [
    *((token, token.partition("://")[2].partition("@")[0] or token) for token in TOKENS.values()),
    (f"my_{TOKENS['Hugging Face']}", TOKENS["Hugging Face"]),
    (f"x%3D{TOKENS['Hugging Face']}", TOKENS["Hugging Face"]),
    (f"https://bob:{TOKENS['Hugging Face']}@host/x", TOKENS["Hugging Face"]),
    ("https://hooks.slack.com/" + "services/T012AB345/B678CD901/a1B2c3D4e5F6", "a1B2c3D4e5F6"),
    ("https://acme.blob.example/x?sv=2022-11-02&sig=" + "a1B2c3%2Fd4%3D", "a1B2c3%2Fd4%3D"),
    ("MY_TOKEN=" + "abcd:a1B2c3D4e5F6g7H8", "a1B2c3D4e5F6g7H8"),
    ("Authorization: Basic " + "Ym9iOnBhNTU=", "Ym9iOnBhNTU="),
    ("Authorization: Bearer " + "a1B2c3D4e5F6g7H8i9J0", "a1B2c3D4e5F6g7H8i9J0"),
    ("aws_secret_access_key = " + "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
]


@pytest.mark.parametrize(("text", "secret"), WITHIN)
def test_a_secret_is_known_by_its_form_wherever_it_stands(text, secret):
    for line in (text, f"run with {text}, then", f'{{"note": "{text}"}}', f"--note={text}"):
        assert secret not in published(line) and REDACTED in published(line)
        assert secret not in published_command(["pretrain", line])
        assert secret not in json.dumps(published({line: [line]}))
        ((number, what),) = secrets_in(f"first\n{line}\n")
        assert number == 2 and secret not in what


NAMES_AND_LABELS = [
    "/r/science/x", "hf_Wikipedia1", "新闻 /体育/足球", "News w/ and/or /r/science tags", "tokens /s/core",
    "w/o /pre/train", "ftp://ftp.ncbi.nlm.nih.gov/pubmed", "a.org/c?key=val", "https://a.org/c?key=val",
    "https://a.org/home/about/us", "https://a.org:8080/b/@c", "me/hf_bert2base", "hf_encoders2024",
    "sk-learn-TfidfVectorizer-1234567890", "sk-Slovenia-newspaper-corpus-2019", "xai-explainability-corpus-2019",
    "pypi-package-descriptions-2024", "primary-key: document-id-2019-0001", "Authorization: basic understanding",
    "fw_regularization_strength_of_2024", "rpa_process-automation-2024", "weights-9f86d081884c7d659a2feaa0c55a",
    "csk-language-corpus-2019-12", "SKIPGRAM-2019", "0123456789: AAAI-20", "sha256-9f86d081884c7d659a2feaa0c55a",
    "bearer of-the-old-tradition", "see ../notes and ~/x",
    "sk_test_sentences.txt", "sbp_prediction_model", "runs/sbp_measurements_v2", "SG.engineering.docs",
    "hvs.something_else", "ghs_hazard_labels", "gho_measurements_x", "pcsk_inhibitor_trials",
    "figd_figure_descriptions", "sk=data/sk_test_sentences.txt", "wandb_v1_results_of_today", "rk_live_recordings",
    "lin_api_descriptions.jsonl", "github_pat_guidelines.md", "lsv2_pt_translations_2024", "tvly-search-results",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMES_AND_LABELS)
def test_names_and_labels_of_the_user_stay(text):
    assert published({"labels": [text], text: 1, "dataset": text}) == {"labels": [text], text: 1, "dataset": text}
    for option in ("--data-name", "--corpus-name", "--run_name", "--class-weights", "--text-column"):
        assert published_command(["x", option, text]) == shlex.join(["x", option, text])
    assert list(secrets_in(text)) == []


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("--corpus clients/acme/t.txt --corpus-name Mine", "--corpus Mine --corpus-name Mine"),
        ("--corpus a/acme-client b.txt --corpus-n 'My own' r.yaml", "--corpus 'My own' --corpus-n 'My own' r.yaml"),
        ("--corpus=acme/t.txt r.yaml --corpus-name=Mine", "--corpus=Mine r.yaml --corpus-name=Mine"),
        ("--train acme/t.csv --validation acme/v.csv --test=acme/x.csv --data-name /r/x",
         "--train /r/x --validation /r/x --test=/r/x --data-name /r/x"),
        ("--train data/t.csv --dataset imdb", "--train data/t.csv --dataset imdb"),
        ("--dataset imdb --data-name Films", "--dataset imdb --data-name Films"),
        ("--dataset /data/acme --data-name Films", "--dataset acme --data-name Films"),
    ],
)  # fmt: skip
def test_the_data_is_called_in_the_command_what_the_user_calls_it(command, seen):
    assert published_command(command) == seen and published_command(seen) == seen


@pytest.mark.parametrize("name", ["bert", "node17"])
def test_a_user_called_like_a_word_changes_no_command(name, monkeypatch):
    monkeypatch.setenv("USER", name)
    monkeypatch.setenv("HOME", f"/home/{name}")
    monkeypatch.setattr("socket.gethostname", lambda: name)
    for command in (f"--family {name}", f"{name}/text", f"--model {name}/{name}", f"--format={name}", f"a={name}"):
        assert published_command(command) == command
    assert published_command(f"/home/{name}/text {name}@node1:/data/text") == "text text"
    assert published(f"by {name}@node1, in /home/{name}") == f"by {REDACTED}, in folder"


def test_a_value_is_kept_back_for_its_name():
    for words in (
        "--hub_token x", "--hub-token x", "--hub_token=x", "--trainer a=1 hub_token=x", "--hub_token x=",
        "--api_key x", "--password x", "--wandb-api-key=x", "--auth-token x", "https://host/corpus?access_token=x&page=2",
        "https://x@host/y", "--clientSecret x", "HF_TOKEN=x", "--note token=x", "--trainer password=x",
        "--password=xx", "https://host/c?hub_token=x", """--fsdp_config '{"deep": {"secret": "x"}}'""",
    ):  # fmt: skip
        redacted = published_command(f"pretrain {words}")
        assert REDACTED in redacted and "x" not in redacted.replace("fsdp_config", "").replace(REDACTED, ""), words
        assert published_command(redacted) == redacted


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("/home/alice/acme/corpus", "corpus"), ("/data/acme/corpus/", "corpus"), ("~/acme/text.txt", "text.txt"),
        ("~bob/acme/text.txt", "text.txt"), ("file:///data/acme/text.txt", "text.txt"), ("../acme/text", "text"),
        ("a/../../acme/text", "text"), ("s3://acme/text", "text"), ("C:\\Users\\bob\\text.txt", "text.txt"),
        ("\\\\server\\acme\\text.txt", "text.txt"), ("/data/acme inc/my text.txt", "'my text.txt'"),
        ("--output=/data/acme/run", "--output=run"), ("output_dir=/data/acme/run", "output_dir=run"),
        ("/home/alice", "folder"), ("~", "folder"), ("/", "/"),
        ("me@acme.com:/data", "data"), ("me@acme.com:text", "text"), ("host:/data/acme/x", "x"),
        ("$HOME/acme", "acme"), ("${HOME}/acme/x", "x"), ("%USERPROFILE%\\acme\\x", "x"), ("$HOME/", "folder"),
        # These say nothing of the machine.
        ("alice/run", "alice/run"), ("alice", "alice"), ("node17", "node17"), ("token=2", "token=2"),
        ("runs/model", "runs/model"), ("me/encoder", "me/encoder"), ("1e-4", "1e-4"), ("https://host/a/b",) * 2,
        ("--average_tokens_across_devices", "--average_tokens_across_devices"), ("steps=10", "steps=10"),
        ("lr_scheduler_type=cosine", "lr_scheduler_type=cosine"), ("--hub_token", "--hub_token"),
    ],
)  # fmt: skip
def test_a_path_is_its_last_part(word, seen):
    assert published_command(["pretrain", word]) == f"pretrain {seen}"
    assert published_command(f"pretrain {seen}") == f"pretrain {seen}"


def test_a_path_inside_of_a_text_is_its_last_part():
    assert published("from /home/bob/acme/a.txt, and (/Users/eve/c); file:///home/alice/d /data/e https://host/a") == (
        "from a.txt, and (c); d /data/e https://host/a"
    )
    paths = {"base_model": "/data/acme/x", "output_dir": "../acme/y", "dataset_ids": ["s3://acme/z"]}
    assert published(paths) == {"base_model": "x", "output_dir": "y", "dataset_ids": ["z"]}
    assert published({"data": [Path("/data/acme/x"), 3, None, True]}) == {"data": ["x", 3, None, True]}


def test_fields_with_secret_names_and_others_like_them():
    given = {"hub_token": "x", "push_to_hub_token": None, "mask_token": "[MASK]", "num_input_tokens_seen": "all",
             "label_key": "label", "primary-key": "document-id-2019-0001", "token": "2",
             "api_key": "x", "tokens": 3, "bf16": True}  # fmt: skip
    assert published(given) == {**given, "hub_token": REDACTED, "api_key": REDACTED}
    # However short, and a number too.
    assert published({"password": "1234", "api_key": "2"}) == {"password": REDACTED, "api_key": REDACTED}


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
