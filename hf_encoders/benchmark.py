"""Measure this package's models and transformers' own classes in turns, with the same weights, rows and masks.

transformers' classes run as their own code does, with the loss over the logits of all tokens, in batches padded by
`DataCollatorForLanguageModeling`. A round is a turn of each implementation, in rotating order, so that other load on
the machine affects all of them; ratios are taken within a round.
"""

import gc
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import nn
from tqdm import tqdm
from transformers import DataCollatorForLanguageModeling, ModernBertConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_encoders.compilation import has_operator
from hf_encoders.models.encoder_configuration import EncoderConfig
from hf_encoders.objectives.batch import to_device
from hf_encoders.objectives.mlm import DataCollatorForMaskedLM
from hf_encoders.publishing.export import native_config
from hf_encoders.publishing.files import may_have_pooler, native_class
from hf_encoders.publishing.hardware import forward_flops, measure_gemm_rate, peak_on_cpu, peak_on_cuda, wait_for


FLASH = "flash_attention_2"
POOL_BATCHES = 50  # rows are sorted by length within as many batches, as in transformers' LengthGroupedSampler
SENTENCES_PER_PARAGRAPH = 4  # of the Python documentation, they fill 55-60 % of 128 tokens
LEARNING_RATE = 1e-5  # small: all rounds have about the same weights
SECONDS = ("collate_seconds", "pass_seconds", "update_seconds")


class Setting(NamedTuple):
    """Hold the options of one table; bfloat16 means autocast in pre-training, and weights in bfloat16 in inference."""

    family: str
    size: str
    examples: str
    length: int
    batch_size: int
    task: str
    dtype: str
    dropout: float
    rounds: int
    steps: int
    device: str
    seed: int

    @property
    def trains(self) -> bool:
        """Return whether the task is pre-training."""
        return self.task == "pretraining"

    def __str__(self) -> str:
        rows = f"{self.batch_size} x {self.length}, {self.examples}"
        return f"{self.task}, {self.family} {self.size}, {rows}, {self.dtype}, {self.device}"


class Rows:
    """Hold rows of text, masked once, from which all implementations take their batches."""

    def __init__(self, documents: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, setting: Setting):
        rows, size = tokenized_rows(documents, tokenizer, setting.examples, setting.length), setting.batch_size
        if len(rows) < size:
            raise ValueError(
                f"--batch-size {size}: the text gives {len(rows)} rows ({setting.examples} of at most "
                f"{setting.length} tokens): give more --text, or a smaller batch."
            )
        count = size * min(POOL_BATCHES, len(rows) // size)
        rows = [rows[i] for i in np.random.default_rng(setting.seed).permutation(len(rows))[:count]]
        self.lengths = np.array([len(row) for row in rows])
        self.features = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows]
        special = [tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in rows]
        self.stock_features = [
            {**row, "special_tokens_mask": m} for row, m in zip(self.features, special, strict=True)
        ]
        torch.manual_seed(setting.seed)
        self.arguments = DataCollatorForMaskedLM(tokenizer)(self.features)
        labels = self.arguments["labels"]
        self.predicted = (labels != -100).sum(dim=1).numpy() * setting.trains
        if not setting.trains:
            self.arguments["input_ids"] = torch.where(labels == -100, self.arguments["input_ids"], labels)
            del self.arguments["labels"]
        self.in_order = np.arange(count).reshape(-1, size)
        self.by_length = np.argsort(-self.lengths, kind="stable").reshape(-1, size)

    def tensors(self, batch: np.ndarray) -> dict[str, torch.Tensor]:
        """Return the arguments of `forward` for some rows, `(B, T)` each, padded to the longest of them."""
        longest = int(self.lengths[batch].max())
        return {name: value[batch, :longest] for name, value in self.arguments.items()}

    def positions(self, batch: np.ndarray) -> int:
        """Return the number of positions of some rows, padding included."""
        return len(batch) * int(self.lengths[batch].max())


