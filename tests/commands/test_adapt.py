"""`hf-encoders adapt`: a published checkpoint goes on learning on a text, evaluated before and after."""

import json
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_encoders.cli import main
from hf_encoders.commands import adapt as adapted
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.runs import train as command
from hf_encoders.runs.sources import Source, Sources
from tests.commands.adapt_runs import RECIPE, adapt, checkpoint, head_of, write_texts
from tests.commands.pretrain_runs import weights
from tests.corpus.corpora import NOUNS, write_corpus
from tests.corpus.test_extension import domain_lines
from tests.corpus.trained import FAMILIES


WITH_PAIRS = ("bert", "albert")
LEARNT_AND_KEPT = ("domain", "general")


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


@pytest.mark.parametrize("config_class", FAMILIES, ids=lambda one: one.model_type)
def test_a_stock_checkpoint_goes_on(config_class, folder, capsys):
    source, load = checkpoint(folder, config_class.model_type), getattr(transformers, head_of(config_class))
    assert adapt(folder, source, "run") == 0
    printed = capsys.readouterr().out
    items = "predicted tokens" if config_class.model_type == "xlnet" else "masked tokens"
    assert f"held-out, before: {items} loss" in printed and f"\nheld-out: {items} loss" in printed
    model, before = (load.from_pretrained(one) for one in (folder / "run" / "model", source))
    assert model.state_dict().keys() == before.state_dict().keys()
    assert model.config.vocab_size == before.config.vocab_size
    assert any(not torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters(), strict=True))
    ids = [AutoTokenizer.from_pretrained(one)("alpha beta")["input_ids"] for one in (source, folder / "run" / "model")]
    assert ids[0] == ids[1]
    record = TrainingRecord.load(folder / "run" / "model")
    assert record.base_model == "start (a local folder)"
    assert record.losses[f"{items}, held-out"] != record.losses[f"{items}, held-out, before"]


@pytest.mark.parametrize("auto_class", ["AutoModelForPreTraining", "AutoModelForSequenceClassification"])
def test_a_family_without_masked_tokens_has_its_own_objective(auto_class, folder, capsys):
    assert adapt(folder, checkpoint(folder, "xlnet", auto_class), "run") == 0
    assert "held-out, before: predicted tokens loss" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_PAIRS)
def test_the_objective_is_that_of_the_heads(family, folder, capsys):
    # No two sentences are equal, so that held-out documents can exchange theirs for negatives.
    documents = ["\n".join(f"{a} saw {c} of {b}." for c in NOUNS[:4]) for a in NOUNS for b in NOUNS]
    (folder / "domain.txt").write_text("\n\n".join(documents), encoding="utf-8")
    assert adapt(folder, checkpoint(folder, family, "AutoModelForPreTraining"), "pairs") == 0
    printed = capsys.readouterr().out
    assert "sentence pairs loss" in printed and "New weights" not in printed and "left out" not in printed
    assert adapt(folder, folder / "start", "mlm", "--objective", "mlm", "--layer-decay", "0.8") == 0
    printed = capsys.readouterr().out
    if family == "bert":  # ALBERT's pooler belongs to its encoder
        assert "that mlm does not train are left out: bert.pooler.dense.bias, bert.pooler.dense.weight, cls" in printed
    assert "sentence pairs" not in printed and "of each layer 0.8 times the next one's" in printed
    schedule = TrainingRecord.load(folder / "mlm" / "model").schedule
    assert schedule["peak learning rate of the embeddings"] < 0.8 * schedule["peak learning rate"]


def test_an_objective_of_a_recipe_that_the_checkpoint_has_no_heads_for_is_named(folder, capsys):
    source = checkpoint(folder, "bert")
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "objective": "nsp"}), encoding="utf-8")
    assert adapt(folder, source, "run", "--plan") == 0
    assert "Objective mlm, not nsp as in the recipe: --objective sets another." in capsys.readouterr().out
    for chosen in ("nsp", "mlm"):
        assert adapt(folder, source, "run", "--plan", "--objective", chosen) == 0
        assert "as in the recipe" not in capsys.readouterr().out
    options = {"examples": {"short_sequence_probability": 0.1}}  # which mlm does not have
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "objective": "nsp", **options}), encoding="utf-8")
    assert adapt(folder, source, "run", "--plan") == 2
    told = capsys.readouterr()
    assert "Objective mlm, not nsp" in told.out and "mlm has no option 'short_sequence_probability'" in told.err


