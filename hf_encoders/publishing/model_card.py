"""Model cards from recorded facts alone: the configuration, the weights and the training record. Nothing typed by
hand.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel

from hf_encoders.publishing.training_record import NOT_RECORDED, TrainingRecord


TEMPLATE = Path(__file__).with_name("model_card_template.md")
CURVE_FILE = "loss_curve.png"
SHOWN_FIELDS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "position_embedding_type",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)


def make_model_card(
    model: PreTrainedModel,
    record: TrainingRecord,
    name: str,
    has_curve: bool = False,
    language: str | None = None,
    license_name: str | None = None,
) -> ModelCard:
    """The card of one checkpoint.

    Args:
        model: the model as it was saved.
        record (`TrainingRecord`): the facts of its training.
        name (`str`): what the card calls it: a repository or a folder.
        has_curve (`bool`): whether the picture of the losses lies beside the weights.
        language (`str`, *optional*): code of the corpus's language.
        license_name (`str`, *optional*): licence of the weights, as the user states it.
    """
    config = model.config
    data = ModelCardData(
        library_name="transformers",
        language=language,
        license=license_name,
        pipeline_tag="fill-mask" if model.get_output_embeddings() is not None else None,
        tags=["hf_encoders", config.model_type],
        model_name=name,
        eval_results=[_eval_result(entry) for entry in record.evaluation] or None,
    )
    auto_class = next(
        auto for auto, reference in config.auto_map.items() if reference.rpartition(".")[2] == type(model).__name__
    )
    return ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        family=config.model_type,
        head=type(model).__name__,
        auto_class=auto_class,
        is_native=config.is_native,
        parameters=f"{model.num_parameters():,}",
        architecture={field: getattr(config, field) for field in SHOWN_FIELDS if hasattr(config, field)},
        record=record,
        has_curve=has_curve,
        curve_file=CURVE_FILE,
        duration=_duration(record.seconds),
        tokens_per_second=NOT_RECORDED if record.tokens_per_second is None else f"{record.tokens_per_second:,.0f}",
        not_recorded=NOT_RECORDED,
        shown=_shown,
    )


def _eval_result(entry: dict[str, Any]) -> EvalResult:
    return EvalResult(
        task_type=entry["task"],
        dataset_type=entry["dataset"].lower().replace(" ", "-"),
        dataset_name=entry["dataset"],
        metric_type=entry["metric"],
        metric_value=entry["value"],
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NOT_RECORDED
    minutes = seconds / 60
    return f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
