"""Models to average, and what their average is by plain arithmetic."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_shared.models import huggingface as model_configuration
from lt_shared.models.architecture import Architecture

Tensors = dict[str, torch.Tensor]
# Of three models.
WEIGHTS = (0.5, 0.2, 0.3)


def write(directory: Path, architecture: Architecture, seed: int, dtype: str = "float32") -> Path:
    """A model of transformers' format with the values of a run at iteration `seed`: those of the others, and some noise."""
    shapes = families.family_of(architecture).canonical(Model(architecture, architecture.vocab_size))
    first, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    values = {
        name: torch.randn(shape, generator=first) * 0.1 + torch.randn(shape, generator=own) * 0.01
        for name, shape in shapes.items()
    }
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(model_configuration.to_config(architecture, dtype)))
    save_file({name: value.to(getattr(torch, dtype)) for name, value in values.items()}, directory / "model.safetensors")
    return directory


def average(models: Sequence[Path], weights: Sequence[float]) -> Tensors:
    """The exact average, in the dtype of the models."""
    loaded = [load_file(model / "model.safetensors") for model in models]
    return {
        name: sum(weight * model[name].double() for weight, model in zip(weights, loaded, strict=True)).float().to(value.dtype)
        for name, value in loaded[0].items()
    }


def values(directory: Path) -> Tensors:
    return {name: value for path in sorted(directory.glob("model*.safetensors")) for name, value in load_file(path).items()}


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name