def test_a_new_head_learns_alone_at_first(folder, capsys, monkeypatch):
    source, seen = checkpoint(folder, "bert"), []
    before = AutoModelForMaskedLM.from_pretrained(source).state_dict()

    class Watching(command.HeadWarmUpCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            after = dict(model.named_parameters())
            seen.append(
                {name for name, value in before.items() if name in after and not torch.equal(after[name], value)}
            )
            seen[-1] |= {"new"} if model.cls.seq_relationship.bias.abs().sum() else set()

    monkeypatch.setattr(command, "HeadWarmUpCallback", Watching)
    assert adapt(folder, source, "run", "--objective", "nsp", "--head-steps", "2") == 0
    printed = capsys.readouterr().out
    assert (
        "New weights (bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias, ...): " in printed
    )
    assert "alone in the first 2 of 4 steps" in printed and "has no head for masked tokens" not in printed
    assert seen[0] == seen[1] == {"new"}
    assert len(seen[2]) > 10


@pytest.mark.parametrize("steps", ["0", "1", "0.9"])
def test_a_classifier_s_checkpoint_gets_a_new_head_and_says_so(steps, folder, capfd):
    source = checkpoint(folder, "bert", "AutoModelForSequenceClassification")
    capfd.readouterr()
    assert adapt(folder, source, "run", "--head-steps", steps) == 0
    told = capfd.readouterr()
    alone = {"0": 0, "1": 1, "0.9": 3}[steps]  # of a share, the last step is the encoder's too
    when = f"alone in the first {alone} of 4 steps" if alone else "with the others from the first step"
    assert "New weights (cls.predictions.bias, cls.predictions.decoder.bias, cls.predictions" in told.out
    assert f"): they learn {when}." in told.out
    assert f"{source} has no head for masked tokens: the new one takes thousands of steps" in told.out
    assert "left out: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, ..." in told.out
    assert "corrupted" not in told.err and "MISSING" not in told.err
    model, found = AutoModelForMaskedLM.from_pretrained(folder / "run" / "model", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]


@pytest.mark.slow
def test_general_text_is_kept_apart_and_replayed(folder, capsys):
    source = checkpoint(folder, "roberta")
    keep = ["--keep", folder / "general.txt"]
    assert adapt(folder, source, "without", *keep) == 0
    printed = capsys.readouterr().out
    for name in LEARNT_AND_KEPT:
        assert f"\nheld-out, before, {name}: " in printed and f"\nheld-out, {name}: " in printed
    assert printed.count("\nheld-out") == 4, "the mean over both texts answers no question"
    state = json.loads((folder / "without" / "checkpoint-4" / "trainer_state.json").read_text())
    assert "eval_general_mlm_loss" in state["log_history"][-1]
    record = TrainingRecord.load(folder / "without" / "model")
    assert record.corpus["general"].endswith("read 0 times")
    assert f"{record.corpus['tokens']:,}" == record.corpus["domain"].split()[0]
    assert [one["dataset"] for one in record.evaluation[::2]] == [
        f"held-out documents of {n}" for n in LEARNT_AND_KEPT
    ]
    for name in LEARNT_AND_KEPT:
        losses = [record.losses[f"masked tokens, held-out, {name}{when}"] for when in (", before", "")]
        assert losses[0] != losses[1]
        of_bytes = [record.losses[f"masked tokens, held-out, per byte, {name}{when}"] for when in (", before", "")]
        assert of_bytes[0] / losses[0] == pytest.approx(of_bytes[1] / losses[1], abs=1e-4)
        assert f"({of_bytes[1]:.3f} nats per byte)" in printed
    assert adapt(folder, source, "with", *keep, "--replay", "0.5") == 0
    record = TrainingRecord.load(folder / "with" / "model")
    assert not record.corpus["general"].endswith("read 0 times")
    assert record.evaluation[0]["dataset"] == "held-out documents of the corpus"
    one, other = (weights(folder / name / "model") for name in ("without", "with"))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_general_text_may_be_prepared_or_of_several_paths(folder, capsys):
    source, out = checkpoint(folder, "bert"), {}
    write_corpus(folder / "more.txt", 20, "gamma")
    prepare = ["corpus", "--tokenizer", source, "--output", str(folder / "corpus"), "--input"]
    assert main([*prepare, str(folder / "general.txt"), str(folder / "more.txt")]) == 0
    for name, paths in {"prepared": ["corpus"], "several": ["general.txt", "more.txt"]}.items():
        words = ["--keep", *(folder / path for path in paths), "--replay", "0.5"]
        assert adapt(folder, source, name, *words) == 0
        out[name] = weights(folder / name / "model")
    assert all(torch.equal(value, out["several"][name]) for name, value in out["prepared"].items())
    assert adapt(folder, source, "mixed", "--keep", folder / "corpus", folder / "more.txt") == 2
    assert "give one or the other, or prepare all of the text" in capsys.readouterr().err


def test_texts_of_two_documents_are_enough_and_one_is_refused(folder, capsys):
    """A step of four examples then reads the only training document again; one document is held out."""
    source = checkpoint(folder, "bert")
    for name, text in {"one": "alpha saw garden.", "two": "alpha saw garden.\n\nbeta saw it.", "none": ""}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    assert adapt(folder, source, "run", "--keep", folder / "two.txt", corpus="two.txt") == 0
    losses = TrainingRecord.load(folder / "run" / "model").losses
    assert losses["masked tokens, held-out, domain"] != losses["masked tokens, held-out, domain, before"]
    for keep, corpus, message in (
        ("one.txt", "two.txt", "--keep holds 1 document(s), and mlm needs 2"),
        ("two.txt", "one.txt", "--corpus holds 1 document(s), and mlm needs 2"),
        ("none.txt", "two.txt", "--keep: documents holds no sentence"),
    ):
        capsys.readouterr()
        assert adapt(folder, source, f"{keep}-{corpus}", "--keep", folder / keep, corpus=corpus) == 2
        assert message in capsys.readouterr().err
    named = ["domain=" + str(folder / "two.txt"), "general=" + str(folder / "one.txt")]
    assert adapt(folder, source, "named", "--corpus", *named) == 2
    assert "--corpus general=... holds 1 document(s)" in capsys.readouterr().err


def test_losses_of_bytes_compare_tokenizers(folder, capsys):
    """With entries for the words of the text tokens have more bytes, and the same loss per token is less per byte."""
    (folder / "domain.txt").write_text("\n\n".join(domain_lines()), encoding="utf-8")
    source = checkpoint(folder, "roberta")
    words = ["--extend", source, "--add", "5", "--corpus", str(folder / "domain.txt"), "--held-out", "0"]
    assert main(["tokenizer", *words, "--output", str(folder / "extended")]) == 0
    found = {}
    for name in ("start", "extended"):
        assert adapt(folder, folder / name, f"run-{name}") == 0
        record = TrainingRecord.load(folder / f"run-{name}" / "model")
        loss, of_byte = (record.losses[f"masked tokens, held-out{what}, before"] for what in ("", ", per byte"))
        found[name] = loss / of_byte  # bytes of a token
    report = json.loads((folder / "extended" / "tokenizer_report.json").read_text())["text"]
    assert found["extended"] / found["start"] == pytest.approx(
        report["tokens_before"] / report["tokens_after"], rel=0.1
    )
    assert "nats per byte" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_longer_texts_than_the_checkpoint_has_positions_for(family, folder, capsys):
    source = checkpoint(folder, family, max_position_embeddings=24)
    assert adapt(folder, source, "run", "--max-length", "40", "--plan") == 0
    assert "\n40 tokens are more than the checkpoint has positions for: " in "\n" + capsys.readouterr().out
    assert adapt(folder, source, "run", "--max-length", "40", "--positions", "interpolate") == 0
    model = AutoModelForMaskedLM.from_pretrained(folder / "run" / "model")
    rows = {"bert": 40, "roberta": 42}[family]
    assert model.config.max_position_embeddings == rows
    assert AutoTokenizer.from_pretrained(folder / "run" / "model").model_max_length >= 40  # else nothing reads them
    assert TrainingRecord.load(folder / "run" / "model").schedule["phases"] == "4 steps of 4 x 40 tokens"


def test_lengths_are_the_checkpoint_s_if_it_is_shorter(folder):
    source = checkpoint(folder, "bert", max_position_embeddings=16)
    assert adapt(folder, source, "run") == 0
    assert TrainingRecord.load(folder / "run" / "model").schedule["phases"] == "4 steps of 4 x 16 tokens"


def test_phases_keep_their_lengths(folder, capsys):
    source = checkpoint(folder, "bert")
    phases = [{"steps": 2, "length": 32, "examples": 4}, {"steps": 2, "length": 16, "examples": 4}]
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
    for words, lengths in (([], "32 16"), (["--max-length", "24"], "24 24"), (["--max-length", "40"], "32 40")):
        assert adapt(folder, source, "run", "--plan", *words) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("      2")]
        assert " ".join(row[1] for row in rows) == lengths


