"""Replaced token detection (ELECTRA, https://arxiv.org/abs/2003.10555, section 2): a generator and a discriminator.

They share all embeddings, as in ELECTRA, or the tables that detection trains a difference from and does not change
(DeBERTa v3, https://arxiv.org/abs/2111.09543, section 3.2).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from hf_encoders.inputs import first_line, is_number
from hf_encoders.loading import load_own_weights
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.models.encoder_losses import ObjectiveSums, chunk_scores, normalised, pair_share_of_batch
from hf_encoders.models.encoder_models import check_ids
from hf_encoders.models.encoder_tokens import on_host, places_of
from hf_encoders.objectives.batch import IGNORED, Row, keep_on_host
from hf_encoders.objectives.dataset import Example, with_options_of
from hf_encoders.objectives.mlm import MASKED_TOKENS, DataCollatorForMaskedLM, MaskedLanguageModelling
from hf_encoders.objectives.objective import LossTerm
from hf_encoders.objectives.randomness import RandomStream, generator
from hf_encoders.registration import config_class_of


GENERATOR_FOLDER = "generator"  # of a checkpoint, `SUBMODELS` of its configuration
# The weight of the discriminator's loss next to the generator's (paper, section 3.2 and table 6).
DETECTED_TOKENS = LossTerm("rtd", "tokens, original or replaced", weight=50.0, task="token-classification")
SHARING = ("all", "gdes", "none")  # of embeddings: all of them, tables with a difference, nothing
# The tables that have one, and the file of a checkpoint with it (`fw_hook` in `DeBERTa/apps/tasks/rtd_task.py` of
# microsoft/DeBERTa); a sum with the generator's table, which the discriminator is saved with, would be rounded.
DISENTANGLED = ("word_embeddings", "position_embeddings")
DIFFERENCES_FILE = "embedding_differences.safetensors"


@dataclass
class ReplacedTokenDetectionOutput(ModelOutput):
    """Output of `ReplacedTokenDetectionModel`.

    Args:
        loss (`torch.Tensor` of shape `()`, *optional*): that of masked tokens and that of detection times its weight,
            each over its own tokens; when `labels` are given.
        logits (`torch.Tensor` of shape `(B, T)`): the discriminator's scores.
        mlm (`ObjectiveSums`, *optional*): sums over the generator's predicted tokens; `nll` with gradient.
        rtd (`DetectionSums`, *optional*): sums over all tokens; `nll` with gradient.
        corrupted_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): the discriminator's input.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mlm: ObjectiveSums | None = None
    rtd: Any = None
    corrupted_ids: torch.Tensor | None = None


