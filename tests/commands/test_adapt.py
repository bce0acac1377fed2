"""`hf-encoders adapt`: a published checkpoint goes on learning on a text, evaluated before and after."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_encoders.cli import main
from hf_encoders.commands import adapt as adapted
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.registration import config_class_of
from hf_encoders.runs import train as command
from hf_encoders.runs.sources import Source, Sources
from tests.commands.adapt_runs import RECIPE, adapt, checkpoint, head_of, write_texts
from tests.commands.pretrain_runs import same_weights
from tests.corpus.corpora import NOUNS, write_corpus
from tests.corpus.test_extension import domain_lines


WITH_PAIRS = ("bert", "albert")
LEARNT_AND_KEPT = ("domain", "general")


@pytest.fixture
def folder(tmp_path):
    return write_texts(tmp_path)


@pytest.mark.parametrize("family", ["bert", "albert", "electra", "xlm", "xlnet"])
def test_a_stock_checkpoint_is_adapted(family, folder, capsys):
    source, load = checkpoint(folder, family), getattr(transformers, head_of(config_class_of(family)))
    assert adapt(folder, source, "run") == 0
    printed, adapted = capsys.readouterr().out, folder / "run" / "model"
    items = "predicted tokens" if family == "xlnet" else "masked tokens"
    assert f"held-out, before: {items} loss" in printed and f"\nheld-out: {items} loss" in printed
    before, after = (load.from_pretrained(path) for path in (source, adapted))
    assert after.state_dict().keys() == before.state_dict().keys()
    assert after.config.vocab_size == before.config.vocab_size
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in pairs)
    ids = [AutoTokenizer.from_pretrained(path)("alpha beta")["input_ids"] for path in (source, adapted)]
    assert ids[0] == ids[1]
    record = TrainingRecord.load(adapted)
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
    printed = capsys.readouterr()
    assert "Objective mlm, not nsp" in printed.out and "mlm has no option 'short_sequence_probability'" in printed.err


def test_a_new_head_learns_alone_at_first(folder, capsys, monkeypatch):
    source, seen = checkpoint(folder, "bert"), []
    before = AutoModelForMaskedLM.from_pretrained(source).state_dict()

    class Watching(command.HeadWarmUpCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            after = dict(model.named_parameters())
            changed = {name for name, old in before.items() if name in after and not torch.equal(after[name], old)}
            seen.append(changed | ({"new"} if model.cls.seq_relationship.bias.abs().sum() else set()))

    monkeypatch.setattr(command, "HeadWarmUpCallback", Watching)
    words = ["--objective", "nsp", "--head-steps"]
    assert adapt(folder, source, "run", *words, "4") == 2
    assert "the run has 4 steps, and the encoder would not learn" in capsys.readouterr().err
    assert adapt(folder, source, "run", *words, "2") == 0
    printed = capsys.readouterr().out
    assert (
        "New weights (bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias, ...): " in printed
    )
    assert "alone in the first 2 of 4 steps" in printed and "has no head for masked tokens" not in printed
    assert seen[0] == seen[1] == {"new"}
    assert len(seen[2]) > 10


@pytest.mark.parametrize(("steps", "alone"), [("0", 0), ("0.9", 3)])  # of a share, the last step is the encoder's too
def test_a_classifier_s_checkpoint_gets_a_new_head_and_says_so(steps, alone, folder, capfd):
    source = checkpoint(folder, "bert", "AutoModelForSequenceClassification")
    capfd.readouterr()
    assert adapt(folder, source, "run", "--head-steps", steps) == 0
    printed = capfd.readouterr()
    when = f"alone in the first {alone} of 4 steps" if alone else "with the others from the first step"
    assert "New weights (cls.predictions.bias, cls.predictions.decoder.bias, cls.predictions" in printed.out
    assert f"): they learn {when}." in printed.out
    assert f"{source} has no head for masked tokens: the new one takes thousands of steps" in printed.out
    assert "left out: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, ..." in printed.out
    assert "corrupted" not in printed.err and "MISSING" not in printed.err
    _, loading = AutoModelForMaskedLM.from_pretrained(folder / "run" / "model", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]


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
    datasets = [entry["dataset"] for entry in record.evaluation[::2]]
    assert datasets == [f"held-out documents of {name}" for name in LEARNT_AND_KEPT]
    for name in LEARNT_AND_KEPT:
        losses = [record.losses[f"masked tokens, held-out, {name}{when}"] for when in (", before", "")]
        assert losses[0] != losses[1]
        of_bytes = [record.losses[f"masked tokens, held-out, per byte, {name}{when}"] for when in (", before", "")]
        assert of_bytes[0] / losses[0] == pytest.approx(of_bytes[1] / losses[1], abs=1e-4)
        assert f"{of_bytes[1]:.3f} nats per byte" in printed
    assert adapt(folder, source, "with", *keep, "--replay", "0.5") == 0
    record = TrainingRecord.load(folder / "with" / "model")
    assert not record.corpus["general"].endswith("read 0 times")
    assert record.evaluation[0]["dataset"] == "held-out documents of the corpus"
    assert not same_weights(folder, "without", "with")


def test_general_text_may_be_prepared_or_of_several_paths(folder, capsys):
    source = checkpoint(folder, "bert")
    write_corpus(folder / "more.txt", 20, "gamma")
    prepare = ["corpus", "--tokenizer", source, "--output", str(folder / "corpus"), "--input"]
    assert main([*prepare, str(folder / "general.txt"), str(folder / "more.txt")]) == 0
    for name, paths in {"prepared": ["corpus"], "several": ["general.txt", "more.txt"]}.items():
        words = ["--keep", *(folder / path for path in paths), "--replay", "0.5"]
        assert adapt(folder, source, name, *words) == 0
    assert same_weights(folder, "prepared", "several")
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
        ("none.txt", "two.txt", "--keep: the text has no sentence"),
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
    sizes = {}
    for name in ("start", "extended"):
        assert adapt(folder, folder / name, f"run-{name}") == 0
        record = TrainingRecord.load(folder / f"run-{name}" / "model")
        loss, of_byte = (record.losses[f"masked tokens, held-out{what}, before"] for what in ("", ", per byte"))
        sizes[name] = loss / of_byte  # bytes of a token
    report = json.loads((folder / "extended" / "tokenizer_report.json").read_text())["text"]
    fewer = report["tokens_before"] / report["tokens_after"]
    assert sizes["extended"] / sizes["start"] == pytest.approx(fewer, rel=0.1)
    assert "nats per byte" in capsys.readouterr().out


def test_longer_texts_than_the_checkpoint_has_positions_for(folder, capsys):
    source = checkpoint(folder, "roberta", max_position_embeddings=24)
    words = ["--max-length", "40", "--positions", "interpolate"]
    assert adapt(folder, source, "run", *words, "--plan") == 0
    assert "\n40 tokens are more than the checkpoint has positions for: " in "\n" + capsys.readouterr().out
    assert adapt(folder, source, "run", *words) == 0
    model = folder / "run" / "model"
    assert AutoModelForMaskedLM.from_pretrained(model).config.max_position_embeddings == 42
    assert AutoTokenizer.from_pretrained(model).model_max_length >= 40  # else nothing reads them
    assert TrainingRecord.load(model).schedule["phases"] == "4 steps of 4 x 40 tokens"


@pytest.mark.parametrize(
    ("positions", "words", "lengths"),
    [
        (66, [], "32 16"),
        (66, ["--max-length", "24"], "24 24"),
        (66, ["--max-length", "40"], "32 40"),
        (20, [], "20 16"),
    ],
)
def test_phases_keep_their_lengths_unless_the_checkpoint_is_shorter(positions, words, lengths, folder, capsys):
    source = checkpoint(folder, "bert", max_position_embeddings=positions)
    phases = [{"steps": 2, "length": 32, "examples": 4}, {"steps": 2, "length": 16, "examples": 4}]
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
    assert adapt(folder, source, "run", "--plan", *words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("      2")]
    assert " ".join(row[1] for row in rows) == lengths


def test_pretrain_from_a_checkpoint_has_its_sizes_whatever_the_recipe_says(folder, capsys):
    source = checkpoint(folder, "bert", num_hidden_layers=3, num_attention_heads=3)
    # Both of these would load: fewer layers, and other heads in weights of the same shapes.
    recipe = {**RECIPE, "model": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_dropout_prob": 0.3}}
    (folder / "sizes.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    words = [
        "pretrain",
        str(folder / "sizes.yaml"),
        "--corpus",
        str(folder / "domain.txt"),
        "--validation-share",
        "0.2",
    ]
    words += ["--disable_tqdm", "True", "--output", str(folder / "run"), "--from"]
    assert main([*words, source]) == 0
    assert "held-out, before" in capsys.readouterr().out
    config = AutoModelForMaskedLM.from_pretrained(folder / "run" / "model").config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_dropout_prob) == (3, 3, 0.3)
    assert main([*words, checkpoint(folder, "roberta", name="other")]) == 2
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
    error = capsys.readouterr().err
    assert f"CHECKPOINT {str(source)!r}: " in error and "Or give --objective." in error
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
        (0.01, False, "32 examples of up to 64 tokens", "500", "0.001"),
        (50, False, "32 examples of up to 64 tokens", "2,000", "0.001"),
        (0.5, True, "32 examples of up to 64 tokens", "610", "0.001"),
        (5, True, "256 examples of up to 64 tokens", "763", "0.001"),
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
    assert f"Chosen without --recipe: batches of {batch}, {steps} steps for about " in printed
    assert f"learning rate {rate} for width 128." in printed and f"together {steps} steps" in printed


def test_sizes_of_text_are_of_files_and_of_prepared_corpora(folder):
    source, text, corpus = checkpoint(folder, "bert"), str(folder / "domain.txt"), folder / "corpus"
    assert Sources.from_words([text])[""].tokens == Path(text).stat().st_size / 4
    assert main(["corpus", "--tokenizer", source, "--input", text, "--output", str(corpus)]) == 0
    statistics = json.loads((corpus / "corpus.json").read_text())["statistics"]
    assert Sources.from_words([str(corpus)])[""].tokens == statistics["tokens"]


def test_without_a_recipe_the_rate_is_that_of_the_width(folder, capsys):
    source = checkpoint(folder, "bert", hidden_size=384, num_attention_heads=2)
    adapt_by_default(folder, source, "--plan")
    assert "learning rate 0.0002 for width 384." in capsys.readouterr().out
    for words, is_warned in (([], True), (["--learning-rate", "1e-4"], False)):
        assert adapt(folder, source, "run", "--plan", "--recipe", "adapt-minutes", *words) == 0
        assert ("for width 384, give --learning-rate 0.0002." in capsys.readouterr().out) == is_warned
    phases = "phases=[{steps: 4, length: 32, examples: 8}, {steps: 2, length: 64, examples: 4}]"
    adapt_by_default(folder, source, "--plan", "--set", phases)
    assert "together 6 steps" in capsys.readouterr().out


def test_a_run_without_a_recipe_goes_on_as_it_began(folder, capsys):
    """Also on a machine with an accelerator, and made longer."""
    source = checkpoint(folder, "bert", hidden_size=128, num_attention_heads=2)
    adapt_by_default(folder, source, "--max-steps", "6")
    printed = capsys.readouterr().out
    assert (
        "Chosen without --recipe: batches of 32 examples of up to 64 tokens, learning rate 0.001 for width 128."
        in printed
    )
    with pytest.MonkeyPatch.context() as machine:
        machine.setattr(adapted, "default_recipe", lambda noted, given: noted["recipe"]["name"])
        adapt_by_default(folder, source)
    assert "This run is finished" in capsys.readouterr().out
    adapt_by_default(folder, source, "--max-steps", "8")
    assert "extended from 6 to 8 steps" in capsys.readouterr().out


def phases_of(output):
    run = json.loads((output / "run.json").read_text())
    return run["recipe"]["phases"], run["training"]["lr_scheduler_type"]


def test_a_checkpoint_from_before_its_decay_gets_a_decay_of_its_own(folder, capsys):
    """By the option, or by its training record: one of a constant rate, that never fell."""
    source = Path(checkpoint(folder, "bert"))
    phases = [{"steps": 20, "length": 64, "examples": 4}]
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
    assert adapt(folder, source, "told", "--from-stable") == 0
    stable, falling = phases_of(folder / "told")[0]
    assert (stable["steps"], falling["steps"], falling["masking"]) == (19, 1, {"mask_probability": 0.15})
    assert falling["learning_rate"] == [0.01, pytest.approx(1e-5)] and "masking" not in stable
    assert phases_of(folder / "told")[1] == "constant_with_warmup"
    said = "The checkpoint is from before its decay"
    assert f"{said} (--from-stable)" in capsys.readouterr().out
    # That run has decayed; one at a constant rate has not.
    assert adapt(folder, folder / "told" / "model", "again", "--plan") == 0
    assert said not in capsys.readouterr().out
    assert adapt(folder, source, "constant", "--lr-scheduler-type", "constant") == 0
    capsys.readouterr()
    before_decay = folder / "constant" / "model"
    assert adapt(folder, before_decay, "decayed", "--plan", "--learning-rate", "0.004") == 0
    shown = capsys.readouterr().out
    assert f"{said} (its training record: constant)" in shown and "learning rate 0.004 to 4e-06" in shown
    assert adapt(folder, before_decay, "other", "--plan", "--no-from-stable") == 0
    assert said not in capsys.readouterr().out


def test_a_detour_predicts_next_tokens_first_and_goes_on_where_it_was_stopped(folder, capsys):
    source = checkpoint(folder, "bert")
    phases = [{"steps": 10, "length": 64, "examples": 4}]
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "phases": phases}), encoding="utf-8")
    assert adapt(folder, source, "run", "--detour", "0.6") == 0
    first, second = phases_of(folder / "run")[0]
    assert (first["steps"], first["masking"]) == (6, {"next_token": True})
    assert (second["steps"], second["masking"]) == (4, {"mask_probability": 0.15})
    assert second["learning_rate"] == [0.01, pytest.approx(0.001)]
    described = TrainingRecord.load(folder / "run" / "model").objectives["masked language modelling"]
    assert "phase 1: the next token of each" in described and "phase 2: 15 % of the tokens" in described
    shutil.rmtree(folder / "run" / "model")
    shutil.rmtree(folder / "run" / "checkpoint-10")
    assert adapt(folder, source, "run", "--detour", "0.6") == 0
    assert "Resuming" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--detour", "1"], "--detour 1.0: it is a share of the steps in (0, 1)"),
        (["--detour", "0.5", "--from-stable"], "--detour and --from-stable: .* leave one out"),
        (["--detour", "0.5", "--lr-scheduler-type", "linear"], "--detour 0.5: .* leave --lr-scheduler-type out"),
        (["--from-stable", "--set", "mask_rate=[0.4, 0.3]"], "--from-stable: recipe tiny has phases or mask rates"),
        (["--from-stable", "--set", "phases=[{steps: 1, length: 64, examples: 4}]"], "--from-stable: .* single step"),
        (
            ["--detour", "0.5", "--objective", "retromae"],
            "--detour 0.5: it is for .*, objective mlm, and this one is retromae",
        ),
    ],
)
def test_what_a_detour_refuses(words, named, folder, capsys):
    assert adapt(folder, checkpoint(folder, "bert"), "run", *words) == 2
    assert re.search(named.replace("(0, 1)", r"\(0, 1\)"), capsys.readouterr().err)


def test_a_detour_without_a_recipe_is_resumed_and_extended_as_it_was_begun(folder, capsys):
    source = checkpoint(folder, "bert")

    def run(*words):
        text = ["--corpus", str(folder / "domain.txt"), "--validation-share", "0.2", "--disable-tqdm", "True"]
        return main(["adapt", source, *text, "--output", str(folder / "run"), *words])

    assert run("--detour", "0.5", "--max-steps", "6") == 0
    assert [phase["steps"] for phase in phases_of(folder / "run")[0]] == [3, 3]
    for words in ([], ["--from-stable"]):
        assert run(*words, "--max-steps", "8") == 2
        assert "begun" in capsys.readouterr().err or words == []
    assert run("--detour", "0.5", "--max-steps", "8") == 0
    first, second = phases_of(folder / "run")[0]
    assert (first["steps"], second["steps"], first["masking"]) == (3, 5, {"next_token": True})


def test_a_recipe_of_next_tokens_is_kept_and_one_of_distillation_is_not(folder, capsys):
    source = checkpoint(folder, "bert")
    assert adapt(folder, source, "run", "--plan", "--set", "objective=clm") == 0
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "objective": "clm"}), encoding="utf-8")
    assert adapt(folder, source, "run", "--plan") == 0
    assert capsys.readouterr().out.count(": bert, clm, ") == 2
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "objective": "distillation"}), encoding="utf-8")
    assert adapt(folder, source, "run", "--plan") == 0
    assert ": bert, mlm, " in capsys.readouterr().out
