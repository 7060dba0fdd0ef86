"""Phi-3's config.json as its published files have it, which transformers 4.43 to 4.57 demand and 5 reads, too."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import from_config, to_config
from lt_shared.models.rope_scaling import LongRopeScaling

SHORT, LONG = (1.0, 1.1, 1.2, 1.3), (2.0, 3.0, 4.0, 5.0)
PHI3 = Architecture("run", "llama", 2, 32, 96, 4, 2, 250, 256, rope_scaling=LongRopeScaling(SHORT, LONG, 64), model_type="phi3")


@pytest.mark.parametrize("factor", [None, 4.0])
def test_longrope_has_three_fields(factor: float | None) -> None:
    """As `_rope_scaling_validation` of transformers 4.57: these fields and no other."""
    scaling = dataclasses.replace(LongRopeScaling(SHORT, LONG, 64), factor=factor)
    config = to_config(dataclasses.replace(PHI3, rope_scaling=scaling), "bfloat16")
    assert config["rope_scaling"] == {"type": "longrope", "short_factor": list(SHORT), "long_factor": list(LONG)}
    assert (config["original_max_position_embeddings"], config["rope_theta"]) == (64, 10000.0)
    assert from_config(config, "run") == PHI3


@pytest.mark.parametrize("positions", [32, 200])
def test_transformers_computes_the_published_frequencies(positions: int, tmp_path: Path) -> None:
    written = to_config(PHI3, "float32")
    published = {name: value for name, value in written.items() if name != "rope_parameters"}
    found = []
    for name, config in (("written", written), ("published", published)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        rotary = Phi3RotaryEmbedding(AutoConfig.from_pretrained(tmp_path / name))
        found.append(rotary(torch.zeros(1, positions, 32), torch.arange(positions)[None]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_another_factor_is_kept() -> None:
    """Published files cannot say it: transformers 5 takes it from rope_parameters."""
    architecture = dataclasses.replace(PHI3, rope_scaling=LongRopeScaling(SHORT, LONG, 64, factor=8.0))
    config = to_config(architecture, "bfloat16")
    assert config["rope_parameters"]["factor"] == 8.0
    assert from_config(config, "run") == architecture
