"""Embeddings of many texts are those of each text alone: in their order, in batches of any size, without padding."""

import accelerate
import datasets
import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_encoders
from hf_encoders import encode
from hf_encoders.evaluation.embeddings import pooled
from tests.evaluation.models import SENTENCES
from tests.hub.tiny_checkpoints import BERT, FAMILIES, ROBERTA, TEXTS, Family, built_in, make_model, make_tokenizer
from tests.models.tiny import LANGUAGES
from tests.training.on_cuda import CUDA, CountedWaits


ALL = [*SENTENCES, "A long, long day.", "The mat, a cat and a dog."]  # not sorted by length
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def make_pair(family: Family, head: str = "AutoModel") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    fields = LANGUAGES if hasattr(family.config_class, "lang2id") else {}
    return make_model(family, head, **fields), make_tokenizer(family)


def one_at_a_time(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], langs: list[int] | None = None
) -> list[torch.Tensor]:
    """All states of each text, with what the tokenizer returns; `(tokens, D)` each."""
    states = []
    for number, text in enumerate(texts):
        inputs = dict(tokenizer(text, return_tensors="pt"))
        if langs is not None:
            inputs["langs"] = torch.full_like(inputs["input_ids"], langs[number])
        with torch.no_grad():
            states.append(model(**inputs).last_hidden_state[0].float())
    return states