def tokenized_rows(
    documents: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, examples: str, length: int
) -> list[list[int]]:
    """Return the ids of rows of a kind, special tokens included: truncated to `length`, or `full` ones exactly so."""
    if examples == "full":
        text = " ".join(sentence for document in documents for sentence in document)
        pieces = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
        return [piece for piece in pieces if len(piece) == length]
    texts = []
    for document in documents:
        step = {"sentences": 1, "paragraphs": SENTENCES_PER_PARAGRAPH}.get(examples, len(document))
        texts += [" ".join(document[first : first + step]) for first in range(0, len(document), step)]
    return tokenizer(texts, truncation=True, max_length=length)["input_ids"]


@dataclass
class Implementation:
    """Hold a model as it is measured, the rows of its batches, `(batches, B)`, and what collates them with new masks.

    Several may share a model; `optimizer` is None for inference, `attention` is transformers' name of the kernel,
    `pads` says whether padding is computed, and `compiled` is called instead of the model.
    """

    name: str
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer | None
    batches: np.ndarray
    collate: Callable[[np.ndarray], dict[str, torch.Tensor]]
    attention: str = "sdpa"
    pads: bool = True
    compiled: nn.Module | None = None

    def run_pass(self, tensors: dict[str, torch.Tensor], setting: Setting) -> torch.Tensor:
        """Compute loss and gradients, or in inference the hidden states `(B, T, D)`; return loss or states."""
        if self.model.config._attn_implementation != self.attention:
            self.model.set_attn_implementation(self.attention)
        call = self.model if self.compiled is None else self.compiled
        if not setting.trains:
            with torch.inference_mode():
                return call(**tensors).last_hidden_state
        with torch.autocast(setting.device, dtype=torch.bfloat16, enabled=setting.dtype == "bfloat16"):
            loss = call(**tensors).loss
        loss.backward()
        return loss.detach()


def modernbert_config(config: EncoderConfig, length: int) -> ModernBertConfig:
    """Return ModernBERT's configuration of the same depth, width, vocabulary and number of weights per layer.

    Its gated feed-forward has three matrices instead of two, so each is two thirds as wide (rounded to 16).
    """
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    return ModernBertConfig(
        **{name: getattr(config, name) for name in same},
        intermediate_size=16 * max(1, round(config.intermediate_size * 2 / 3 / 16)),
        max_position_embeddings=length,
        sparse_prediction=True,
        **{f"{name}_token_id": config.pad_token_id for name in ("pad", "bos", "eos", "cls", "sep")},
    )


def make_implementations(
    config: EncoderConfig, setting: Setting, rows: Rows, tokenizer: PreTrainedTokenizerBase, against: Sequence[str]
) -> list[Implementation]:
    """Make transformers' class, to which the others are compared, those of `against`, and this package's last."""

    def prepared(model: PreTrainedModel) -> tuple[PreTrainedModel, torch.optim.Optimizer | None]:
        model.to(setting.device)
        if not setting.trains:
            return model.to(getattr(torch, setting.dtype)).eval(), None
        return model.train(), torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def collate_with(collator: Callable, features: list[dict[str, list[int]]]) -> Callable:
        return lambda batch: collator([features[row] for row in batch])

    torch.manual_seed(setting.seed)
    name = "AutoModelForMaskedLM" if setting.trains else "AutoModel"
    auto, stock_class = getattr(transformers, name), native_class(config, name)
    without_pooler = {"add_pooling_layer": False} if may_have_pooler(stock_class) else {}
    kernel = "sdpa" if stock_class._supports_sdpa else "eager"  # the best that it has
    stock = auto.from_config(native_config(config), attn_implementation=kernel, **without_pooler)
    ours = auto.from_config(config, attn_implementation="sdpa", **without_pooler)
    ours.load_state_dict(stock.state_dict())
    collate = collate_with(DataCollatorForLanguageModeling(tokenizer), rows.stock_features)
    stock, modernbert, reference = prepared(stock), (None, None), f"transformers {kernel}"
    if "modernbert" in against:
        modernbert = prepared(auto.from_config(modernbert_config(config, setting.length), attn_implementation="sdpa"))
    modernbert_kernel = FLASH if can_use_flash(setting.device, [setting.dtype]) else "sdpa"
    options = {
        "sdpa": (reference, *stock, rows.in_order, collate, kernel),
        "eager": ("transformers eager", *stock, rows.in_order, collate, "eager"),
        "flash": ("transformers flash", *stock, rows.in_order, collate, FLASH),
        "grouped": (f"{reference}, by length", *stock, rows.by_length, collate, kernel),
        "modernbert": ("transformers ModernBERT, by length", *modernbert, rows.by_length, collate, modernbert_kernel),
    }
    chosen = [name for name in options if name == "sdpa" or (name in against and name != kernel)]
    made = [Implementation(*options[name]) for name in chosen]
    of_ours = (*prepared(ours), rows.in_order, collate_with(DataCollatorForMaskedLM(tokenizer), rows.features))
    if "compiled" in against:
        compiled, pads = torch.compile(ours), not has_operator(ours)
        made.append(Implementation("hf_encoders compiled", *of_ours, pads=pads, compiled=compiled))
    return [*made, Implementation("hf_encoders", *of_ours, pads=False)]


