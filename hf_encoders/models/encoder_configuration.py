"""Fields, checks and file format that all configurations share."""

import difflib
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import CONFIG_NAME, cached_file, logging


OLDEST_TRANSFORMERS = (5, 14)
# Before anything that older versions lack, such as `strict`, which family files import from here.
if tuple(map(int, transformers.__version__.split(".")[:2])) < OLDEST_TRANSFORMERS:
    raise ImportError(
        f"the code of this checkpoint needs transformers {'.'.join(map(str, OLDEST_TRANSFORMERS))} or later, and this "
        f"is {transformers.__version__}: upgrade, or leave out trust_remote_code=True, for a pipeline too: "
        "transformers' own class loads the same files (those with relative positions excepted)."
    )
from huggingface_hub.dataclasses import strict  # noqa: E402


logger = logging.get_logger(__name__)

# transformers 5 has no pipeline for these heads; it runs the one that config.json names, from the checkpoint.
ANSWERING_PIPELINE = {
    "question-answering": {
        "impl": "question_answering_pipeline.HfeQuestionAnsweringPipeline",
        "pt": ["AutoModelForQuestionAnswering"],
    }
}
PIPELINE_FILE = "question_answering_pipeline.py"  # no modeling file imports it
POSITION_EMBEDDING_TYPES = ("absolute", "relative_key", "relative_key_query")
FROM_FILE = "_from_file"  # marks the arguments that a file has
SAME_WORD = 0.92  # ratio of `difflib`: hiden_size is hidden_size, num_layers is not the name of a field
FINE_TUNING_HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


def auto_map(family: str, prefix: str, *heads: str, pretraining: str = "PreTraining") -> dict[str, str]:
    """`{Auto class: file.Class}` of a family; `heads` are those that not every family has.

    >>> auto_map("bert", "HfeBert")["AutoModelForMaskedLM"]
    'modeling_bert.HfeBertForMaskedLM'
    """
    model = f"modeling_{family}.{prefix}"
    names = {"AutoConfig": f"configuration_{family}.{prefix}Config", "AutoModel": f"{model}Model"}
    names["AutoModelForPreTraining"] = f"{model}For{pretraining}"
    return names | {f"AutoModelFor{head}": f"{model}For{head}" for head in ("MaskedLM", *heads, *FINE_TUNING_HEADS)}


