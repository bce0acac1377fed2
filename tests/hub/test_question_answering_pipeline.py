"""The pipeline `question-answering`, gone from transformers 5: from a folder and a hub without the package, and here.

All of it gives the same answers: in a process of its own, of an instance, one by one, and in padded batches.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pytest
import torch
from evaluate import EvaluationModule
from evaluate.evaluator import QuestionAnsweringEvaluator
from huggingface_hub import HfApi
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)

from hf_encoders import HfeBertForMaskedLM, HfeBertForQuestionAnswering, Squad
from hf_encoders.models.question_answering_pipeline import HfeQuestionAnsweringPipeline
from tests.hub.loopback_hub import LoopbackHub, online
from tests.hub.remote_process import run_without_package
from tests.hub.tiny_checkpoints import (
    BERT,
    FAMILIES,
    Family,
    assert_same_answers,
    make_model,
    make_tokenizer,
    save_checkpoint,
)


HEAD = "AutoModelForQuestionAnswering"
CUSTOM = {
    "question-answering": {
        "impl": "question_answering_pipeline.HfeQuestionAnsweringPipeline",
        "pt": ["AutoModelForQuestionAnswering"],
    }
}
EXAMPLES = [
    {"question": "the cat", "context": "A dog, and the cat, slept all day long on the mat. the dog sat on a mat."},
    {"question": "a mat", "context": "the cat"},
]
OPTIONS = {"top_k": 3, "max_seq_len": 30, "doc_stride": 4, "max_question_len": 8, "handle_impossible_answer": True}

ANSWER = """
import transformers
from transformers import pipeline

transformers.logging.disable_progress_bar()
result = {}
for name in argument["sources"]:
    pipe = pipeline("question-answering", model=name, trust_remote_code=True, device="cpu")
    result[name] = {
        "modules": [type(pipe).__module__, type(pipe.model).__module__],
        "answers": [pipe(example, **argument["options"]) for example in argument["examples"]],
    }
    pipe.save_pretrained(argument["targets"][name])