def test_sizes_are_the_checkpoint_s_whatever_the_recipe_says(folder):
    source = checkpoint(folder, "bert", num_hidden_layers=3, num_attention_heads=3)
    # Both of these would load: fewer layers, and other heads in weights of the same shapes.
    recipe = {**RECIPE, "model": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_dropout_prob": 0.3}}
    (folder / "sizes.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command_line = ["pretrain", str(folder / "sizes.yaml"), "--corpus", str(folder / "domain.txt"), "--from", source]
    command_line += ["--validation-share", "0.2", "--disable_tqdm", "True", "--output", str(folder / "run")]
    assert main(command_line) == 0
    config = AutoModelForMaskedLM.from_pretrained(folder / "run" / "model").config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_dropout_prob) == (3, 3, 0.3)


def test_pretrain_from_a_checkpoint(folder, capsys):
    source = checkpoint(folder, "bert")
    command_line = ["pretrain", str(folder / "tiny.yaml"), "--corpus", str(folder / "domain.txt"), "--from", source]
    command_line += ["--validation-share", "0.2", "--disable_tqdm", "True", "--output", str(folder / "run")]
    assert main(command_line) == 0
    assert "held-out, before" in capsys.readouterr().out
    assert (
        main([*command_line[:4], "--from", checkpoint(folder, "roberta"), *command_line[6:-1], str(folder / "b")]) == 2
    )
    assert "choose a recipe of its family" in capsys.readouterr().err


def test_ids_of_a_tokenizer_may_have_a_gap(folder):
    source = checkpoint(folder, "bert", vocab_size=704)
    file = folder / "start" / "tokenizer.json"
    fields = json.loads(file.read_text())
    words = fields["model"]["vocab"]
    fields["model"]["vocab"] = {word: number + 60 * (number > 300) for word, number in words.items()}
    file.write_text(json.dumps(fields))
    assert len(AutoTokenizer.from_pretrained(source)) < max(fields["model"]["vocab"].values())
    assert adapt(folder, source, "run") == 0


def test_the_objective_of_sentence_pairs_is_that_of_the_record(folder, capsys):
    source = Path(checkpoint(folder, "bert", "AutoModelForPreTraining"))
    TrainingRecord(objectives={"sentence-order prediction": "half of the pairs swapped"}).save(source)
    assert adapt(folder, source, "run", "--plan") == 0
    assert ": bert, sop, " in capsys.readouterr().out
    (source / "training_record.json").write_text('{"by": "another program"}')
    assert adapt(folder, source, "run", "--plan") == 2
    said = capsys.readouterr().err
    assert f"CHECKPOINT {str(source)!r}: " in said and "Or give --objective." in said
    assert adapt(folder, source, "run", "--plan", "--objective", "nsp") == 0


def test_new_entries_leave_the_objective_of_the_record(folder, capsys):
    (folder / "domain.txt").write_text("\n\n".join(domain_lines()), encoding="utf-8")
    source = Path(checkpoint(folder, "bert", "AutoModelForPreTraining"))
    before = TrainingRecord(
        objectives={"sentence-order prediction": "half swapped"}, license="mit", losses={"masked tokens": 2.0}
    )
    before.save(source)
    words = ["--add", "3", "--corpus", str(folder / "domain.txt"), "--held-out", "0"]
    assert main(["tokenizer", "--extend", str(source), *words, "--output", str(folder / "extended")]) == 0
    record = TrainingRecord.load(folder / "extended")
    assert (record.objectives, record.license, record.losses) == (before.objectives, "mit", {})
    assert record.base_model == "start (a local folder)"
    capsys.readouterr()
    assert adapt(folder, folder / "extended", "run", "--plan", corpus="general.txt") == 0
    assert ": bert, sop, " in capsys.readouterr().out


def test_general_text_needs_no_language_where_the_checkpoint_has_no_embeddings_of_any(folder):
    source = checkpoint(folder, "xlm", n_langs=1, lang2id=None, default_lang=None)
    assert adapt(folder, source, "run", "--keep", folder / "general.txt") == 0


def adapt_by_default(folder, source, *words):
    given = [*words, "--validation-share", "0.2", "--disable_tqdm", "True", "--output", str(folder / "run")]
    assert main(["adapt", str(source), "--corpus", str(folder / "domain.txt"), *given]) == 0


@pytest.mark.parametrize(
    ("megabytes", "is_accelerated", "batch", "steps", "rate"),
    [
        (0.01, False, "32 examples of 64", "500", "0.001"),
        (0.5, False, "32 examples of 64", "610", "0.001"),
        (50, False, "32 examples of 64", "2,000", "0.001"),
        (0.5, True, "32 examples of 64", "610", "0.001"),
        (5, True, "256 examples of 64", "763", "0.001"),
    ],
)
def test_without_a_recipe_steps_follow_the_text(
    megabytes, is_accelerated, batch, steps, rate, folder, capsys, monkeypatch
):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_accelerated)
    source = checkpoint(folder, "bert", hidden_size=128, num_attention_heads=2, max_position_embeddings=64)
    monkeypatch.setattr(Source, "tokens", megabytes * 1e6 / 4)
    adapt_by_default(folder, source, "--plan", *(["--use-cpu", "True"] if not is_accelerated else []))
    printed = capsys.readouterr().out
    assert f"Chosen without --recipe: {batch} tokens a step, {steps} steps for about " in printed
    assert f"learning rate {rate} for width 128." in printed and f"together {steps} steps" in printed


