"""The columns of metrics that compare predicted classes with true ones."""

import datasets


def class_features(config_name: str) -> datasets.Features:
    """`predictions` and `references`: a class id an item, or one 0 or 1 a class in the configuration `multilabel`.

    Raises:
        ValueError: for another configuration.
    """
    if config_name not in ("default", "multilabel"):
        raise ValueError(f"config_name={config_name!r}: must be 'default' or 'multilabel'.")
    column = datasets.Value("int64")
    if config_name == "multilabel":
        column = datasets.Sequence(column)
    return datasets.Features({"predictions": column, "references": column})
