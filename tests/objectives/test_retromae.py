"""RetroMAE: what is drawn, the decoder next to a dense computation of the paper's formulas, what it sees, files."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch.nn import functional

from hf_encoders import DataCollatorForMaskedLM, DataCollatorForRetroMAE, RetroMAEModel, get_objective
from hf_encoders.models.encoder_tokens import FlatTokens
from hf_encoders.objectives.dataset import Example
from hf_encoders.objectives.randomness import Key
from hf_encoders.objectives.retromae import DECODER_FILE, SETS, hidden_sets, seen_tokens
from hf_encoders.publishing.record import TrainingRecord
from hf_encoders.registration import config_class_of
from tests.commands.adapt_runs import adapt, checkpoint, write_texts
from tests.models.tiny import NO_DROPOUT, tiny_config
from tests.training.tiny import make_tokenizer


FAMILIES = ("bert", "roberta", "albert", "electra", "distilbert", "modernbert")


def texts(number, length=12, seed=0):
    random = np.random.default_rng(seed)
    sizes = random.integers(3, length, number)
    return [Example([random.integers(5, 40, size)], key=Key(0, 0, i)) for i, size in enumerate(sizes)]


def make_model(family, seed=0, **fields):
    torch.manual_seed(seed)
    config = tiny_config(config_class_of(family), **{**NO_DROPOUT, "pad_token_id": 0, **fields})
    model = RetroMAEModel(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def make_batch(packed=False, unit="token", number=5):
    collator = DataCollatorForRetroMAE(make_tokenizer(), packed=packed, unit=unit)
    return collator(texts(number, 9))


def dense(model, batch):
    """Both losses of padded rows, by loops over rows and tokens: sums over tokens, and their numbers."""
    config, encoder = model.config, model.encoder
    decoder, base = model.decoder, encoder.base_model
    sums = {"mlm": 0.0, "decoder": 0.0}
    for row, real in enumerate(batch["attention_mask"].bool()):
        values = {name: value[row][real] for name, value in batch.items()}
        ids, labels = values["input_ids"], values["labels"]
        states = base(ids[None]).last_hidden_state[0]
        scores = encoder.mlm_head(states)
        sums["mlm"] = sums["mlm"] + functional.cross_entropy(scores, labels, ignore_index=-100, reduction="sum")
        originals = torch.where(labels == -100, ids, labels)
        inner = base.embeddings(originals[None], None, None, None, FlatTokens(1, len(ids)))
        content = decoder.widen(inner.reshape(len(ids), -1)).clone()
        content = torch.cat([states[:1], content[1:]])
        query_input = states[:1].expand(len(ids), -1)
        if config.has_position_table:
            table = next(part for name, part in base.named_modules() if name.endswith("position_embeddings"))
            first = 1 if config.model_type == "roberta" else 0
            query_input = query_input + decoder.widen(table(torch.arange(len(ids)) + first))
        query, key, value = decoder.query(query_input), decoder.key(content), decoder.value(content)
        heads, context = config.num_attention_heads, []
        width = config.hidden_size // heads
        for i in range(len(ids)):
            seen = [
                j
                for j in range(len(ids))
                if j == 0 or (j != i and not values["hidden_sets"][j] >> values["hidden_set"][i] & 1)
            ]
            parts = []
            for head in range(heads):
                place = slice(head * width, (head + 1) * width)
                q, k = query[i, place], key[seen][:, place]
                if not config.has_position_table:
                    q = turned(config, q[None], torch.tensor([i]))[0]
                    k = turned(config, k, torch.tensor(seen))
                parts.append((k @ q / width**0.5).softmax(0) @ value[seen][:, place])
            context.append(torch.cat(parts))
        hidden = decoder.attention.LayerNorm(decoder.attention.dense(torch.stack(context)) + query_input)
        inside = decoder.output.activation(decoder.intermediate.dense(hidden))
        hidden = decoder.output.LayerNorm(decoder.output.dense(inside) + hidden)
        scores = encoder.mlm_head(hidden)
        sums["decoder"] = sums["decoder"] + functional.cross_entropy(
            scores, values["decoder_labels"], ignore_index=-100, reduction="sum"
        )
    return sums


def turned(config, heads, positions):
    """Rotary positions of full layers, (n, H)."""
    width = heads.shape[-1]
    theta = config.rope_parameters["full_attention"]["rope_theta"]
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = positions[:, None].float() * frequencies
    cosines, sines = angles.cos().double(), angles.sin().double()
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_are_those_of_a_dense_computation(family):
    """Padded on the right and on the left, and packed."""
    model, batch = make_model(family), make_batch()
    counts = {"mlm": (batch["labels"] != -100).sum(), "decoder": (batch["decoder_labels"] != -100).sum()}
    expected = dense(model, batch)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(sum(expected[n] / counts[n] for n in counts), weights, allow_unused=True)
    left = {name: pad_left(value, batch["attention_mask"]) for name, value in batch.items()}
    if model.config.has_position_table:  # whose rows are those of the columns otherwise
        first = 1 if family == "roberta" else 0
        left["position_ids"] = (left["attention_mask"].cumsum(dim=1) - 1).clamp(min=0) + first
    for inputs in (batch, left, make_batch(packed=True)):
        inputs = {
            name: value for name, value in inputs.items() if "max_length" not in name and name != "cu_seq_lens_k"
        }
        output = model.train()(**inputs)
        for name, total in expected.items():
            assert output[name].count == counts[name]
            torch.testing.assert_close(output[name].nll, total, rtol=1e-6, atol=1e-8)
        found = torch.autograd.grad(output.loss, weights, allow_unused=True)
        for (name, _), gradient, wanted in zip(model.named_parameters(), found, gradients, strict=True):
            if wanted is None:
                assert gradient is None or not gradient.any(), name
                continue
            torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-7, msg=name)


def pad_left(values, mask):
    rows = [torch.cat([row[~real], row[real]]) for row, real in zip(values, mask.bool(), strict=True)]
    return torch.stack(rows)


@pytest.mark.parametrize("unit", ["token", "word"])
def test_thirty_percent_are_masked_and_half_is_hidden(unit):
    collator = DataCollatorForRetroMAE(make_tokenizer(), unit=unit, packed=True)
    examples = texts(2000, 60)
    batch = collator(examples)
    predicted = batch["decoder_labels"] != -100
    assert abs(float((batch["labels"] != -100).sum() / predicted.sum()) - 0.3) < 0.001
    sets = batch["hidden_sets"][predicted]
    shares = torch.stack([(sets >> k & 1).double().mean() for k in range(SETS)])
    assert abs(float(shares.mean()) - 0.5) < 0.001 and (shares - 0.5).abs().max() < 0.01
    assert not batch["hidden_sets"][~predicted].any()
    drawn = torch.bincount(batch["hidden_set"].flatten(), minlength=SETS) / batch["hidden_set"].numel()
    assert len(drawn) == SETS and (drawn * SETS - 1).abs().max() < 0.12
    # The encoder's masks are those of masked language modelling.
    plain = DataCollatorForMaskedLM(make_tokenizer(), mask_probability=0.3, unit=unit, packed=True)(examples)
    assert all(torch.equal(batch[name], plain[name]) for name in ("input_ids", "labels"))


def test_words_are_hidden_whole():
    starts = np.array([1, 0, 0, 1, 1, 0, 1, 0, 1, 1], dtype=bool)
    sets = hidden_sets(starts, 0.5, np.random.default_rng(3))
    words = np.cumsum(starts) - 1
    for k in range(SETS):
        bits = sets >> k & 1
        assert all(len(set(bits[words == word])) == 1 for word in range(words[-1] + 1))
        assert bits.sum() == 5
    assert len({tuple(sets >> k & 1) for k in range(SETS)}) > 8


def test_the_collator_hides_words_of_the_corpus_whole_and_as_many_as_it_is_told():
    starts = np.array([1, 0, 0, 1, 0, 1, 1, 0, 0, 0] * 8, dtype=np.uint8)
    ids = np.random.default_rng(0).integers(5, 40, len(starts))
    words = np.cumsum(starts)
    examples = [Example([ids], key=Key(0, 0, i), word_starts=[starts]) for i in range(20)]
    for share in (0.2, 0.6):
        objective = get_objective("retromae").with_options(decoder_mask_probability=share)
        collator = objective.make_collator(make_tokenizer(), RetroMAEModel, packed=False, unit="word")
        sets = collator(examples)["hidden_sets"][:, 1:-1]
        hidden = torch.stack([sets >> k & 1 for k in range(SETS)])
        assert abs(hidden.double().mean() - share) < 0.002
        for word in range(1, words[-1] + 1):
            inside = hidden[..., torch.from_numpy(words == word)]
            assert torch.equal(inside.amin(-1), inside.amax(-1))


def test_draws_do_not_depend_on_the_batch():
    collator, examples = DataCollatorForRetroMAE(make_tokenizer(), packed=True), texts(4)
    together = collator(examples)["hidden_sets"][0]
    alone = torch.cat([collator([example])["hidden_sets"][0] for example in examples])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_row_never_sees_its_own_token_nor_a_hidden_one(family):
    """A change of a token's embedding changes only rows that see it, and the state of the first token changes all."""
    model, batch = make_model(family).eval(), make_batch(packed=True, number=2)
    bounds = batch["cu_seq_lens_q"].long()
    tokens = FlatTokens(1, int(bounds[-1]), cu_seq_lens=bounds, sequence_lengths=bounds.diff().tolist())
    sees = seen_tokens(tokens, batch["hidden_sets"][0], batch["hidden_set"][0])
    assert not sees.diagonal(dim1=1, dim2=2)[:, 1:].any() and sees[:, :, 0].all()
    width = model.config.hidden_size
    embeddings = torch.randn(tokens.num_tokens, width, dtype=torch.double)
    positions = torch.randn(tokens.num_tokens, width, dtype=torch.double) if model.config.has_position_table else None
    states = torch.randn(2, width, dtype=torch.double)
    before = model.decoder(embeddings, positions, states, tokens, sees)
    flat_starts = batch["cu_seq_lens_q"][:-1].tolist()
    for token in range(tokens.num_tokens):
        changed = embeddings.clone()
        changed[token] += 1.0
        after = model.decoder(changed, positions, states, tokens, sees)
        sequence = max(i for i, start in enumerate(flat_starts) if start <= token)
        place = token - flat_starts[sequence]
        for row in range(tokens.num_tokens):
            inside = flat_starts[sequence] <= row < batch["cu_seq_lens_q"][sequence + 1]
            may = inside and place and bool(sees[sequence, row - flat_starts[sequence], place])
            assert torch.equal(before[row], after[row]) != bool(may), (token, row)
    after = model.decoder(embeddings, positions, states + 1.0, tokens, sees)
    assert (before != after).any(dim=1).all()


