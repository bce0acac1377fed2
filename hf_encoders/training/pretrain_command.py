"""`hf-encoders pretrain RECIPE --corpus DIR --output DIR`: a run from a recipe, planned, resumable, recorded.

RECIPE is one of those below, or a YAML file of your own. DIR of --corpus is a corpus that `hf-encoders corpus` made
(with --tokenizer, the one it was made with), or text: files or folders as for `hf-encoders corpus`; then the recipe's
tokenizer is trained on it, if none is given, and the corpus is prepared in the output folder.

Every field of transformers.TrainingArguments is an option too and goes before the recipe's: --learning_rate 1e-4
--bf16 --report_to tensorboard --push_to_hub ... --max_steps N makes the recipe's run one of N steps: phases and
warm-up keep their shares. --per_device_train_batch_size N is how many examples of the longest phase a device takes at
once; steps keep the recipe's number of examples, by accumulation.

Started again with the same arguments, a run goes on from its newest whole checkpoint. In several processes:
torchrun --nproc_per_node N --no-python hf-encoders pretrain ...
"""

import argparse
import dataclasses
import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import transformers
from accelerate.utils import release_memory
from huggingface_hub import upload_folder
from transformers import HfArgumentParser, PreTrainedTokenizerBase, TrainingArguments, set_seed

from hf_encoders.data.corpus import prepare_corpus, split_train_validation
from hf_encoders.data.corpus.report import REPORT_FILE, CorpusReport
from hf_encoders.data.corpus.segmentation import read_documents, split_sentences
from hf_encoders.data.corpus.sentence_store import SentenceStore
from hf_encoders.data.corpus.settings import tokenizer_fingerprint
from hf_encoders.data.tokenizer_training import train_tokenizer
from hf_encoders.loading import load_tokenizer
from hf_encoders.publishing.checks import CARD_FILE
from hf_encoders.publishing.pretrained_folder import save_pretrained_folder
from hf_encoders.publishing.publish import published_files
from hf_encoders.training.checkpoints import UNFINISHED, problem_of_unfinished, steps_first
from hf_encoders.training.objectives import config_class_of
from hf_encoders.training.out_of_memory import is_out_of_memory
from hf_encoders.training.plan import make_plan
from hf_encoders.training.recipe import TAKEN, Recipe, load_recipe, recipe_names
from hf_encoders.training.run import Division, divide, make_trainer, num_processes, training_arguments
from hf_encoders.training.trainer import PreTrainingTrainer
from hf_encoders.writing import check_folder


