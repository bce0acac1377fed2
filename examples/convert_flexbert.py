# /// script
# dependencies = ["hf_encoders"]
# ///
"""Make a folder of a checkpoint of AnswerDotAI/ModernBERT (FlexBERT, trained with Composer), to adapt or to publish.

    python examples/convert_flexbert.py --checkpoint latest-rank0.pt --yaml modernbert-base.yaml \
        --tokenizer NAME_OR_FOLDER --output_dir runs/converted
    hf-encoders adapt runs/converted --corpus text/ --output runs/adapted

`--yaml` is the configuration of the run, whose `model: {model_config: ...}` is read. Only tensors are read of the
checkpoint: a file with other objects in it is refused. Plain transformers reads the result too.
"""

from dataclasses import dataclass, field
from typing import Any

from hf_encoders import HfeModernBertConfig, HfeModernBertForMaskedLM

import torch
import yaml
from transformers import AutoTokenizer, HfArgumentParser


@dataclass
class Arguments:
    """Options of this example."""

    checkpoint: str = field(metadata={"help": "file that Composer wrote, or a state_dict"})
    yaml: str = field(metadata={"help": "configuration of the run"})
    tokenizer: str = field(metadata={"help": "path or Hub name of its tokenizer"})
    output_dir: str = field(metadata={"help": "folder of the model"})


# What a ModernBERT is among the models that FlexBERT can be.
NEEDED = {
    "attention_layer": "rope",
    "bert_layer": "prenorm",
    "embedding_layer": "sans_pos",
    "mlp_layer": "glu",
    "normalization": "layernorm",
    "final_norm": True,
    "embed_norm": True,
}
SAME_NAMES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "global_attn_every_n_layers",
)
RENAMED = {
    "sliding_window": "local_attention",
    "rotary_emb_base": "global_rope_theta",
    "local_attn_rotary_emb_base": "local_rope_theta",  # None or -1: as the global one
    "attention_probs_dropout_prob": "attention_dropout",
    "attn_out_dropout_prob": "attention_output_dropout",
    "embed_dropout_prob": "embedding_dropout",
    "mlp_dropout_prob": "mlp_dropout",
    "hidden_act": "hidden_activation",
    "head_pred_act": "classifier_activation",
}
PREFIXES = (("model.", ""), ("bert.encoder.layers.", "model.layers."), ("bert.", "model."))


def config_of(fields: dict[str, Any], tokenizer: Any, longest: int) -> HfeModernBertConfig:
    """Return the configuration for `model_config` of FlexBERT; ValueError for a model that is no ModernBERT."""
    for name, needed in NEEDED.items():
        if fields.get(name, needed) != needed:
            raise ValueError(f"model_config: {name}={fields[name]!r}: a ModernBERT has {needed!r}.")
    made = {name: fields[name] for name in SAME_NAMES if name in fields}
    made |= {ours: fields[theirs] for theirs, ours in RENAMED.items() if theirs in fields}
    made.setdefault("local_rope_theta", None)
    norm = fields.get("norm_kwargs") or {}
    made |= {"norm_eps": norm.get("eps", 1e-5), "norm_bias": norm.get("bias", False)}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep", "bos", "eos")}
    return HfeModernBertConfig(**made, **ids, max_position_embeddings=longest)


def weights_of(file: str) -> dict[str, torch.Tensor]:
    """Return the weights under transformers' names, the tied one apart; ValueError for a file with other objects."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"--checkpoint {file} holds more than tensors, or is damaged. Where it was written: "
            "torch.save(torch.load(FILE, weights_only=False)['state']['model'], 'weights.pt'), and give that."
        ) from error
    state = state.get("state", {}).get("model", state)
    weights = {}
    for name, value in state.items():
        for before, after in PREFIXES:
            name = after + name.removeprefix(before) if name.startswith(before) else name
        weights[name] = value
    weights.pop("decoder.weight", None)
    return weights


def main() -> None:
    """Convert, and check that every weight has its place."""
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    with open(arguments.yaml, encoding="utf-8") as file:
        run = yaml.safe_load(file)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = config_of(run["model"]["model_config"], tokenizer, run.get("max_seq_len", 8192))
    model, weights = HfeModernBertForMaskedLM(config), weights_of(arguments.checkpoint)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if wrong := sorted({*missing, *unexpected} - {"decoder.weight"}):
        raise ValueError(f"--checkpoint and --yaml are not of one model: {', '.join(wrong[:5])} has no counterpart.")
    model.save_pretrained(arguments.output_dir)
    tokenizer.save_pretrained(arguments.output_dir)
    print(f"{model.num_parameters():,} parameters: {arguments.output_dir}")


if __name__ == "__main__":
    main()