def test_the_folder_is_a_plain_encoder(tmp_path):
    model = RetroMAEModel(tiny_config(config_class_of("bert"))).eval()
    model.save_pretrained(tmp_path)
    loaded, info = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    ids = torch.tensor([[5, 9, 7]])
    torch.testing.assert_close(loaded(ids).logits, model.encoder(ids).logits)
    again = RetroMAEModel(model.config)
    again.load_folder(tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    (tmp_path / DECODER_FILE).unlink()
    with pytest.raises(ValueError, match=f"has no {DECODER_FILE}: resume from a checkpoint"):
        again.load_folder(tmp_path)


@pytest.mark.parametrize("missing", ["labels", "hidden_sets", "hidden_set"])
def test_what_the_decoder_needs(missing):
    batch = make_batch()
    del batch[missing]
    with pytest.raises(ValueError, match=f"{missing} is missing.*DataCollatorForRetroMAE"):
        make_model("bert")(**batch)


def test_what_retromae_refuses():
    objective = get_objective("retromae")
    with pytest.raises(ValueError, match="decoder_mask_probability=1 must be above 0 and below 1"):
        objective.with_options(decoder_mask_probability=1)
    with pytest.raises(ValueError, match="decoder_mask_probability=0 must be"):
        DataCollatorForRetroMAE(make_tokenizer(), decoder_mask_probability=0)
    with pytest.raises(
        ValueError, match="asks by position, which a bert of distances has not: use an encoder with absolute positions"
    ):
        objective.new_model(tiny_config(config_class_of("bert"), position_embedding_type="relative_key"))
    with pytest.raises(ValueError, match="xlnet has no head"):
        objective.model_class(config_class_of("xlnet"))


def test_a_published_encoder_is_trained_on_and_its_decoder_goes_on(tmp_path, capsys):
    """The folder loads in transformers and in sentence-transformers; a run from it has its decoder from the start."""
    write_texts(tmp_path)
    source = checkpoint(tmp_path, "bert")
    words = ("--recipe", "retromae", "--max-steps", "6", "--per-device-train-batch-size", "64")
    words += ("--set", "phases=[{steps: 6, length: 64, examples: 4}]")
    assert adapt(tmp_path, source, "first", *words, "--learning-rate", "0.01") == 0
    folder = tmp_path / "first" / "model"
    record = TrainingRecord.load(folder).objectives
    assert "decoder of one layer" in record["RetroMAE"] and "masked language modelling" in record
    metrics = [entry["metric"] for entry in TrainingRecord.load(folder).evaluation if entry["task"] == "fill-mask"]
    assert sorted(metrics) == ["accuracy", "perplexity"]  # the encoder's
    _, info = transformers.BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert SentenceTransformer(str(folder), device="cpu").encode(["a text"]).shape == (1, 18)
    before = load_file(folder / DECODER_FILE)
    assert adapt(tmp_path, folder, "second", *words, "--learning-rate", "1e-12") == 0
    after = load_file(tmp_path / "second" / "model" / DECODER_FILE)
    assert all(torch.allclose(value, after[name], atol=1e-6, rtol=0) for name, value in before.items())
    assert "tokens predicted from the state of the first one" in capsys.readouterr().out