def test_sizes_of_text_are_of_files_and_of_prepared_corpora(folder):
    source = checkpoint(folder, "bert")
    text = Sources.from_words([str(folder / "domain.txt")])[""]
    assert text.tokens == (folder / "domain.txt").stat().st_size / 4
    words = [
        "corpus",
        "--tokenizer",
        source,
        "--input",
        str(folder / "domain.txt"),
        "--output",
        str(folder / "corpus"),
    ]
    assert main(words) == 0
    prepared = Sources.from_words([str(folder / "corpus")])[""]
    assert prepared.tokens == json.loads((folder / "corpus" / "corpus.json").read_text())["statistics"]["tokens"]


@pytest.mark.parametrize(("width", "rate"), [(768, "5e-05"), (384, "0.0002"), (1024, "5e-05")])
def test_without_a_recipe_the_rate_is_that_of_the_width(width, rate, folder, capsys):
    source = checkpoint(folder, "bert", hidden_size=width, num_attention_heads=2)
    adapt_by_default(folder, source, "--plan")
    assert f"learning rate {rate} for width {width}." in capsys.readouterr().out
    assert adapt(folder, source, "run", "--plan", "--recipe", "adapt-minutes") == 0
    assert f"for width {width}, give --learning-rate {rate}." in capsys.readouterr().out
    assert adapt(folder, source, "run", "--plan", "--recipe", "adapt-minutes", "--learning-rate", "1e-4") == 0
    assert "is for narrower encoders" not in capsys.readouterr().out


def test_a_run_without_a_recipe_goes_on_as_it_began(folder, capsys):
    """Also on a machine with an accelerator, and made longer."""
    source = checkpoint(folder, "bert", hidden_size=128, num_attention_heads=2)
    adapt_by_default(folder, source, "--max-steps", "6")
    printed = capsys.readouterr().out
    assert "Chosen without --recipe: 32 examples of 64 tokens a step, learning rate 0.001 for width 128." in printed
    with pytest.MonkeyPatch.context() as machine:
        machine.setattr(adapted, "default_recipe", lambda noted, given: noted["recipe"]["name"])
        adapt_by_default(folder, source)
    assert "This run is finished" in capsys.readouterr().out
    adapt_by_default(folder, source, "--max-steps", "8")
    assert "extended from 6 to 8 steps" in capsys.readouterr().out
