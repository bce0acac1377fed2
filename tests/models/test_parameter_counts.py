"""Sizes of the models of the papers, counted without memory."""

import pytest
import torch

from hf_encoders import (
    HfeAlbertConfig,
    HfeAlbertModel,
    HfeBertConfig,
    HfeBertModel,
    HfeElectraConfig,
    HfeElectraForMaskedLM,
    HfeElectraForPreTraining,
    HfeRobertaConfig,
    HfeRobertaModel,
    HfeXLMRobertaConfig,
    HfeXLMRobertaForMaskedLM,
    HfeXLMRobertaModel,
)


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
        (HfeXLMRobertaForMaskedLM, HfeXLMRobertaConfig.large(), 560_142_482),
    ],
)
def test_parameters_are_as_many_as_in_the_released_models(model_class: type, config: object, expected: int) -> None:
    with torch.device("meta"):
        model = model_class(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
