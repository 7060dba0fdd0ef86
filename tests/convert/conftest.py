"""Checkpoints to convert: small models in Hugging Face's format, and a run of megatron-core in processes of its own."""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nursery
import pytest
import s3_server
from s3_server import Server
from unsynced_files import unsynced_files

from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, RopeScaling

# transformers must not look for anything on the network.
os.environ["HF_HUB_OFFLINE"] = "1"

GROUPED = Architecture("grouped", "llama", 3, 32, 88, 4, 2, 250, 512)
ARCHITECTURES = {
    "grouped": GROUPED,
    "tied": dataclasses.replace(GROUPED, tie_embeddings=True, num_query_groups=4, norm_epsilon=1e-3),
    # The head is not hidden / heads, and the vocabulary needs no padding. With this base, scaling moves some frequencies
    # far enough to show within 400 tokens.
    "scaled": dataclasses.replace(
        GROUPED, num_query_groups=2, kv_channels=16, rotary_base=20000.0, rope_scaling=RopeScaling(32.0), vocab_size=256
    ),
}
TOKENS = [[(7 * position * position + 3) % 250 for position in range(400)]]

Job = dict[str, Any]
# Ten times what it takes on two busy cores.
LIMIT_SECONDS = 1800


@pytest.fixture(scope="module", autouse=True)
def _unsynced() -> Iterator[None]:
    with unsynced_files():
        yield


@pytest.fixture(scope="session")
def architectures() -> dict[str, Architecture]:
    return ARCHITECTURES


@pytest.fixture(scope="session")
def tokens() -> list[list[int]]:
    return TOKENS


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Run jobs for one of the scripts beside this file, all in the same processes."""

    def run(script: str, jobs: list[Job], world_size: int = 1) -> None:
        place = tmp_path_factory.mktemp("ranks")
        (place / "jobs.json").write_text(json.dumps(jobs))
        program = Path(__file__).with_name("forked_ranks.py")
        arguments = [script.removesuffix(".py"), place / "jobs.json", str(world_size), place]
        command = [nursery.python(), program, *arguments]
        with (place / "all.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(timeout=LIMIT_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert code == 0, "\n".join(path.read_text() for path in sorted(place.glob("*.log")))

    return run


@pytest.fixture(scope="session")
def megatron(ranks: Callable[..., None]) -> Callable[..., None]:
    """Run jobs for megatron_model.py, all in the same processes."""
    return functools.partial(ranks, "megatron_model.py")


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    """Write a Hugging Face directory of random weights with the safetensors library; `shards` of them get an index."""

    def write(directory: Path, architecture: Architecture, dtype: str = "float32", shards: int = 1) -> Path:
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(len(architecture.name))
        shapes = families.family_of(architecture).canonical(Model(architecture, architecture.vocab_size))
        tensors = {
            name: (torch.randn(shape, generator=generator) * 0.1 + (len(shape) == 1)).to(getattr(torch, dtype))
            for name, shape in shapes.items()
        }
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, dtype)))
        if shards == 1:
            save_file(tensors, directory / "model.safetensors", {"format": "pt"})
            return directory
        weight_map = {}
        for number in range(shards):
            name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            shard = dict(list(tensors.items())[number::shards])
            save_file(shard, directory / name, {"format": "pt"})
            weight_map |= dict.fromkeys(shard, name)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return directory

    return write


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> dict[str, Path]:
    """A Hugging Face directory per architecture, and `sharded`: `grouped` in bfloat16 and three files."""
    root = tmp_path_factory.mktemp("models")
    made = {name: write_model(root / name, architecture) for name, architecture in ARCHITECTURES.items()}
    return made | {"sharded": write_model(root / "sharded", GROUPED, "bfloat16", shards=3)}


@pytest.fixture(scope="session")
def stored_tensors() -> Callable[[Path], dict[str, bytes]]:
    """The bytes of every tensor of a Hugging Face directory, with dtype and shape, as the safetensors library reads them."""

    def read(directory: Path) -> dict[str, tuple[str, bytes]]:
        import torch
        from safetensors import safe_open

        found = {}
        for path in sorted(directory.glob("model*.safetensors")):
            with safe_open(path, "pt") as file:
                assert file.metadata() == {"format": "pt"}
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_tensor(name)
                    found[name] = (f"{tensor.dtype} {list(tensor.shape)}", tensor.flatten().view(torch.uint8).numpy().tobytes())
        return found

    return read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server.running(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def bucket(server: Server, request: pytest.FixtureRequest) -> str:
    return s3_server.new_bucket(request.node.name)