@strict
class EncoderConfig(transformers.PreTrainedConfig):
    r"""Base of the family configurations; fields have the names, types and meanings of transformers' own.

    Here are the fields that all families have. The others go by the family's own names, those of BERT in
    `BertFieldsConfig`. The shared blocks read BERT's names: a family with other ones has an `attribute_map` from
    BERT's to its own, and properties for what is no field of it.

    Args:
        vocab_size (`int`): V, number of token ids.
        max_position_embeddings (`int`): rows of the position table.
        layer_norm_eps (`float`): epsilon of every LayerNorm.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): special ids.
        tie_word_embeddings (`bool`): whether the MLM decoder is the word embedding.
        position_embedding_type (`str`): `absolute`, or trainable relative positions `relative_key` (Shaw et al. 2018)
            or `relative_key_query` (Huang et al. 2020). transformers 5 has none, so `model_type` is another on disk.

    Raises:
        ValueError: for a value out of range or a combination that cannot be built; names the field and the remedy.
    """

    # `{Auto class: file.Class}` of the family, written to every config.json so that each Auto class loads.
    AUTO_MAP: ClassVar[dict[str, str]] = {}
    _auto_class: ClassVar[str | None] = "AutoConfig"  # saving copies the code beside config.json
    # Of checkpoints that are of the family in all but name and tokenizer, with its class.
    OTHER_MODEL_TYPES: ClassVar[dict[str, str]] = {}
    TOKENIZER_CLASS: ClassVar[str] = ""
    SUBMODELS: ClassVar[tuple[str, ...]] = ()  # folders of a checkpoint with other models that were trained with it
    ABSENT: ClassVar[dict[str, str]] = {}  # BERT's fields that are none here -> why; refused with other values
    LEAST_TYPES: ClassVar[int] = 1  # `type_vocab_size`
    LIMITS_LENGTH: ClassVar[bool] = True  # whether `max_position_embeddings` is the most that can be read
    UNDECLARED: ClassVar[tuple[str, ...]] = ()  # fields that transformers' class reads without declaring them
    PHASE_FIELDS: ClassVar[tuple[str, ...]] = ()  # that a phase of a run may change: none that decides a shape
    STUDENT_OF: ClassVar[tuple[str, ...]] = ()  # families whose students are of this one by default
    HEAD_DROPOUT_FIELD: ClassVar[str] = "hidden_dropout_prob"  # of fine-tuning heads; None means `hidden_dropout_prob`
    VOCABULARY_KIND: ClassVar[str] = ""  # wordpiece, bpe (byte-level), suffix-bpe (`</w>` ends a word) or unigram
    # Special tokens at the beginning and at the end of a vocabulary, in the order of their ids: roles, or the token
    # itself in angle brackets.
    FIRST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("pad", "unk", "cls", "sep", "mask")
    LAST_SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ()
    # Statistics in the heads' outputs that Trainer must not collect as predictions.
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["mlm_loss", "pair_loss", "mlm", "pair", "ce", "cos"]

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    position_embedding_type: str = "absolute"

    def __post_init__(self, **kwargs: Any):
        """Check the fields and complete `auto_map`."""
        for decoder_field in ("is_decoder", "add_cross_attention"):
            if kwargs.get(decoder_field):
                raise ValueError(
                    f"{decoder_field}=True: {type(self).__name__} is the configuration of an encoder. Use "
                    "transformers' own class for a decoder."
                )
        if layers := kwargs.get("combined_layers"):
            raise ValueError(f"combined_layers={layers} is not a field: see examples/combine_layers.py.")
        if self.is_native:  # transformers' own classes ask; those that cannot compute it are to fail
            kwargs = {"is_decoder": False, "add_cross_attention": False, **kwargs}
        if kwargs.get("model_type") == f"hfe_{type(self).model_type}":  # written by `to_dict`
            del kwargs["model_type"]
        absent = {name: kwargs.pop(name) for name in self.ABSENT if name in kwargs}
        known = [*(field.name for field in fields(self)), *self.attribute_map]
        # What a user types: files of any age load, and what they and `to_dict` have beside the fields is kept.
        is_written = kwargs.pop(FROM_FILE, False) or self.transformers_version is not None
        typed = set() if is_written else kwargs.keys() - self.attribute_map
        for name in typed:
            if not name.startswith("_") and (meant := difflib.get_close_matches(name, known, n=1, cutoff=SAME_WORD)):
                raise ValueError(f"{name} is not a field of {type(self).__name__}: did you mean {meant[0]}?")
        kwargs.setdefault("tokenizer_class", self.TOKENIZER_CLASS)
        super().__post_init__(**kwargs)
        for name, value in absent.items():
            if value != getattr(self, name):
                raise ValueError(f"{name}={value!r}: {self.ABSENT[name]}: leave it out.")
        self.auto_map = {**(getattr(self, "auto_map", None) or {}), **self.AUTO_MAP}
        self._check()

    def _check(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            self._require(name, getattr(self, name) > 0, "must be at least 1")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", self.HEAD_DROPOUT_FIELD):
            value = getattr(self, name)
            self._require(name, value is None or 0 <= value < 1, "must be a probability in [0, 1)")
        self._require("hidden_act", self.hidden_act in ACT2FN, f"must be one of {', '.join(ACT2FN)}")
        is_known = self.position_embedding_type in POSITION_EMBEDDING_TYPES
        self._require("position_embedding_type", is_known, f"must be one of {', '.join(POSITION_EMBEDDING_TYPES)}")
        for name, least in (("max_position_embeddings", 1), ("type_vocab_size", self.LEAST_TYPES)):
            self._require(name, getattr(self, name) >= least, f"must be at least {least}")
        is_id = self.pad_token_id is None or 0 <= self.pad_token_id < self.vocab_size
        self._require("pad_token_id", is_id, f"must be an id below vocab_size={self.vocab_size}, or None")

    def _require(self, name: str, condition: bool, rule: str) -> None:
        if not condition:
            raise ValueError(f"{self.own_name(name)}={getattr(self, name)!r} {rule}.")

    @classmethod
    def own_name(cls, name: str) -> str:
        """Return the family's name of a field that BERT has: `emb_dim` for XLM's `hidden_size`."""
        return cls.attribute_map.get(name, name)

    @property
    def extra_ids(self) -> dict[str, int]:
        """Arguments of `forward` with one more id per token, and how many ids there are; for probes of a model."""
        return {"token_type_ids": self.type_vocab_size}

    @property
    def required_ids(self) -> dict[str, str]:
        """Name those of `extra_ids` that `forward` has no default for, with the field that sets one."""
        return {}

    def fields_of_layers(self, layers: list[int]) -> dict[str, Any]:
        """Return the fields of a model of some of the layers that say something of each; ValueError for others."""
        return {}

    @property
    def languages(self) -> dict[str, int] | None:
        """The id of each language, for `langs` of `forward`; None if the model has no language embeddings."""
        return None

    @classmethod
    def language_fields(cls, names: list[str]) -> dict[str, Any]:
        """Return the fields of a model with embeddings of the languages `names`, if the family has any."""
        return {}

    @property
    def has_position_table(self) -> bool:
        """Return whether positions are rows of a table, `max_position_embeddings`."""
        return self.position_embedding_type == "absolute"

    @property
    def head_dropout(self) -> float:
        """Dropout probability before a task's classifier."""
        dropout = getattr(self, self.HEAD_DROPOUT_FIELD)
        return self.hidden_dropout_prob if dropout is None else dropout

    @property
    def num_layers_passed(self) -> int:
        """Number of layers that a token passes through."""
        return self.num_hidden_layers

    @classmethod
    def position_rows(cls, max_length: int, pad_token_id: int) -> int:
        """`max_position_embeddings` for sequences of `max_length` tokens."""
        return max_length

    @property
    def is_native(self) -> bool:
        """Return whether transformers has a class of the same `model_type`, and it computes the same function."""
        return self.model_type in CONFIG_MAPPING_NAMES and not self.fields_beyond_native

    @property
    def fields_beyond_native(self) -> dict[str, Any]:
        """Fields, with their values, that transformers' own class does not support."""
        is_native = self.position_embedding_type == "absolute"
        return {} if is_native else {"position_embedding_type": self.position_embedding_type}

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, with what other readers of config.json need.

        `architectures` names transformers' own class, which any server or exporter knows; `model_type` changes where
        that class would compute something else.
        """
        output = super().to_dict()
        if self.is_native:
            if output.get("architectures"):
                output["architectures"] = [name.removeprefix("Hfe") for name in output["architectures"]]
        else:
            output["model_type"] = f"hfe_{type(self).model_type}"
        pipelines = dict(output.get("custom_pipelines") or {})
        pipelines.pop("question-answering", None)
        if _answers_questions(output.get("architectures")):
            pipelines |= ANSWERING_PIPELINE
        if pipelines or "custom_pipelines" in output:
            output["custom_pipelines"] = pipelines
        return output

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with the file of the pipeline for a question-answering head."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if not _answers_questions(self.architectures):
            return
        source = Path(__file__).with_name(PIPELINE_FILE)
        try:
            if not source.is_file():  # transformers' cache of a checkpoint's code has what modeling files import
                revision = getattr(self, "_commit_hash", None)
                source = Path(cached_file(self._name_or_path, PIPELINE_FILE, revision=revision))
            Path(save_directory, PIPELINE_FILE).write_bytes(source.read_bytes())
        except OSError as error:
            logger.warning(f"No pipeline: save where hf_encoders is installed to add {PIPELINE_FILE} ({error}).")
            file = Path(save_directory, CONFIG_NAME)
            written = json.loads(file.read_text(encoding="utf-8")) | {"custom_pipelines": {}}
            file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def model_types(cls) -> tuple[str, ...]:
        """Return the `model_type` of the files that the class reads: `to_dict` writes the second one beyond native."""
        return (cls.model_type, f"hfe_{cls.model_type}", *cls.OTHER_MODEL_TYPES)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in transformers; also reads the other `model_types`."""
        config_dict, kwargs = super().get_config_dict(*args, **kwargs)
        model_type = config_dict.get("model_type")
        if model_type in cls.OTHER_MODEL_TYPES:
            config_dict.setdefault("tokenizer_class", cls.OTHER_MODEL_TYPES[model_type])
        if model_type in cls.model_types():
            config_dict["model_type"] = cls.model_type
        return config_dict, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers: names that are no fields are kept, however much they look like one."""
        return super().from_dict({**config_dict, FROM_FILE: True}, **kwargs)


@strict
class BertFieldsConfig(EncoderConfig):
    r"""Base of the configurations whose fields have BERT's names. Fields as in `EncoderConfig`, and:

    Args:
        hidden_size (`int`): D, width of the model; a multiple of `num_attention_heads`, checked when a model is built.
        num_hidden_layers, num_attention_heads (`int`): layers that a token passes through, and A.
        intermediate_size (`int`): width inside the feed-forward part.
        hidden_act (`str`): activation, a name in `transformers.activations.ACT2FN`; `gelu` is the erf form, `gelu_new`
            the tanh form of the original BERT and ALBERT code.
        hidden_dropout_prob (`float`): probability in [0, 1) after embeddings and after each sub-layer.
        attention_probs_dropout_prob (`float`): probability in [0, 1) on attention weights.
        type_vocab_size (`int`): rows of the token type table.
        initializer_range (`float`): standard deviation of the normal initialisation.
    """

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    type_vocab_size: int = 2
    initializer_range: float = 0.02


def _answers_questions(architectures: list[str] | None) -> bool:
    # XLM's is called `XLMForQuestionAnsweringSimple`.
    return any("ForQuestionAnswering" in name for name in architectures or ())