def can_use_flash(device: str, dtypes: Sequence[str]) -> bool:
    """Return whether transformers' classes can run with flash attention: on CUDA, in 16 bits, if installed."""
    return device == "cuda" and "float32" not in dtypes and transformers.utils.is_flash_attn_2_available()


def measure(
    implementations: list[Implementation], rows: Rows, config: EncoderConfig, setting: Setting
) -> dict[str, Any]:
    """Warm up, measure memory (10^6 bytes), and run the rounds; return the table, for JSON."""
    device, dtype, count = torch.device(setting.device), getattr(torch, setting.dtype), len(implementations)
    gemm_rate = measure_gemm_rate(dtype, device)
    turns: list[list[dict[str, float]]] = [[] for _ in implementations]
    activations = []
    warm_ups = []
    for implementation in implementations:
        rounds = [batches_of_round(implementation.batches, setting, number) for number in range(setting.rounds)]
        largest = max(rounds[0], key=rows.positions)
        # On CUDA cuDNN's attention is built for each shape; elsewhere layers are compiled for the first two.
        is_compiled = implementation.compiled is not None
        more = rounds if device.type == "cuda" else rounds[:is_compiled]
        warm_ups.append([largest, *itertools.chain(*more)])
    total = sum(map(len, warm_ups)) + setting.rounds * count * setting.steps
    progress = tqdm(total=total, desc=str(setting), unit="batch")
    for implementation, batches in zip(implementations, warm_ups, strict=True):
        run_turn(implementation, rows, config, setting, counted(batches, progress))
        activations.append(measure_memory(implementation, rows, setting, batches[0]))
    for number, turn in itertools.product(range(setting.rounds), range(count)):
        i = (number + turn) % count
        batches = batches_of_round(implementations[i].batches, setting, number)
        turns[i].append(run_turn(implementations[i], rows, config, setting, counted(batches, progress)))
    progress.close()
    gemm_rate = max(gemm_rate, measure_gemm_rate(dtype, device))
    lines = [
        {"name": made.name, "activation_megabytes": peak / 1e6, **metrics_of(rounds, turns[0], gemm_rate)}
        for made, rounds, peak in zip(implementations, turns, activations, strict=True)
    ]
    parameters = implementations[-1].model.num_parameters()
    implementations.clear()
    gc.collect()  # models have reference cycles, and the next setting needs their memory
    torch._dynamo.reset()  # graphs of all settings count against its limit, beyond which models run eagerly
    return {"setting": setting._asdict(), "parameters": parameters, "gemm_flops_per_second": gemm_rate, "lines": lines}


def counted(batches: Iterable[Any], progress: tqdm) -> Iterator[Any]:
    """Yield batches; the bar is updated after each of them."""
    for batch in batches:
        yield batch
        progress.update()


