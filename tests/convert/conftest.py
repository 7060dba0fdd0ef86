"""Checkpoints to convert: saved by megatron-core in processes of its own, and by transformers here."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from lt_shared import huggingface
from lt_shared.architecture import Architecture, RopeScaling

# transformers must not look for anything on the network.
os.environ["HF_HUB_OFFLINE"] = "1"

MODEL = Path(__file__).with_name("megatron_model.py")

GROUPED = Architecture("grouped", "llama", 3, 32, 88, 4, 2, 250, 512)
ARCHITECTURES = {
    "grouped": GROUPED,
    "tied": dataclasses.replace(GROUPED, tie_embeddings=True, num_query_groups=4, norm_epsilon=1e-3),
    # The head is not hidden / heads, and the vocabulary needs no padding. With this base, scaling moves some frequencies
    # far enough to show within 400 tokens.
    "scaled": dataclasses.replace(
        GROUPED, num_query_groups=1, kv_channels=16, rotary_base=20000.0, rope_scaling=RopeScaling(32.0), vocab_size=256
    ),
}
TOKENS = [[(7 * position * position + 3) % 250 for position in range(400)]]

Job = dict[str, Any]


@pytest.fixture(scope="session")
def architectures() -> dict[str, Architecture]:
    return ARCHITECTURES


@pytest.fixture(scope="session")
def tokens() -> list[list[int]]:
    return TOKENS


@pytest.fixture(scope="session")
def megatron(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Run jobs for megatron_model.py, all in the same processes."""

    def run(jobs: list[Job], world_size: int = 1) -> None:
        place = tmp_path_factory.mktemp("megatron")
        (place / "jobs.json").write_text(json.dumps(jobs))
        command = [sys.executable, "-W", "ignore", str(MODEL), str(place / "jobs.json")]
        ranks = []
        for rank in range(world_size):
            log = (place / f"{rank}.log").open("wb")
            ranks.append(subprocess.Popen([*command, str(rank), str(world_size), str(place / "store")], stdout=log, stderr=log))
            log.close()
        try:
            codes = [rank.wait(timeout=240) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert codes == [0] * world_size, "\n".join((place / f"{rank}.log").read_text() for rank in range(world_size))

    return run


def job(name: str, **more: Any) -> Job:
    architecture = ARCHITECTURES[name]
    return {"architecture": architecture.to_record(), "padded_vocab_size": 256, "tokens": TOKENS, **more}


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint that somebody else's software saved; `logits` float32 [1, position, vocabulary] of `TOKENS`."""

    directory: Path
    architecture: Architecture
    logits: numpy.ndarray


@pytest.fixture(scope="session")
def megatron_checkpoints(megatron: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    """One per architecture by one process; `tensor` is `grouped` cut by heads, `pipeline` is `tied` cut into 2 and 1 layers."""
    root = tmp_path_factory.mktemp("megatron-checkpoints")
    alone = [job(name, save=str(root / name), logits=str(root / f"{name}.npy")) for name in ARCHITECTURES]
    megatron([*alone, job("grouped", save=str(root / "bfloat16"), dtype="bfloat16", logits=str(root / "bfloat16.npy"))])
    tensor = job("grouped", save=str(root / "tensor"), tensor_parallel=2)
    megatron([tensor, job("tied", save=str(root / "pipeline"), pipeline_parallel=2)], world_size=2)
    kinds = {name: name for name in ARCHITECTURES} | {"bfloat16": "grouped", "tensor": "grouped", "pipeline": "tied"}
    logits = {name: name for name in kinds} | {"tensor": "grouped", "pipeline": "tied"}
    return {
        name: Saved(root / name, ARCHITECTURES[kind], numpy.load(root / f"{logits[name]}.npy")) for name, kind in kinds.items()
    }


@pytest.fixture(scope="session")
def hf_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    """One per architecture, and `grouped` as several shards of bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("hf-checkpoints")
    saved = {}
    for name, architecture in ARCHITECTURES.items():
        torch.manual_seed(len(name))
        config = LlamaConfig(**huggingface.to_config(architecture, "float32"))
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
            logits = model(torch.tensor(TOKENS)).logits.numpy()
        model.save_pretrained(root / name)
        saved[name] = Saved(root / name, architecture, logits)
        if name == "grouped":
            model.to(torch.bfloat16).save_pretrained(root / "sharded", max_shard_size="30KB")
            saved["sharded"] = Saved(root / "sharded", architecture, logits)
    return saved
