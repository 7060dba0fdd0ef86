"""Configurations of published Hugging Face models, which recipes take by their names.

tests/train/huggingface_configs.py writes the table.
"""

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("huggingface_configs.json").read_text()
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return models


def config_of(name: str) -> dict[str, Any] | None:
    """Return the values of the config.json of the model `name`, or None for a model that the table lacks."""
    return _table().get(name)