def batches_of_round(batches: Sequence[Any], setting: Setting, number: int) -> list[Any]:
    """Return the batches of a turn: evenly spread, so that sorted ones have all lengths, and others each round."""
    distance = len(batches) / setting.steps
    first = distance * (number + 0.5) / setting.rounds
    return [batches[int(first + i * distance)] for i in range(setting.steps)]


def run_turn(
    implementation: Implementation, rows: Rows, config: EncoderConfig, setting: Setting, batches: Iterable[np.ndarray]
) -> dict[str, float]:
    """Run some batches; return real `tokens`, computed `positions`, needed `flops`, and `SECONDS`.

    These are the seconds of collating and copying to the device, of forward and backward pass, and of the optimizer.
    """
    device, optimizer = torch.device(setting.device), implementation.optimizer
    turn: dict[str, float] = dict.fromkeys(("tokens", "positions", "flops", *SECONDS), 0)

    def measure_seconds(name: str, run: Callable[[], Any]) -> None:
        wait_for(device)
        begin = time.perf_counter()
        run()
        wait_for(device)
        turn[name] += time.perf_counter() - begin

    for batch in batches:
        lengths = rows.lengths[batch].tolist()
        turn["tokens"] += sum(lengths)
        turn["positions"] += rows.positions(batch) if implementation.pads else sum(lengths)
        predicted = int(rows.predicted[batch].sum())
        turn["flops"] += (3 if setting.trains else 1) * forward_flops(config, lengths, predicted)
        tensors = to_device(rows.tensors(batch), device)
        if optimizer is not None:
            optimizer.zero_grad()
            measure_seconds("collate_seconds", lambda batch=batch: to_device(implementation.collate(batch), device))
        measure_seconds("pass_seconds", lambda tensors=tensors: implementation.run_pass(tensors, setting))
        if optimizer is not None:
            measure_seconds("update_seconds", optimizer.step)
    implementation.model.zero_grad()
    return turn


def measure_memory(implementation: Implementation, rows: Rows, setting: Setting, batch: np.ndarray) -> int:
    """Return the peak bytes of one pass above weights and gradients, which exist before it."""
    device = torch.device(setting.device)
    tensors = to_device(rows.tensors(batch), device)
    for parameter in implementation.model.parameters() if setting.trains else ():
        parameter.grad = torch.zeros_like(parameter)

    def run() -> None:
        implementation.run_pass(tensors, setting)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.profiler")
        peak = peak_on_cuda(run, device) if device.type == "cuda" else peak_on_cpu(run)
    implementation.model.zero_grad()
    return peak


def metrics_of(
    turns: list[dict[str, float]], reference: list[dict[str, float]], gemm_flops_per_second: float
) -> dict[str, Any]:
    """Return the metrics of an implementation from its turns, and those of the reference in the same rounds.

    Median, least and greatest of the rounds: tokens per second of the pass and of whole steps relative to the
    reference, tokens per second of the pass, MFU. Then `padding`, the share of the computed positions, and the turns.
    """

    def column(rows: list[dict[str, float]], *names: str) -> np.ndarray:
        return np.array([sum(row[name] for name in names) for row in rows], dtype=float)

    def rates(rows: list[dict[str, float]], *names: str) -> np.ndarray:
        return column(rows, "tokens") / column(rows, *names)

    def spread(values: np.ndarray) -> dict[str, float]:
        return {"median": float(np.median(values)), "least": float(values.min()), "greatest": float(values.max())}

    return {
        "pass_ratio": spread(rates(turns, "pass_seconds") / rates(reference, "pass_seconds")),
        "step_ratio": spread(rates(turns, *SECONDS) / rates(reference, *SECONDS)),
        "tokens_per_second": spread(rates(turns, "pass_seconds")),
        "padding": 1 - float(column(turns, "tokens").sum() / column(turns, "positions").sum()),
        "mfu": spread(column(turns, "flops") / column(turns, "pass_seconds") / gemm_flops_per_second),
        "rounds": turns,
    }