def assert_equal(found: list[torch.Tensor] | torch.Tensor, expected: list[torch.Tensor], tolerance: float = 1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("max_tokens", [1, 40, None])
@each_family
def test_each_text_is_as_if_it_were_alone(family: Family, max_tokens: int | None) -> None:
    model, tokenizer = make_pair(family)
    states = one_at_a_time(model, tokenizer, ALL)
    budget = {"max_tokens": max_tokens}
    assert_equal(encode(model, tokenizer, ALL, **budget), [one.mean(dim=0) for one in states])
    assert_equal(encode(model, tokenizer, ALL, pooling="tokens", **budget), states)
    ids = [tokenizer(text)["input_ids"] for text in ALL]
    place = -1 if ids[0][-1] == tokenizer.cls_token_id != ids[0][0] else 0
    assert all(row[place] == tokenizer.cls_token_id for row in ids) and (place == -1) == (family.name == "xlnet")
    assert_equal(encode(model, tokenizer, ALL, pooling="cls", **budget), [one[place] for one in states])
    assert len({tuple(one.mean(dim=0).tolist()) for one in states}) >= len(ALL) - 1  # a mix-up would be seen


@each_family
def test_truncated_texts_keep_their_special_tokens(family: Family) -> None:
    model, tokenizer = make_pair(family)
    cut = [tokenizer(text, truncation=True, max_length=5, return_tensors="pt") for text in ALL]
    with torch.no_grad():
        expected = [model(**inputs).last_hidden_state[0].mean(dim=0) for inputs in cut]
    assert_equal(encode(model, tokenizer, ALL, max_length=5), expected)


def test_no_padding_is_computed_and_batches_are_full() -> None:
    model, tokenizer = make_pair(BERT)
    lengths = [len(tokenizer(text)["input_ids"]) for text in ALL]
    sizes = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    encode(model, tokenizer, ALL, max_tokens=50)
    assert sum(tokens for _, tokens in sizes) == sum(lengths) and {rows for rows, _ in sizes} == {1}
    assert all(tokens > 50 - max(lengths) for _, tokens in sizes[:-1]) and max(tokens for _, tokens in sizes) <= 50


def test_languages_of_the_texts() -> None:
    (family,) = [one for one in FAMILIES if hasattr(one.config_class, "lang2id")]
    model, tokenizer = make_pair(family)
    names = ["de", "en", "zh", "de", "zh", "en", "de", "zh"]
    expected = one_at_a_time(model, tokenizer, ALL, [LANGUAGES["lang2id"][name] for name in names])
    assert_equal(encode(model, tokenizer, ALL, pooling="tokens", max_tokens=40, languages=names), expected)
    default = encode(model, tokenizer, ALL)
    assert torch.equal(default, encode(model, tokenizer, ALL, languages=LANGUAGES["default_lang"]))
    assert not torch.equal(default, encode(model, tokenizer, ALL, languages="en"))
    for value, message in (("fr", "'fr'.*de, en, zh"), (["en", "de"], "2 names for 8"), ([None] * 8, "NoneType")):
        with pytest.raises(ValueError, match=f"languages.*{message}"):
            encode(model, tokenizer, ALL, languages=value)
    assert_equal(encode(model, tokenizer, ALL, pooling="tokens", languages=np.array(names)), expected)
    model.config.default_lang = None
    with pytest.raises(ValueError, match="languages is a NoneType"):
        encode(model, tokenizer, ALL)


@pytest.mark.parametrize("head", ["AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
def test_a_head_is_left_out_and_modes_are_restored(head: str) -> None:
    model, tokenizer = make_pair(BERT, head)
    expected = one_at_a_time(model.base_model, tokenizer, ALL)
    model.train()
    model.base_model.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    found = encode(model, tokenizer, ALL, pooling="tokens")
    assert_equal(found, expected)
    assert [module.training for module in model.modules()] == modes and not found[0].requires_grad


@pytest.mark.parametrize("family", [BERT, ROBERTA], ids=lambda family: family.name)
def test_weights_in_16_and_8_bits(family: Family) -> None:
    """As of a text alone: 8 bits quantise each token by itself; 16 bits round differently in other batches."""
    model, tokenizer = make_pair(family)
    exact = encode(model, tokenizer, ALL)
    half = make_pair(family)[0].bfloat16()
    found = encode(half, tokenizer, ALL)
    assert found.dtype == torch.float32 and 0 < (found - exact).abs().max() < 0.05
    assert_equal(found, [one.mean(dim=0) for one in one_at_a_time(half, tokenizer, ALL)], tolerance=0.02)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    found = encode(model, tokenizer, ALL)
    assert 0 < (found - exact).abs().max() < 0.1
    assert_equal(found, [one.mean(dim=0) for one in one_at_a_time(model, tokenizer, ALL)])


@pytest.mark.filterwarnings("ignore")  # of accelerate
def test_offloaded_weights() -> None:
    model, tokenizer = make_pair(BERT)
    expected = encode(model, tokenizer, ALL)
    accelerate.cpu_offload(model, execution_device="cpu")
    assert model.device.type == "meta"
    torch.testing.assert_close(encode(model, tokenizer, ALL), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of peft
@pytest.mark.parametrize("head", ["AutoModel", "AutoModelForMaskedLM"])
def test_adapters_of_layers_work_and_prompts_are_refused(head: str) -> None:
    """Prompts are put before the input of a padded batch."""
    model, tokenizer = make_pair(BERT, head)
    before = encode(model, tokenizer, ALL)
    adapted = get_peft_model(model, LoraConfig(target_modules=["query", "dense"], init_lora_weights=False)).eval()
    after = encode(adapted, tokenizer, ALL)
    assert (after - before).abs().max() > 0.1
    encoder = adapted if head == "AutoModel" else model.base_model
    assert_equal(after, [state.mean(dim=0) for state in one_at_a_time(encoder, tokenizer, ALL)])
    prompts = PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    with pytest.raises(ValueError, match="prompts.*PromptTuningConfig"):
        encode(get_peft_model(make_pair(BERT)[0], prompts), tokenizer, ALL)


def test_lone_surrogates_are_replaced() -> None:
    model, tokenizer = make_pair(BERT)
    found = encode(model, tokenizer, ["alpha \ud800 beta", "alpha \ufffd beta"])
    assert torch.equal(found[0], found[1])


def test_the_classification_token_of_xlms_own_tokenizer_is_the_first() -> None:
    """It writes `<s> text </s>`, and calls `</s>` both classification token and separator."""
    model, tokenizer = make_pair(BERT)
    expected = encode(model, tokenizer, ALL, pooling="cls")
    tokenizer.bos_token, tokenizer.cls_token = tokenizer.cls_token, tokenizer.sep_token
    torch.testing.assert_close(encode(model, tokenizer, ALL, pooling="cls"), expected)


class OnMPS(torch.Tensor):
    """A tensor that says it is on MPS, where torch has no `segment_reduce`."""

    device = torch.device("mps")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert func is not torch.segment_reduce
        return (
            args[0].as_subclass(torch.Tensor)
            if func is torch.Tensor.cpu
            else super().__torch_function__(func, types, args)
        )


def test_means_are_computed_on_the_cpu_for_mps() -> None:
    states, bounds = torch.rand(5, 3), torch.tensor([0, 2, 5])
    means = pooled(states.as_subclass(OnMPS), bounds.as_subclass(OnMPS))
    torch.testing.assert_close(means, torch.stack([states[:2].mean(dim=0), states[2:].mean(dim=0)]))


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens"])
def test_a_batch_on_cuda_is_waited_for_when_the_next_one_is_queued(
    pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors on the CPU say that they are on CUDA."""
    model, tokenizer = make_pair(BERT)
    model.set_attn_implementation("eager")
    options = {"pooling": pooling, "max_tokens": 30, "progress": False}
    expected, happened = encode(model, tokenizer, ALL, **options), []

    class Stream:
        def __init__(self, device: torch.device):
            happened.append("queued")

        def record_event(self) -> "Stream":
            return self

        def synchronize(self) -> None:
            happened.append("waited for")

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(type(model), "device", CUDA)
    with CountedWaits() as mode:
        found = encode(model, tokenizer, ALL, **options)
    assert mode.waits == {}
    batches = len(happened) // 2
    assert batches > 2 and happened == ["queued", *["queued", "waited for"] * (batches - 1), "waited for"]
    assert_equal(found, list(expected))


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model, tokenizer = make_pair(BERT)
    model.train().encoder.layer[1].register_forward_hook(lambda *inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encode(model, tokenizer, TEXTS)
    assert model.training


@pytest.mark.parametrize("is_remote", [False, True], ids=["package", "remote code"])
def test_compiled_models_run_what_they_can(is_remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's own code is compiled whole, which is of no use here; it is the package's class, unwrapped."""
    if is_remote:
        monkeypatch.setattr(hf_encoders.HfeBertModel, "forward", hf_encoders.HfeBertModel.forward.__wrapped__)
    model, tokenizer = make_pair(BERT)
    expected, graphs = encode(model, tokenizer, ALL), []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    found = encode(torch.compile(model, backend=keep), tokenizer, ALL, max_tokens=40)
    assert_equal(found, expected)
    assert len(graphs) == (0 if is_remote else 1)
    torch._dynamo.reset()


def test_what_holds_strings_will_do() -> None:
    model, tokenizer = make_pair(BERT)
    expected = encode(model, tokenizer, list(TEXTS))
    column = datasets.Dataset.from_dict({"text": TEXTS})["text"]
    for texts in (TEXTS, np.array(TEXTS), (text for text in TEXTS), column):
        assert torch.equal(encode(model, tokenizer, texts, progress=False), expected)
    assert "encode" in hf_encoders.__all__


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ([], {}, "texts is empty"),
        ("The cat", {}, "texts is a str"),
        (None, {}, "texts is a NoneType"),
        (["The cat", None], {}, r"texts\[1\] is a NoneType"),
        (["The cat", ""], {}, r"texts\[1\]='' has no tokens"),
        ([" " * 100_000], {}, r"texts\[0\]=' {12}\.\.\. {13}' has no tokens"),
        (["cat", "cat " * 42], {}, r"texts\[1\] has 44 tokens.*max_length=43"),
        (["cat"], {"max_length": 44}, "max_length=44.*from 3 to 43"),
        (["cat"], {"max_length": 2}, "max_length=2.*from 3 to 43"),
        (["cat"], {"max_tokens": 0}, "max_tokens=0.*at least 1"),
        (["cat"], {"pooling": "max"}, "pooling='max'.*mean, cls, tokens"),
        (["cat"], {"languages": "en"}, "languages='en'"),
    ],
)
def test_wrong_input_is_a_value_error(texts: object, arguments: dict, message: str) -> None:
    model, tokenizer = make_pair(BERT)
    model.register_forward_pre_hook(lambda *inputs: pytest.fail("computed"))
    with pytest.raises(ValueError, match=message):
        encode(model, tokenizer, texts, **arguments)


def test_wrong_models_and_tokenizers_are_value_errors(tokenizer: PreTrainedTokenizerBase) -> None:
    model, own = make_pair(BERT)
    stock_class = getattr(transformers, built_in(BERT, "AutoModel"))
    stock = stock_class(stock_class.config_class(hidden_size=12, num_hidden_layers=1, num_attention_heads=2))
    for wrong_model, wrong_tokenizer, texts, options, message in (
        (stock, own, TEXTS, {}, "model is a BertModel"),
        ("bert-base-uncased", own, TEXTS, {}, "model is a str"),
        (model, "bert-base-uncased", TEXTS, {}, "tokenizer is 'bert-base-uncased'"),
        (model, tokenizer, ["w59"], {}, "id 59.*vocab_size=19"),
        (model, tokenizer, ["w7"], {"pooling": "cls"}, "pooling='cls'.*no cls_token"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(wrong_model, wrong_tokenizer, texts, **options)
