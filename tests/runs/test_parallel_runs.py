"""Runs on text of two languages and their translations: what reaches the model, and what is refused."""

import json

import pytest
import yaml

from hf_encoders import prepare_parallel_corpus
from hf_encoders.cli import main
from hf_encoders.runs.recipe import recipe_of
from hf_encoders.runs.run import Run
from hf_encoders.runs.sources import Sources


RECIPES = {
    "roberta": {
        "num_hidden_layers": 1,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "hidden_dropout_prob": 0.0,
    },
    "xlm": {"n_layers": 1, "emb_dim": 12, "n_heads": 3, "dropout": 0.0},
}


def recipe_fields(family, **fields):
    return {
        "family": family,
        "objective": "mlm",
        "model": RECIPES[family],
        "tokenizer": {"vocab_size": 100},
        "sources": {"alpha": 0.5},
        "phases": [{"steps": 4, "length": 24, "examples": 8}],
        "training": {"learning_rate": 0.01},
        **fields,
    }


@pytest.fixture
def words(tokenizer, tmp_path):
    """The words of `--corpus` for text of two languages and a parallel corpus, and the tokenizer's folder."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for name, first in (("en", 5), ("zh", 30)):
        documents = (f"w{first + i % 20} w{first + i % 7}\nw{first + i % 3}" for i in range(40))
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))
    (tmp_path / "pairs.tsv").write_text("".join(f"w{5 + i % 20} w9\tw{30 + i % 20} w34\n" for i in range(40)))
    prepare_parallel_corpus(
        [tmp_path / "pairs.tsv"], tmp_path / "pairs", tokenizer, languages=("en", "zh"), keep_duplicates=True
    )
    return [f"en={tmp_path / 'en.txt'}", f"zh={tmp_path / 'zh.txt'}", f"en-zh={tmp_path / 'pairs'}"]


def opened(fields, words, folder):
    """The run of a recipe, its tokenizer, and its sources to train on."""
    recipe = recipe_of("mine", fields)
    tokenizer, sources = Sources.from_words(words).open(recipe, str(folder / "tokenizer"), folder / "run")
    run = Run(recipe, folder / "run", {"use_cpu": True})
    return run, tokenizer, sources.divided(run.objective, 0.2, 0)[0]


def test_positions_restart_in_the_pairs_of_a_run_and_begin_where_the_family_counts_from(words, tmp_path):
    run, tokenizer, sources = opened(recipe_fields("roberta"), words, tmp_path)
    batch = run.collator(tokenizer, sources)(run.examples(sources)[0])
    first = tokenizer.pad_token_id + 1
    starts = (batch["position_ids"] == first).sum()
    assert int(batch["position_ids"].min()) == first and "langs" not in batch
    assert len(batch["cu_seq_lens_q"]) - 1 < int(starts) <= 2 * (len(batch["cu_seq_lens_q"]) - 1)
    text = {name: source for name, source in sources.items() if not source.is_parallel}
    assert "position_ids" not in run.collator(tokenizer, text)(run.examples(text)[0])


def test_pairs_have_two_languages_and_text_has_one(words, tmp_path):
    run, tokenizer, sources = opened(recipe_fields("xlm"), words, tmp_path)
    config = run.model_config(tokenizer, sources)
    assert (config.n_langs, config.lang2id) == (2, {"en": 0, "zh": 1})
    batch = run.collator(tokenizer, sources)(run.examples(sources)[0])
    original = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    is_text = original >= 5
    assert is_text.sum() > 20 and {0, 1} == set(batch["langs"][0].tolist())
    assert ((original >= 30) == (batch["langs"] == 1))[is_text].all()
    alone, _, english = opened(recipe_fields("xlm"), words[:1], tmp_path)
    assert "langs" not in alone.collator(tokenizer, english)(alone.examples(english)[0])


def test_what_a_run_cannot_do_with_translations(words, tmp_path):
    model = {**RECIPES["roberta"], "position_embedding_type": "relative_key"}
    run, tokenizer, sources = opened(recipe_fields("roberta", model=model), words, tmp_path)
    with pytest.raises(ValueError, match="model: a roberta of distances counts positions on through a pair"):
        run.model_config(tokenizer, sources)
    model = {**RECIPES["roberta"], "type_vocab_size": 2}
    fields = recipe_fields("roberta", model=model) | {"family": "bert", "objective": "nsp"}
    run, _, sources = opened(fields, words, tmp_path)
    with pytest.raises(ValueError, match="objective nsp: the corpus en-zh is parallel text"):
        run.examples(sources)
    model = {**RECIPES["xlm"], "n_langs": 1}
    run, tokenizer, sources = opened(recipe_fields("xlm", model=model), words, tmp_path)
    with pytest.raises(ValueError, match="lang2id=.* must give each language an id of its own below n_langs=1"):
        run.model_config(tokenizer, sources)


def test_models_with_languages_have_those_of_the_text(words, tmp_path):
    """No source becomes English because nothing says its language."""
    recipe = recipe_of("mine", recipe_fields("xlm"))
    paths = [word.replace("zh=", "wiki=") if word.startswith("zh=") else word for word in words]
    with pytest.raises(
        ValueError, match="--language is missing for --corpus wiki=..., .* xlm .*: give --language wiki=CODE"
    ):
        Sources.from_words(paths).check_recipe(recipe)
    Sources.from_words(paths, ["wiki=zh"]).check_recipe(recipe)
    Sources.from_words(paths, ["zh"]).check_recipe(recipe)
    Sources.from_words(paths).check_recipe(recipe_of("mine", recipe_fields("roberta")))

    fields = recipe_fields("xlm", model={**RECIPES["xlm"], "n_langs": 2, "lang2id": {"en": 0, "fr": 1}})
    run, tokenizer, sources = opened(fields, words, tmp_path)
    with pytest.raises(ValueError, match="none of 'zh', the language of --corpus (zh|en-zh)=.*--language"):
        run.model_config(tokenizer, sources)
    with pytest.raises(ValueError, match="--corpus names no source.*NAME=PATH"):
        run.model_config(tokenizer, sources["en"].documents)


@pytest.mark.slow
def test_the_command_trains_on_text_and_translations(words, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe_fields("xlm")))
    status = main(
        ["pretrain", str(tmp_path / "mine.yaml"), "--corpus", *words, "--tokenizer", str(tmp_path / "tokenizer")]
        + ["--output", str(tmp_path / "run"), "--validation-share", "0.2", "--use_cpu", "True", "--eval-steps", "2"]
        + ["--disable_tqdm", "True"]
    )
    assert status == 0, capsys.readouterr().err
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    evaluated = [entry for entry in history if "eval_en-zh_mlm_loss" in entry]
    assert evaluated and {"eval_en_mlm_loss", "eval_zh_mlm_loss", "eval_mlm_loss"} <= evaluated[-1].keys()
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["lang2id"] == {"en": 0, "zh": 1}