"""


class Remote(NamedTuple):
    """What a process without the package answered, by family and from `user/bert`; and folders that it saved to."""

    folders: dict[str, Path]
    answers: dict[str, dict[str, Any]]
    saved_again: dict[str, Path]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Remote:
    base = tmp_path_factory.mktemp("answers")
    folders = {f.name: save_checkpoint(make_model(f, HEAD), f, base / f.name) for f in FAMILIES}
    names = {str(folder): name for name, folder in folders.items()} | {"user/bert": "user/bert"}
    targets = {source: str(base / "again" / name) for source, name in names.items()}
    argument = {"sources": list(targets), "options": OPTIONS, "examples": EXAMPLES, "targets": targets}
    with LoopbackHub() as hub, online():
        api = HfApi(endpoint=hub.endpoint, token="hf_loopback")
        api.create_repo("user/bert")
        api.upload_folder(repo_id="user/bert", folder_path=folders["bert"])
        found = run_without_package(ANSWER, base / "home", argument, hub.environment(base / "home"))
    answers = {names[source]: answer for source, answer in found.items()}
    return Remote(folders, answers, {names[source]: Path(target) for source, target in targets.items()})


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


def make_pipeline(family: Family, **options: Any) -> HfeQuestionAnsweringPipeline:
    return pipeline_of(make_model(family, HEAD), make_tokenizer(family), **options)


def pipeline_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any
) -> HfeQuestionAnsweringPipeline:
    return HfeQuestionAnsweringPipeline(model=model, tokenizer=tokenizer, device="cpu", **options)


@pytest.mark.processes
def test_pipeline_from_a_folder_runs_the_code_in_it(remote: Remote, family: Family) -> None:
    found = remote.answers[family.name]
    assert all(module.startswith("transformers_modules.") for module in found["modules"])
    assert found["modules"][0].endswith(".question_answering_pipeline")
    expected = [make_pipeline(family)(example, **OPTIONS) for example in EXAMPLES]
    assert [len(answers) for answers in expected] == [3, 3]
    assert_same_answers(found["answers"], expected)


@pytest.mark.processes
def test_folder_saved_by_the_pipeline_elsewhere_is_as_complete(remote: Remote, family: Family) -> None:
    folder, again = remote.folders[family.name], remote.saved_again[family.name]
    assert {path.name for path in again.iterdir()} == {path.name for path in folder.iterdir()}
    assert json.loads((again / "config.json").read_text())["custom_pipelines"] == CUSTOM
    model = AutoModelForQuestionAnswering.from_pretrained(again, config=family.config_class.from_pretrained(again))
    qa = pipeline_of(model, AutoTokenizer.from_pretrained(again))
    assert_same_answers([qa(one, **OPTIONS) for one in EXAMPLES], remote.answers[family.name]["answers"])


@pytest.mark.processes
def test_pipeline_from_a_hub(remote: Remote) -> None:
    """Where transformers looks for the imports of every file, unlike in a folder."""
    found = remote.answers["user/bert"]
    assert all(module.startswith("transformers_modules.user.bert.") for module in found["modules"])
    assert_same_answers(found["answers"], remote.answers["bert"]["answers"])


def test_only_question_answering_heads_name_the_pipeline(tmp_path: Path) -> None:
    """Also where a checkpoint changes its head: config.json is of what was saved."""
    make_model(BERT, HEAD).save_pretrained(tmp_path / "answers")
    masked, answering = HfeBertForMaskedLM, HfeBertForQuestionAnswering
    masked.from_pretrained(tmp_path / "answers").save_pretrained(tmp_path / "masked")
    config = json.loads((tmp_path / "masked" / "config.json").read_text())
    assert not config.get("custom_pipelines")
    assert not (tmp_path / "masked" / "question_answering_pipeline.py").exists()
    answering.from_pretrained(tmp_path / "masked").save_pretrained(tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["custom_pipelines"] == CUSTOM
    assert (tmp_path / "back" / "question_answering_pipeline.py").is_file()


def test_other_pipelines_in_a_configuration_stay() -> None:
    config = make_model(BERT, HEAD, custom_pipelines={"mine": {"impl": "file.Class", "pt": []}}).config
    config.architectures = ["HfeBertForQuestionAnswering"]
    assert config.to_dict()["custom_pipelines"] == {"mine": {"impl": "file.Class", "pt": []}, **CUSTOM}
    config.architectures = ["HfeBertModel"]
    assert list(config.to_dict()["custom_pipelines"]) == ["mine"]


@pytest.mark.processes
def test_without_trust_nothing_of_ours_runs(remote: Remote) -> None:
    with pytest.raises(ValueError, match="requires you to execute the code in the pipeline file"):
        pipeline("question-answering", model=str(remote.folders["bert"]))


def test_registered_task_takes_instances(family: Family) -> None:
    pipe = pipeline(
        "extractive-question-answering", model=make_model(family, HEAD), tokenizer=make_tokenizer(family), device="cpu"
    )
    assert type(pipe) is HfeQuestionAnsweringPipeline
    assert_same_answers(pipe(EXAMPLES, **OPTIONS), [make_pipeline(family)(one, **OPTIONS) for one in EXAMPLES])


def test_every_form_of_input_gives_the_same() -> None:
    pipe = make_pipeline(BERT, **OPTIONS)
    one, other = (pipe(example) for example in EXAMPLES)
    questions, contexts = ([example[name] for example in EXAMPLES] for name in ("question", "context"))
    assert_same_answers(pipe(**EXAMPLES[0]), one)
    assert_same_answers(pipe(EXAMPLES), [one, other])
    assert_same_answers(pipe(tuple(EXAMPLES)), [one, other])
    assert_same_answers(pipe(question=questions, context=contexts), [one, other])
    assert_same_answers(pipe(question=questions[:1], context=contexts[0]), [one])
    assert_same_answers(pipe(question=questions, context=contexts[1])[1], other)
    assert_same_answers(list(pipe(example for example in EXAMPLES)), [one, other])
    assert pipe([]) == []


def test_padded_batches_change_no_answer(family: Family) -> None:
    pipe = make_pipeline(family, **OPTIONS)
    expected = [pipe(example) for example in EXAMPLES * 2]
    for side in ("right", "left"):
        pipe.tokenizer.padding_side = side
        assert_same_answers(pipe(EXAMPLES * 2, batch_size=3), expected)
        assert pipe.tokenizer.padding_side == side


def test_answers_are_places_in_the_context_with_probabilities() -> None:
    pipe = make_pipeline(BERT)
    for example in EXAMPLES:
        answers = pipe(example, top_k=50)
        assert all(answer["answer"] == example["context"][answer["start"] : answer["end"]] for answer in answers)
        assert sum(answer["score"] for answer in answers) == pytest.approx(1)
        assert [answer["score"] for answer in answers] == sorted((a["score"] for a in answers), reverse=True)
        assert set(pipe(example)) == {"score", "start", "end", "answer"}


class FixedScores(torch.nn.Module):
    """A head whose scores are set by hand, by token id."""

    def __init__(self, starts: dict[int, float], ends: dict[int, float]):
        super().__init__()
        self.starts, self.ends = starts, ends

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        scores = [
            torch.tensor([[table.get(token, 0.0) for token in row] for row in input_ids.tolist()])
            for table in (self.starts, self.ends)
        ]
        return type("Scores", (), {"start_logits": scores[0], "end_logits": scores[1]})()


def with_fixed_scores(
    starts: dict[str, float], ends: dict[str, float], **options: Any
) -> HfeQuestionAnsweringPipeline:
    """A pipeline in which words have these scores, others 0."""
    pipe = make_pipeline(BERT, **options)
    numbers = pipe.tokenizer.get_vocab()
    fixed = FixedScores(*({numbers[word]: score for word, score in table.items()} for table in (starts, ends)))
    pipe.model.forward = fixed.forward
    return pipe


def test_options_do_what_they_say() -> None:
    """`cat` begins at 4 and `mat` ends at 22 of the context; scores 3 + 3, and no answer 2.5 + 2.5."""
    words = ({"cat": 3.0, "[CLS]": 2.5}, {"mat": 3.0, "[CLS]": 2.5})
    example = {"question": "dog", "context": "the cat sat on the mat"}
    found = with_fixed_scores(*words)(example)
    assert {**found, "score": 0} == {"score": 0, "start": 4, "end": 22, "answer": "cat sat on the mat"}
    assert with_fixed_scores(*words)(example, max_answer_len=4)["answer"] != "cat sat on the mat"
    for threshold, answer in ((-1.5, ""), (-0.5, "cat sat on the mat"), (0.0, "cat sat on the mat")):
        found = with_fixed_scores(*words)(example, handle_impossible_answer=True, null_threshold=threshold)
        assert found["answer"] == answer
    assert (found["start"], found["end"]) == (4, 22)
    assert with_fixed_scores(*words, top_k=2)(example)[0]["answer"] == "cat sat on the mat"
    assert with_fixed_scores(*words, top_k=2)(example, top_k=1)["answer"] == "cat sat on the mat"


def test_answer_in_the_last_of_many_windows_and_in_none() -> None:
    context = "the dog . " * 30 + "a cat"
    pipe = with_fixed_scores({"cat": 5.0}, {"cat": 5.0}, max_seq_len=12, doc_stride=3)
    assert len(list(pipe.preprocess({"question": "cat", "context": context}, 12, 3))) > 10
    for batch_size in (1, 4):
        found = pipe(question="cat", context=context, batch_size=batch_size)
        assert (found["answer"], found["start"]) == ("cat", 302)
    nothing = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
    assert make_pipeline(BERT)(question="cat", context="\u200b\u200d") == nothing  # no tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "question=.*context="),
        ({"inputs": {"question": "a", "context": "b"}, "question": "a"}, "question=.*context="),
        ({"question": "cat"}, "context is missing"),
        ({"question": ["cat", "dog"], "context": ["a"]}, "question has 2 entries, context 1"),
        ({"inputs": ["cat"]}, "'cat' is not a dict"),
        ({"inputs": {"question": "cat"}}, "context=None"),
        ({"question": " ", "context": "a"}, "question=' '"),
        ({**EXAMPLES[0], "top_k": 0}, "top_k=0"),
        ({**EXAMPLES[0], "max_answer_len": 0}, "max_answer_len=0"),
        ({**EXAMPLES[0], "max_seq_len": 44}, "max_seq_len=44.*43 tokens"),
        ({**EXAMPLES[0], "doc_stride": 40}, "doc_stride=40"),
    ],
)
def test_wrong_inputs_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_pipeline(BERT)(**arguments)


def test_model_of_another_head_is_refused() -> None:
    model = BertForMaskedLM(BertConfig(hidden_size=12, num_attention_heads=2, num_hidden_layers=1, vocab_size=40))
    pipe = HfeQuestionAnsweringPipeline(model=model, tokenizer=make_tokenizer(BERT), max_seq_len=40, device="cpu")
    with pytest.raises(ValueError, match="BertForMaskedLM.*AutoModelForQuestionAnswering"):
        pipe(EXAMPLES[0])


@pytest.mark.parametrize("metric", [Squad(keep_in_memory=True), Squad("v2", keep_in_memory=True)], ids=["v1", "v2"])
def test_evaluator_of_evaluate_works_with_it(metric: EvaluationModule) -> None:
    answers = [{"text": ["the cat"], "answer_start": [11]}, {"text": ["the cat"], "answer_start": [0]}]
    rows = [
        {**one, "id": str(i), "answers": gold} for i, (one, gold) in enumerate(zip(EXAMPLES, answers, strict=True))
    ]
    found = QuestionAnsweringEvaluator(task="extractive-question-answering").compute(
        model_or_pipeline=make_model(BERT, HEAD),
        tokenizer=make_tokenizer(BERT),
        data=datasets.Dataset.from_list(rows),
        metric=metric,
        squad_v2_format=metric.config_name == "v2",
    )
    predicted = make_pipeline(BERT)(EXAMPLES, handle_impossible_answer=metric.config_name == "v2")
    expected = metric.compute(
        references=[{"id": row["id"], "answers": row["answers"]} for row in rows],
        predictions=[
            {"id": str(i), "prediction_text": one["answer"]}
            | ({"no_answer_probability": one["score"]} if metric.config_name == "v2" else {})
            for i, one in enumerate(predicted)
        ],
    )
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@pytest.mark.processes
def test_a_head_trained_where_the_pipeline_is_not_available_names_none(tmp_path):
    source = save_checkpoint(make_model(BERT, "AutoModelForMaskedLM"), BERT, tmp_path / "mlm")
    snippet = """
    from transformers import AutoModelForQuestionAnswering
    model = AutoModelForQuestionAnswering.from_pretrained(argument[0], trust_remote_code=True)
    model.save_pretrained(argument[1])
    """
    run_without_package(snippet, tmp_path / "home", [str(source), str(tmp_path / "answers")])
    config = json.loads((tmp_path / "answers" / "config.json").read_text())
    assert config["custom_pipelines"] == {} and "modeling_bert.py" in {
        p.name for p in (tmp_path / "answers").iterdir()
    }
    assert AutoModelForQuestionAnswering.from_pretrained(tmp_path / "answers").config.model_type == "bert"