RUN_FILE = "run.json"
# Options of `TrainingArguments` that the command reads itself.
OWN = ("max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size")
# Options of `TrainingArguments` that a checkpoint brings along in its optimizer and schedule: going on with others
# would go on with those of the checkpoint, and not say so.
SHAPING = (
    "learning_rate",
    "warmup_steps",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
)
VALIDATION_SHARE = 0.02
# `--push_to_hub` uploads the output folder less what begins with an underscore, and the text is not to be published.
CORPUS = "_corpus"
TOKENIZER_RECIPE = "recipe.json"  # in the folder of a tokenizer that was trained here: what it was made of
UNFINISHED_TOKENIZER = "_tokenizer"
# What a run writes into its folder.
RUN_PARTS = (
    RUN_FILE,
    "tokenizer",
    UNFINISHED_TOKENIZER,
    CORPUS,
    "model",
    "checkpoint-*",
    UNFINISHED,
    "trainer_state.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("recipe", metavar="RECIPE", help=f"{', '.join(recipe_names())}; or a YAML file")
    parser.add_argument(
        "--corpus", required=True, nargs="+", metavar="DIR", help="a prepared corpus, or text files or folders of them"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument("--tokenizer", metavar="DIR_OR_NAME", help="default, for text: trained as the recipe says")
    parser.add_argument(
        "--language", default="en", metavar="CODE", help="language of the text, for sentence splitting and the card"
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        default=VALIDATION_SHARE,
        metavar="X",
        help="share of the documents that is kept apart and evaluated on, in (0, 1) (default: %(default)s)",
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    parser.add_argument("--overwrite", action="store_true", help="remove the run that is in --output first")
    parser.set_defaults(takes_further_options=True)


def run(arguments: argparse.Namespace) -> int:
    """Plan, train, evaluate, save."""
    given = parse_fields(arguments.further_options)
    recipe = load_recipe(arguments.recipe)
    if "max_steps" in given:
        recipe = recipe.of_steps(given["max_steps"])
    split_sentences("", arguments.language)  # refuses what is no language code
    if not 0 < arguments.validation_share < 1:
        raise ValueError(f"--validation-share {arguments.validation_share}: must be above 0 and below 1.")
    if arguments.overwrite and arguments.plan:
        raise ValueError("--overwrite removes a run, and --plan makes none: leave one of them out.")
    processes, halves = num_processes(), bool(given.get("auto_find_batch_size"))
    if halves and processes > 1:
        raise ValueError("--auto_find_batch_size is for one process: give --per_device_train_batch_size instead.")
    division = divide(
        recipe, processes, given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps")
    )
    output = Path(arguments.output)
    check_folder(output, "--output")
    for path in arguments.corpus:
        if not Path(path).exists():
            raise ValueError(
                f"--corpus '{path}' does not exist: check the spelling, and the folder it is relative to."
            )
    fields = {name: value for name, value in given.items() if name not in OWN}
    training = training_arguments(recipe, division, output, fields)
    transformers.logging.set_verbosity_warning()
    is_main = training.process_index == 0
    # torchrun starts the same command again after a crash, to go on.
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if processes > 1 and is_main:
        print(f"The others wait for the corpus at most {training.ddp_timeout} s (--ddp_timeout).", flush=True)
    with training.main_process_first(desc="the corpus"):
        if arguments.overwrite and is_main and not is_restart:
            remove_run(output, arguments)
        tokenizer, documents = open_corpus(arguments, recipe, output)
        facts = run_facts(recipe, documents, tokenizer, training, arguments.validation_share)
        if not arguments.plan:
            is_begun = check_run(output, facts)
            if is_main and not is_begun:
                write_run(output, facts)
    if not arguments.plan and (output / "model" / CARD_FILE).is_file():
        print(f"This run is finished: {output / 'model'}. (--overwrite removes it and begins anew.)", flush=True)
        return 0
    with training.main_process_first(desc="the parts of the corpus"):
        parts = split_train_validation(documents, validation_share=arguments.validation_share, seed=training.seed)
        # Written in one piece here, once: every data set and count that is made of a selection would write it anew.
        parts = tuple(SentenceStore(part).dataset for part in parts)
    while True:
        try:
            set_seed(training.seed)
            trainer = make_trainer(recipe, *parts, tokenizer, training, division)
            if is_main:
                print(make_plan(trainer, recipe, division), flush=True)
            if arguments.plan:
                return 0
            train(trainer, output, "give the same command again" + " without --overwrite" * arguments.overwrite)
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            division = smaller_division(recipe, division, halves, error)
            print(
                f"Out of memory: {division.examples} examples of the longest phase at once from here on.", flush=True
            )
            training = training_arguments(recipe, division, output, fields)
        # Behind the handler, which keeps the error and with it all that was on the device.
        trainer = None
        release_memory()
    finish(trainer, recipe, parts[0], trainer.evaluate(), arguments)
    return 0


def train(trainer: PreTrainingTrainer, output: Path, how_to_resume: str) -> None:
    """Train, from the newest whole checkpoint of this run where there is one."""
    trainer.interruption.how_to_resume = how_to_resume
    # A complete one may have been about to get its name when the run was killed.
    complete = [one for one in steps_first(output / UNFINISHED) if problem_of_unfinished(one) is None]
    has_checkpoints = bool(complete or steps_first(output))
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint or has_checkpoints)


def smaller_division(recipe: Recipe, division: Division, halves: bool, error: Exception) -> Division:
    """Half as many examples at once; steps keep theirs.

    Raises:
        ValueError: with the remedy, if that was not asked for or cannot be.
    """
    fewer = division.examples // 2
    what = f"memory was not enough for {division.examples} examples of {recipe.longest} tokens at once"
    if fewer < 1:
        raise ValueError(f"{what}: use a smaller model, or --activation_checkpointing True.") from error
    if not halves:
        raise ValueError(
            f"{what}: give --per_device_train_batch_size {fewer}, which trains on the same steps, or "
            "--auto_find_batch_size True, which halves by itself."
        ) from error
    return divide(recipe, division.processes, examples=fewer)


def parse_fields(words: list[str]) -> dict[str, Any]:
    """Fields of `TrainingArguments` from the command line, only those that were given.

    >>> parse_fields(["--learning_rate", "1e-3", "--bf16", "--max_steps", "100"])
    {'max_steps': 100, 'learning_rate': 0.001, 'bf16': True}

    Raises:
        ValueError: for an option that there is not or that the recipe decides, and for a wrong value.
    """
    parser = _FieldParser(TrainingArguments, allow_abbrev=False)
    fields = [one.name for one in dataclasses.fields(TrainingArguments) if one.init]
    parser.set_defaults(**dict.fromkeys(fields, _NOT_GIVEN))
    parsed = vars(parser.parse_args(words))
    given = {name: parsed[name] for name in fields if parsed[name] is not _NOT_GIVEN}
    for name in given:
        if name in TAKEN and name not in OWN:
            raise ValueError(f"--{name}: use {TAKEN[name]}.")
    return given


class _NotGiven:
    """Stands for an option that was not on the command line."""


_NOT_GIVEN = _NotGiven()


class _FieldParser(HfArgumentParser):
    """Tells an error instead of ending the process."""

    def error(self, message: str) -> None:
        raise ValueError(f"{message}. See `hf-encoders pretrain --help`, and the fields of TrainingArguments.")


def open_corpus(
    arguments: argparse.Namespace, recipe: Recipe, output: Path
) -> tuple[PreTrainedTokenizerBase, datasets.Dataset]:
    """The prepared corpus and its tokenizer; both are made in the output folder where text was given.

    Raises:
        ValueError: if a prepared corpus comes without its tokenizer, with another one, or with further text.
    """
    paths = [Path(path) for path in arguments.corpus]
    prepared = [path for path in paths if (path / REPORT_FILE).is_file()]
    if prepared and len(paths) > 1:
        raise ValueError(
            f"--corpus: {prepared[0]} is a prepared corpus, which comes alone: prepare one of all the text with "
            "`hf-encoders corpus --input ...`."
        )
    is_prepared = bool(prepared)
    tokenizer = None if arguments.tokenizer is None else load_tokenizer(arguments.tokenizer)
    if not is_prepared:
        if tokenizer is None:
            tokenizer = trained_tokenizer(arguments, recipe, paths, output / "tokenizer")
        corpus = output / CORPUS
        report = prepare_corpus(
            paths, corpus, tokenizer, sentence_splitter=partial(split_sentences, language=arguments.language)
        )
        for warning in report.warnings:
            print(f"warning: {warning}", flush=True)
        return tokenizer, datasets.load_from_disk(str(corpus))
    if tokenizer is None:
        raise ValueError(f"--tokenizer is missing: give the one that the corpus {paths[0]} was made with.")
    made_with = CorpusReport.load(paths[0]).settings["tokenizer"]["fingerprint"]
    if tokenizer_fingerprint(tokenizer) != made_with:
        raise ValueError(
            f"--tokenizer {arguments.tokenizer!r} is not the one that the corpus {paths[0]} was made with: give that "
            "one, or prepare the corpus again."
        )
    return tokenizer, datasets.load_from_disk(str(paths[0]))


def remove_run(output: Path, arguments: argparse.Namespace) -> None:
    """Remove what a run writes into its folder, and nothing else.

    Raises:
        ValueError: before anything is removed, if the new run is to read some of it.
    """
    found = [path for pattern in RUN_PARTS for path in output.glob(pattern)]
    for name in [*arguments.corpus, arguments.tokenizer, arguments.recipe]:
        read = None if name is None else Path(name).resolve()
        if read is not None and any(path.resolve() in (read, *read.parents) for path in found):
            raise ValueError(f"--overwrite would remove {name}, which this run reads: move it out of {output} first.")
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def trained_tokenizer(
    arguments: argparse.Namespace, recipe: Recipe, paths: list[Path], directory: Path
) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, trained on the text once and kept in the run's folder.

    Raises:
        ValueError: if the folder holds one that was made of something else.
    """
    made_of = {"family": recipe.family, **dataclasses.asdict(recipe.tokenizer), "text": [str(path) for path in paths]}
    note = directory / TOKENIZER_RECIPE
    if directory.exists():
        if not note.is_file():
            raise ValueError(
                f"{directory} was not made by this command: give it as --tokenizer, or give another --output."
            )
        if json.loads(note.read_text(encoding="utf-8")) != made_of:
            raise ValueError(f"{directory} was trained for another run: give another --output, or --overwrite.")
        return load_tokenizer(str(directory))
    print(f"Training a tokenizer of {recipe.tokenizer.vocab_size:,} entries ({directory})", flush=True)
    documents = read_documents(paths, sentence_splitter=partial(split_sentences, language=arguments.language))
    tokenizer = train_tokenizer(
        (sentence for document in documents for sentence in document),
        config_class_of(recipe.family),
        recipe.tokenizer.vocab_size,
        recipe.longest,
        lowercase=recipe.tokenizer.lowercase,
        strip_accents=recipe.tokenizer.strip_accents,
    )
    # Whole or not there: a run that was killed meanwhile begins it anew.
    unfinished = directory.with_name(UNFINISHED_TOKENIZER)
    tokenizer.save_pretrained(unfinished)
    (unfinished / TOKENIZER_RECIPE).write_text(json.dumps(made_of, indent=1) + "\n", encoding="utf-8")
    unfinished.rename(directory)
    return tokenizer


def run_facts(
    recipe: Recipe,
    documents: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingArguments,
    validation_share: float,
) -> dict[str, Any]:
    """What makes two runs the same run, as it is read back from `run.json`."""
    facts = {
        "recipe": dataclasses.asdict(recipe),
        "corpus": documents._fingerprint,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "seed": training.seed,
        "validation share": validation_share,
        "training": {name: getattr(training, name) for name in SHAPING},
    }
    return json.loads(json.dumps(facts, default=str))


def write_run(output: Path, facts: dict[str, Any]) -> None:
    """Note what the output folder's run is, whole or not at all."""
    output.mkdir(parents=True, exist_ok=True)
    unfinished = output / f"_{RUN_FILE}"
    unfinished.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(output / RUN_FILE)


def check_run(output: Path, facts: dict[str, Any]) -> bool:
    """Whether the output folder holds this very run, begun.

    Raises:
        ValueError: if it holds another one.
    """
    file = output / RUN_FILE
    if not file.is_file():
        if any(output.glob("checkpoint-*")):
            raise ValueError(f"--output {output} holds checkpoints of another kind of run: give another folder.")
        return False
    before = json.loads(file.read_text(encoding="utf-8"))
    for name, value in facts.items():
        if before.get(name) != value:
            where, old = name, before.get(name)
            if isinstance(value, dict) and isinstance(old, dict):
                where = next((f"{name} ({key})" for key in value if old.get(key) != value[key]), name)
            raise ValueError(
                f"--output {output} holds a run with another {where}: give its own arguments to go on with it, "
                "another folder, or --overwrite to begin anew."
            )
    return True


def finish(
    trainer: PreTrainingTrainer,
    recipe: Recipe,
    documents: datasets.Dataset,
    after: dict[str, float],
    arguments: argparse.Namespace,
) -> None:
    """Save the model with tokenizer, record, curve and card, push it if asked to, and print the figures."""
    directory = Path(arguments.output) / "model"
    trainer.save_state()  # before the card, which says that the run is finished
    save_pretrained_folder(
        directory, trainer, recipe, ", ".join(arguments.corpus), documents, after, arguments.language
    )
    if trainer.args.process_index != 0:
        return
    if trainer.args.push_to_hub:
        upload_folder(
            repo_id=trainer.hub_model_id,
            folder_path=directory,
            allow_patterns=sorted(published_files(directory)),
            commit_message="End of training",
            token=trainer.args.hub_token,
            revision=trainer.args.hub_revision,
        )
    unigram = trainer.health.unigram_cross_entropy
    print(f"\nheld-out: MLM loss {after['eval_mlm_loss']:.3f} (unigram {unigram:.3f}), perplexity", end=" ")
    print(f"{after['eval_perplexity']:.1f}, accuracy {after['eval_mlm_accuracy']:.1%}", end="")
    print(f", pairs {after['eval_pair_accuracy']:.1%}" if "eval_pair_accuracy" in after else "")
    print(f"model, tokenizer, code, record, card, curve: {directory}")