class DisentangledEmbedding(nn.Embedding):
    """A discriminator's table: the generator's, without a gradient to it, and a difference, which is trained.

    Args:
        table (`nn.Embedding`): The generator's.
        difference (`torch.Tensor`, *optional*): To begin with; None is zero.
    """

    def __init__(self, table: nn.Embedding, difference: torch.Tensor | None = None):
        difference = torch.zeros_like(table.weight) if difference is None else difference
        super().__init__(*table.weight.shape, padding_idx=table.padding_idx, _weight=difference.detach())
        self._is_hf_initialized = True  # transformers would draw it
        self.tables = (table,)  # no part of this module

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`(...)` -> `(..., E)`."""
        return nn.functional.embedding(ids, self.tables[0].weight.detach()) + super().forward(ids)


class ReplacedTokenDetectionModel(PreTrainedModel):
    """Generator and discriminator, trained together.

    The generator predicts masked tokens. A sample from its scores takes the place of each, and the discriminator tells
    the samples that differ from the original tokens from all other tokens. Sampling has no gradient.

    It is saved as two models of the family: the discriminator, and the generator in the folder `generator`.

    Args:
        config (`EncoderConfig`): The discriminator's, of a family whose configuration has `generator_config()`.
        discriminator, generator (`PreTrainedModel`, *optional*): Trained ones to continue with; None makes new ones.
        embedding_sharing (`str`, *optional*): `all` (ELECTRA, section 3.2: all embeddings), `gdes` (DeBERTa v3,
            section 3.2.3: the tables of words and positions are the generator's, without a gradient to it, and a
            difference of the discriminator's own) or `none`; None means as the family was published.
        detection_weight (`float`, *optional*, defaults to 50): Of the loss of detection.

    Unless all embeddings are shared, no weight has a gradient of both losses, and `PreTrainingTrainer` clips the
    gradients of the two models each by its own norm: with Adam, one step is that of two optimizers.
    """

    base_model_prefix = "discriminator"
    supports_gradient_checkpointing = True
    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = _supports_attention_backend = True
    loss_terms = {"mlm": "labels", "rtd": "input_ids"}

    def __init__(
        self,
        config: EncoderConfig,
        discriminator: PreTrainedModel | None = None,
        generator: PreTrainedModel | None = None,
        embedding_sharing: str | None = None,
        detection_weight: float = DETECTED_TOKENS.weight,
    ):
        super().__init__(config)
        discriminator_class, generator_class = classes_of(type(config))
        options = ReplacedTokenDetectionOptions(embedding_sharing, detection_weight)
        self.embedding_sharing = options.embedding_sharing or config.EMBEDDING_SHARING
        self.loss_weights = {DETECTED_TOKENS.name: options.detection_weight}
        self.discriminator = discriminator or discriminator_class(config)
        self.generator = generator or generator_class(config.generator_config())
        self.share_embeddings(are_trained=discriminator is not None)
        self.post_init()

    def share_embeddings(self, are_trained: bool) -> None:
        """Give the generator the discriminator's embeddings, or the discriminator differences from its tables.

        Raises:
            ValueError: for tables of other sizes.
        """
        embeddings, of_generator = (model.base_model.embeddings for model in (self.discriminator, self.generator))
        sizes = [model.config.hidden_size for model in (self.discriminator, self.generator)]
        for name in self.disentangled:
            table, before = getattr(of_generator, name), getattr(embeddings, name)
            if table.weight.shape != before.weight.shape:
                raise ValueError(
                    f"generator: its {name} have the shape {tuple(table.weight.shape)}, the discriminator's "
                    f"{tuple(before.weight.shape)} (widths {sizes[1]} and {sizes[0]}): give the generator that it was "
                    "trained with, or embedding_sharing='none'."
                )
            difference = before.weight - table.weight if are_trained else None
            setattr(embeddings, name, DisentangledEmbedding(table, difference))
        if self.embedding_sharing != "all":
            return
        for name, table in of_generator.named_children():
            if not hasattr(embeddings, name):  # such as positions that only a generator reads
                embeddings.add_module(name, table)
        self.generator.base_model.embeddings = embeddings
        self.generator.tie_weights()

    @property
    def disentangled(self) -> list[str]:
        """Return the names of the discriminator's tables that are differences from the generator's."""
        if self.embedding_sharing != "gdes":
            return []
        return [name for name in DISENTANGLED if hasattr(self.discriminator.base_model.embeddings, name)]

    @property
    def clipped_apart(self) -> tuple[PreTrainedModel, ...]:
        """Return the models whose gradients are clipped each by its own norm; none where they share weights."""
        return () if self.embedding_sharing == "all" else self.trained_models

    @property
    def trained_models(self) -> tuple[PreTrainedModel, ...]:
        """Return the models that a token passes through."""
        return self.discriminator, self.generator

    def counted_passes(self, tokens: int, predicted: int) -> list[tuple[int, EncoderConfig, int]]:
        """Return forward passes (a backward pass counts as two), their configuration and projected tokens."""
        return [(3, self.generator.config, predicted), (3, self.discriminator.config, 0)]

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings of both; those of the generator, where they differ."""
        return self.generator.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """Return the generator's projection to the vocabulary."""
        return self.generator.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize as in transformers, for both: the generator has the projection, and they share the embeddings."""
        embeddings = self.generator.resize_token_embeddings(*args, **kwargs)
        if self.embedding_sharing == "none":
            self.discriminator.resize_token_embeddings(*args, **kwargs)
        elif self.embedding_sharing == "gdes":
            before = self.discriminator.get_input_embeddings().weight
            difference = torch.zeros_like(embeddings.weight)
            rows = min(len(before), len(difference))
            difference[:rows] = before[:rows].detach()
            self.discriminator.set_input_embeddings(DisentangledEmbedding(embeddings, difference))
        self.config.vocab_size = self.discriminator.config.vocab_size = self.generator.config.vocab_size
        return embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        random_bits: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> ReplacedTokenDetectionOutput:
        r"""Predict masked tokens, and tell the predictions from the original tokens.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, T)`): with mask tokens.
            labels (`torch.LongTensor` of shape `(B, T)`, *optional*): original ids where they are to be predicted,
                -100 elsewhere. Without them the discriminator alone reads the tokens as they are.
            random_bits (`torch.LongTensor` of shape `(B, T)`, *optional*): uniform in [0, 2^32); they sample the
                tokens, so they are needed with `labels`. `DataCollatorForReplacedTokenDetection` draws them.
            num_items_in_batch (*optional*): predicted tokens in the whole batch. `PreTrainingTrainer` counts both
                kinds of tokens over the whole batch, and divides the sums in `mlm` and `rtd` itself.
            kwargs: passed to both models, like `attention_mask`, `token_type_ids` and `position_ids`.

        Raises:
            ValueError: for `labels` without `random_bits`, or with others than these; as in both models.
        """
        inputs = (attention_mask, token_type_ids, position_ids)
        if labels is None:
            return ReplacedTokenDetectionOutput(logits=self.discriminator(input_ids, *inputs, **kwargs).logits)
        remedy = "pass what DataCollatorForReplacedTokenDetection draws, a whole number per token"
        if random_bits is None or random_bits.shape != labels.shape:
            problem = "missing" if random_bits is None else f"of shape {tuple(random_bits.shape)}"
            raise ValueError(f"random_bits is {problem}, and labels have shape {tuple(labels.shape)}: {remedy}.")
        check_ids("random_bits", random_bits, 2**32, "their range", remedy)
        outputs = self.generator.encode(input_ids, *inputs, token_labels=labels, **kwargs)
        is_predicted, flatten = labels != IGNORED, outputs.tokens.flatten
        predicted = places_of(flatten(is_predicted), on_host(labels) != IGNORED)
        states = self.generator.states_at(outputs.last_hidden_state, outputs.tokens, predicted)
        mlm = self.generator.prediction_sums(states, flatten(labels).index_select(0, predicted))
        samples = self._samples(states, flatten(random_bits).index_select(0, predicted))
        originals = torch.where(is_predicted, labels, input_ids)
        corrupted = originals.masked_scatter(is_predicted, samples)
        is_replaced = (corrupted != originals).long()
        keep_on_host({"labels": is_replaced, "input_ids": corrupted})
        detection = self.discriminator(corrupted, *inputs, labels=is_replaced, **kwargs)
        loss = normalised(mlm.nll, mlm.count, num_items_in_batch)
        loss = loss + self.loss_weights[DETECTED_TOKENS.name] * pair_share_of_batch(
            detection.rtd, mlm, num_items_in_batch
        )
        return ReplacedTokenDetectionOutput(loss, detection.logits, mlm, detection.rtd, corrupted)

    @torch.no_grad()
    def _samples(self, states: torch.Tensor, random_bits: torch.Tensor) -> torch.Tensor:
        """Sample a token for each state that the head reads, `(P, D)` -> `(P,)`, holding a chunk of scores at most."""
        head, size = self.generator.mlm_head, max(1, chunk_scores(states.device) // self.config.vocab_size)
        samples = []
        for chunk, bits in zip(states.split(size), random_bits.split(size), strict=True):
            scores = head(chunk)
            samples.append(sampled_tokens(scores.to(torch.promote_types(scores.dtype, torch.float32)), bits))
        return torch.cat(samples)

    # --- files ---

    def save_pretrained(
        self, save_directory: str | os.PathLike, state_dict: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Save the discriminator, and the generator in its folder `generator`; arguments as in transformers.

        Tables that are differences are saved as what they stand for, and the differences next to the generator.

        Raises:
            ValueError: for `push_to_hub`, which would push the discriminator alone.
        """
        if kwargs.get("push_to_hub"):
            raise ValueError("push_to_hub: save the folder, then push both models with `hf-encoders publish`.")
        differences = {}
        if self.disentangled:
            state_dict = dict(self.state_dict() if state_dict is None else state_dict)
        for name in self.disentangled:
            path = f"{self.discriminator.base_model_prefix}.embeddings.{name}.weight"
            differences[name] = state_dict[f"discriminator.{path}"]
            state_dict[f"discriminator.{path}"] = differences[name] + state_dict[f"generator.{path}"]
        for start, model, folder in (
            ("generator.", self.generator, Path(save_directory, GENERATOR_FOLDER)),
            ("discriminator.", self.discriminator, Path(save_directory)),
        ):
            weights = None
            if state_dict is not None:
                weights = {key.removeprefix(start): state_dict[key] for key in state_dict if key.startswith(start)}
            model.save_pretrained(folder, state_dict=weights, **kwargs)
        if differences and kwargs.get("is_main_process", True):
            differences = {name: value.detach().contiguous().cpu() for name, value in differences.items()}
            save_file(differences, Path(save_directory, GENERATOR_FOLDER, DIFFERENCES_FILE))

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike,
        generator: str | os.PathLike | None = None,
        embedding_sharing: str | None = None,
        **kwargs: Any,
    ) -> "ReplacedTokenDetectionModel":
        """Load a discriminator and its generator, in eval mode.

        Args:
            source (`str` or `os.PathLike`): Folder or name on the Hub of the discriminator.
            generator (`str` or `os.PathLike`, *optional*): That of the generator; None means the folder `generator`
                in `source`.
            embedding_sharing (`str`, *optional*): As in the class.
            kwargs: As in transformers.

        Raises:
            ValueError: if there is no generator, one of the two lacks weights (as when they are exchanged), or they
                were not trained together, so that embeddings differ that are to be the same; as in both.
        """
        fields, _ = PreTrainedConfig.get_config_dict(source, **kwargs)
        config_class = config_class_of(str(fields.get("model_type")).removeprefix("hfe_"))
        discriminator_class, generator_class = classes_of(config_class)
        subfolder = {"subfolder": GENERATOR_FOLDER} if generator is None else {}
        discriminator = _loaded(discriminator_class, source, kwargs)
        try:
            trained_generator = _loaded(generator_class, generator or source, {**kwargs, **subfolder})
        except OSError as error:
            where = generator or f"the folder {GENERATOR_FOLDER!r} of {source}"
            remedy = f"give the generator that {source} was trained with, generator=..."
            raise ValueError(f"generator: {where} cannot be loaded ({first_line(error)}): {remedy}.") from error
        tables, twins = (model.base_model.embeddings.state_dict() for model in (discriminator, trained_generator))
        are_equal = all(torch.equal(table, twins.get(name, table[:0])) for name, table in tables.items())
        if (embedding_sharing or config_class.EMBEDDING_SHARING) == "all" and not are_equal:
            raise ValueError(
                f"the embeddings of {source} and of its generator, {generator or GENERATOR_FOLDER}, differ: give the "
                "generator that it was trained with."
            )
        config = discriminator.config
        config.set_generator(trained_generator.config)
        model = cls(config, discriminator, trained_generator, embedding_sharing).eval()
        model.load_differences(Path(source, GENERATOR_FOLDER) if generator is None else Path(generator))
        return model

    def load_folder(self, folder: str | os.PathLike) -> None:
        """Load the weights that `save_pretrained` wrote, into this model.

        Raises:
            ValueError: for weights of another model.
        """
        for model, path in ((self.discriminator, Path(folder)), (self.generator, Path(folder, GENERATOR_FOLDER))):
            load_own_weights(model, path)
        with torch.no_grad():
            for name in self.disentangled:
                table = getattr(self.discriminator.base_model.embeddings, name)
                table.weight.sub_(table.tables[0].weight)
        if not self.load_differences(Path(folder, GENERATOR_FOLDER)) and self.disentangled:
            raise ValueError(f"{folder} has no {GENERATOR_FOLDER}/{DIFFERENCES_FILE}: resume the run that wrote it.")

    @torch.no_grad()
    def load_differences(self, folder: Path) -> bool:
        """Load the differences of tables that a folder has, exact as they were; return whether it has them.

        Raises:
            ValueError: for those of another discriminator.
        """
        file = folder / DIFFERENCES_FILE
        if not (self.disentangled and file.is_file()):
            return False
        for name, difference in load_file(file).items():
            table = getattr(self.discriminator.base_model.embeddings, name)
            largest = table.tables[0].weight.abs().max() + difference.abs().max().to(table.weight)
            rounding = 8 * torch.finfo(difference.dtype).eps * largest.item()  # of the saved sum
            same_shape = table.weight.shape == difference.shape
            if not (same_shape and torch.allclose(table.weight, difference.to(table.weight), rtol=0, atol=rounding)):
                raise ValueError(
                    f"{file}: {name} are not the discriminator's, which was changed or is another one: delete the "
                    "file, or give the generator that it was trained with."
                )
            table.weight.copy_(difference)
        return True


def _loaded(model_class: type[PreTrainedModel], source: str | os.PathLike, options: dict[str, Any]) -> PreTrainedModel:
    """Load a model all of whose weights the checkpoint has."""
    model, info = model_class.from_pretrained(source, **options, output_loading_info=True)
    if missing := info["missing_keys"]:
        raise ValueError(
            f"{source} has no {min(missing)}, which a {model_class.__name__} needs: give a discriminator as source "
            "and a generator as generator=..., each with its head."
        )
    return model


def classes_of(config_class: type[EncoderConfig]) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
    """Return a family's classes of the discriminator and of the generator.

    Raises:
        ValueError: for a family without them.
    """
    if not hasattr(config_class, "generator_config"):
        raise ValueError(
            f"config is of {config_class.model_type}, whose models are trained without a generator: use "
            "HfeElectraConfig, or a folder that ReplacedTokenDetectionModel saved."
        )
    both = transformers.AutoModelForPreTraining, transformers.AutoModelForMaskedLM
    return tuple(auto_class._model_mapping[config_class] for auto_class in both)


def sampled_tokens(scores: torch.Tensor, random_bits: torch.Tensor) -> torch.Tensor:
    """Sample a token for each row of `scores` `(P, V)`, by the softmax of the row; `(P,)`. Overwrites `scores`.

    Args:
        random_bits (`torch.LongTensor` of shape `(P,)`): uniform in [0, 2^32); the same numbers give the same tokens.

    >>> scores = torch.tensor([[0.25, 0.5, 0.25]]).log().expand(4, 3).clone()
    >>> sampled_tokens(scores, torch.tensor([0, 2**30, 3 * 2**30 - 1, 3 * 2**30])).tolist()
    [0, 1, 1, 2]
    """
    totals = scores.sub_(scores.amax(dim=1, keepdim=True)).exp_().cumsum_(dim=1)
    # The upper 24 bits, which float32 holds exactly: a number below 1 stays below 1.
    chosen = (random_bits[:, None] >> 8).to(scores.dtype) * 2.0**-24 * totals[:, -1:]
    # Scores that are not finite give a token too, so that the loss shows them; an id out of range would end the run.
    return torch.searchsorted(totals, chosen, right=True).squeeze(1).clamp_(max=scores.shape[1] - 1)


# `mask` in `pretrain/pretrain_helpers.py` of google-research/electra; no token becomes a random one.
REPLACEMENT = {"mask_replace_probability": 0.85, "random_replace_probability": 0.0}


class DataCollatorForReplacedTokenDetection(DataCollatorForMaskedLM):
    """Mask tokens for a generator, and draw the random numbers that sample its tokens (ELECTRA).

    Of the predicted tokens 85 % become the mask token and the others stay; the generator predicts all of them, and its
    samples take their places. The numbers are functions of (seed, epoch, example id, position), so that what is
    sampled does not depend on batch, process or restart.

    For `ReplacedTokenDetectionModel`; `ElectraForPreTraining` takes these labels for classes of tokens, without an
    error.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Gives the special tokens and the vocabulary.
        options: `packed`, `mask_probability` and the other arguments of `DataCollatorForMaskedLM`;
            `mask_replace_probability` and `random_replace_probability` are 0.85 and 0.

    Output: as that of `DataCollatorForMaskedLM`, and `random_bits`, `int64` of the shape of `input_ids`, uniform in
        [0, 2^32), 0 at padding.

    Example, with ids 1 = [CLS], 2 = [SEP], 4 = [MASK] and half of the tokens predicted:

    >>> import numpy as np
    >>> from hf_encoders.objectives.randomness import Key
    >>> collator = DataCollatorForReplacedTokenDetection(doctest_tokenizer(), mask_probability=0.5)
    >>> batch = collator([Example([np.array([10, 11, 12, 13])], Key(seed=0, epoch=0, example=5))])
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[1, 4, 11, 4, 13, 2]], [[-100, 10, -100, 12, -100, -100]])
    >>> batch["random_bits"].tolist()
    [[4236140166, 3558849435, 3409797191, 2952729930, 3924050436, 1889438221]]
    """

    needs_whole_texts = True

    @with_options_of(DataCollatorForMaskedLM)
    def __init__(self, tokenizer: PreTrainedTokenizerBase, **options: Any):
        super().__init__(tokenizer, **{**REPLACEMENT, **options})

    def arguments(self, example: Example, row: Row) -> Row:
        """Return the arguments of the model for one example, with a random number for each token."""
        random = generator(example.key, RandomStream.GENERATOR_SAMPLE)
        return {**super().arguments(example, row), "random_bits": random.integers(2**32, size=len(row["input_ids"]))}


@dataclass(frozen=True)
class ReplacedTokenDetectionOptions:
    """Options of the objective.

    Args:
        embedding_sharing (`str`, *optional*): What generator and discriminator share: `all`, `gdes` or `none`, as in
            `ReplacedTokenDetectionModel`; None means as the family was published.
        detection_weight (`float`, *optional*, defaults to 50): Of the loss of detection, above 0.
    """

    embedding_sharing: str | None = None
    detection_weight: float = DETECTED_TOKENS.weight

    def __post_init__(self):
        if self.embedding_sharing not in (None, *SHARING):
            raise ValueError(f"embedding_sharing={self.embedding_sharing!r} must be one of {', '.join(SHARING)}.")
        if not (is_number(self.detection_weight) and self.detection_weight > 0):
            raise ValueError(f"detection_weight={self.detection_weight!r} must be above 0; the papers use 50.")


class ReplacedTokenDetection(MaskedLanguageModelling):
    """A generator predicts masked tokens, and a discriminator finds its samples among all tokens.

    Args:
        options: As of `ReplacedTokenDetectionOptions`.
    """

    name = "rtd"
    terms = (MASKED_TOKENS, DETECTED_TOKENS)
    auto_class = "AutoModelForPreTraining"
    collator_class = DataCollatorForReplacedTokenDetection
    default_masking = REPLACEMENT
    options_class = ReplacedTokenDetectionOptions
    fills_masks = False
    is_in_transformers = False

    def __init__(self, **options: Any):
        self.options = ReplacedTokenDetectionOptions(**options)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weight of each loss term."""
        return {**super().loss_weights, DETECTED_TOKENS.name: self.options.detection_weight}

    def find_model_class(self, config_class: type[EncoderConfig]) -> tuple[type[PreTrainedModel] | None, list[str]]:
        """Return the pair of models, and what the family has no head for."""
        mapping = transformers.AutoModelForPreTraining._model_mapping
        if DETECTED_TOKENS.name in getattr(mapping.get(config_class, None), "loss_terms", {}):
            return ReplacedTokenDetectionModel, []
        return None, ["replaced tokens"]

    def new_model(self, config: EncoderConfig) -> PreTrainedModel:
        """Return both models with fresh weights, or those of the checkpoint."""
        options = vars(self.options)
        if self.initial is None or torch.get_default_device().type == "meta":
            return ReplacedTokenDetectionModel(config, **options)
        discriminator, trained_generator = super().new_model(config), self._generator(self.initial)
        self.initial.extend(trained_generator, config)
        discriminator.config.set_generator(trained_generator.config)
        model = ReplacedTokenDetectionModel(discriminator.config, discriminator, trained_generator, **options)
        model.new_weights = frozenset(f"discriminator.{name}" for name in discriminator.new_weights)
        model.unused_weights = discriminator.unused_weights
        if (file := self.initial.file(f"{GENERATOR_FOLDER}/{DIFFERENCES_FILE}")) is not None:
            model.load_differences(file.parent)
        return model

    def of_checkpoint(self, initial: Any) -> "ReplacedTokenDetection":
        """Return the objective for models that begin as a discriminator and the generator in its folder.

        Raises:
            ValueError: for a checkpoint without a generator.
        """
        if initial.file(f"{GENERATOR_FOLDER}/config.json") is None:
            raise ValueError(
                f"{initial.option} {initial.source!r} is one model, and objective {self.name} trains two: put its "
                f"generator into the folder {GENERATOR_FOLDER!r} of it (docs/electra.md); or train mlm (--objective "
                "of adapt, a recipe of it for pretrain)."
            )
        return super().of_checkpoint(initial)

    def _generator(self, initial: Any) -> PreTrainedModel:
        """Return the checkpoint's generator, with all of its weights."""
        folder = initial.file(f"{GENERATOR_FOLDER}/config.json").parent
        initial.file(f"{GENERATOR_FOLDER}/model.safetensors")  # from the Hub, next to it
        return _loaded(classes_of(type(initial.config))[1], folder, {"dtype": torch.float32})

    def saved_model(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the discriminator."""
        return model.discriminator

    def describe(
        self, collator: Any, mask_rates: Sequence[float], examples: Mapping[str, Any], logged: Mapping[str, float]
    ) -> dict[str, str]:
        """Describe what the generator predicted, and how many tokens its samples replaced."""
        (generated,) = super().describe(collator, mask_rates, examples, logged).values()
        share = logged.get("rtd_label_1_share")
        of_them = "" if share is None else f" ({100 * share:.1f} % of the tokens)"
        of_them += "" if self.options.embedding_sharing is None else f"; embeddings: {self.options.embedding_sharing}"
        return {
            "replaced token detection": f"all tokens, original or replaced by a generator's sample{of_them}",
            "masked language modelling, by the generator": f"{generated}; it is in the folder `{GENERATOR_FOLDER}`",
        }

    def scores(
        self, term: LossTerm, metrics: Mapping[str, float], unigram_cross_entropy: float
    ) -> list[dict[str, Any]]:
        """As the base class: of the generator, and of detection next to calling every token original."""
        scores = super().scores(term, metrics, unigram_cross_entropy)
        if term.name == MASKED_TOKENS.name:
            return [{**score, "metric": f"{score['metric']} of the generator"} for score in scores]
        share = metrics.get("eval_rtd_label_1_share")
        return (
            scores if share is None else [{**score, "baseline": f"all original {1 - share:.4f}"} for score in scores]
        )
