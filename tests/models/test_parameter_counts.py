"""Sizes of the models of the papers, counted without memory."""

import pytest
import torch

from hf_encoders import (
    HfeAlbertConfig,
    HfeAlbertModel,
    HfeBertConfig,
    HfeBertModel,
    HfeDebertaV2Config,
    HfeDebertaV2Model,
    HfeDistilBertConfig,
    HfeDistilBertForMaskedLM,
    HfeDistilBertModel,
    HfeElectraConfig,
    HfeElectraForMaskedLM,
    HfeElectraForPreTraining,
    HfeRobertaConfig,
    HfeRobertaForMaskedLM,
    HfeRobertaModel,
    HfeXLMConfig,
    HfeXLMModel,
    HfeXLMRobertaConfig,
    HfeXLMRobertaForMaskedLM,
    HfeXLMRobertaModel,
    HfeXLMWithLMHeadModel,
    HfeXLNetConfig,
    HfeXLNetLMHeadModel,
    HfeXLNetModel,
)


# Sizes of the released models: mlm-en-2048, mlm-tlm-xnli15-1024, mlm-100-1280 (and mlm-17-1280).
XLM_EN = {"vocab_size": 30_145, "emb_dim": 2048, "n_layers": 12, "n_heads": 16}
XLM_15 = {"vocab_size": 95_000, "emb_dim": 1024, "n_layers": 12, "n_heads": 8, "n_langs": 15, "use_lang_emb": True}
XLM_100 = {"vocab_size": 200_000, "emb_dim": 1280, "n_layers": 16, "n_heads": 16}


@pytest.mark.parametrize(
    ("model_class", "config", "expected"),
    [
        (HfeBertModel, HfeBertConfig.base(), 109_482_240),
        (HfeBertModel, HfeBertConfig.large(), 335_141_888),
        (HfeRobertaModel, HfeRobertaConfig.base(), 124_645_632),
        (HfeRobertaModel, HfeRobertaConfig.large(), 355_359_744),
        (HfeAlbertModel, HfeAlbertConfig.base(), 11_683_584),
        (HfeAlbertModel, HfeAlbertConfig.large(), 17_683_968),
        (HfeAlbertModel, HfeAlbertConfig.xlarge(), 58_724_864),
        (HfeAlbertModel, HfeAlbertConfig.xxlarge(), 222_595_584),
        (HfeRobertaForMaskedLM, HfeRobertaConfig(num_hidden_layers=6), 82_170_201),  # distilroberta
        (HfeDistilBertModel, HfeDistilBertConfig.base(), 66_362_880),
        (HfeDistilBertForMaskedLM, HfeDistilBertConfig.base(), 66_985_530),
        (HfeDistilBertModel, HfeDistilBertConfig.base(vocab_size=28_996), 65_190_912),  # cased
        (HfeDistilBertForMaskedLM, HfeDistilBertConfig.base(vocab_size=28_996), 65_812_036),
        (HfeDistilBertModel, HfeDistilBertConfig.base(vocab_size=119_547), 134_734_080),  # multilingual
        (HfeDistilBertForMaskedLM, HfeDistilBertConfig.base(vocab_size=119_547), 135_445_755),
        (HfeXLMRobertaModel, HfeXLMRobertaConfig.base(), 278_043_648),
        (HfeXLMRobertaForMaskedLM, HfeXLMRobertaConfig.base(), 278_295_186),
        (HfeXLMRobertaModel, HfeXLMRobertaConfig.large(), 559_890_432),
        # Released: discriminators with their head, and generators; that of small is as wide as its discriminator.
        (HfeElectraForPreTraining, HfeElectraConfig.small(), 13_549_057),
        (HfeElectraForPreTraining, HfeElectraConfig.base(), 109_483_009),
        (HfeElectraForPreTraining, HfeElectraConfig.large(), 335_142_913),
        (HfeElectraForMaskedLM, HfeElectraConfig.small(generator_size=1).generator_config(), 13_546_682),
        (HfeElectraForMaskedLM, HfeElectraConfig.base().generator_config(), 33_740_602),
        (HfeElectraForMaskedLM, HfeElectraConfig.large().generator_config(), 51_295_290),
        (HfeDebertaV2Model, HfeDebertaV2Config.xsmall(), 70_682_112),
        (HfeDebertaV2Model, HfeDebertaV2Config.small(), 141_304_320),
        (HfeDebertaV2Model, HfeDebertaV2Config.base(), 183_831_552),
        (HfeDebertaV2Model, HfeDebertaV2Config.large(), 434_012_160),
        (HfeXLMRobertaForMaskedLM, HfeXLMRobertaConfig.large(), 560_142_482),
        (HfeXLMModel, HfeXLMConfig(**XLM_EN), 667_088_896),
        (HfeXLMWithLMHeadModel, HfeXLMConfig(**XLM_EN), 667_119_041),
        (HfeXLMModel, HfeXLMConfig(**XLM_15), 248_976_384),
        (HfeXLMWithLMHeadModel, HfeXLMConfig(**XLM_15), 249_071_384),
        (HfeXLMModel, HfeXLMConfig(**XLM_100), 571_496_960),
        (HfeXLMWithLMHeadModel, HfeXLMConfig(**XLM_100), 571_696_960),
        (HfeXLNetModel, HfeXLNetConfig.base(), 116_718_336),
        (HfeXLNetLMHeadModel, HfeXLNetConfig.base(), 116_750_336),
        (HfeXLNetModel, HfeXLNetConfig.large(), 360_268_800),
        (HfeXLNetLMHeadModel, HfeXLNetConfig.large(), 360_300_800),
    ],
)
def test_parameters_are_as_many_as_in_the_released_models(model_class: type, config: object, expected: int) -> None:
    with torch.device("meta"):
        model = model_class(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
