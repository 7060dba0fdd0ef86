"""Damaged and hostile checkpoints of every format: a clear error, nothing written, nothing executed, little memory taken."""

import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import load_file

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.checkpoint import LegacyTarget
from lt_shared.console import BadData, NoInput, ToolError
from lt_shared.models.architecture import Architecture

TINY = Architecture("tiny", "llama", 2, 16, 24, 4, 2, 50, 64)
FORMATS = ("hf", "megatron-dist", "torchtitan", "megatron-legacy")
# Hugging Face's in files of torch: as today, and as before torch 1.6; Meta's files of two ranks.
SOURCES = (*FORMATS, "hf-torch", "hf-stream", "meta")
MUTATIONS = 15


@pytest.fixture(scope="module")
def checkpoints(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of every format, without checksums, as others leave it; that of Megatron without run.json, too."""
    root = tmp_path_factory.mktemp("hostile")
    paths = {"hf": write_model(root / "hf", TINY)}
    for name in FORMATS[1:]:
        target = LegacyTarget(2, 2) if name == "megatron-legacy" else LegacyTarget()
        paths[name] = Path(conversion.convert(Request(str(paths["hf"]), name, str(root / name), legacy_target=target)).path)
    (paths["megatron-dist"] / "run.json").unlink()
    (paths["megatron-dist"] / "checksums.json").unlink()
    (paths["megatron-legacy"] / "checksums.json").unlink()
    for name in ("lt-convert.json", "checksums.json"):
        (paths["torchtitan"] / name).unlink()
    for name in ("hf-torch", "hf-stream"):
        paths[name] = root / name
        paths[name].mkdir()
        shutil.copy(paths["hf"] / "config.json", paths[name])
        state = load_file(paths["hf"] / "model.safetensors")
        torch.save(state, paths[name] / "pytorch_model.bin", _use_new_zipfile_serialization=name == "hf-torch")
    paths["meta"] = root / "meta"
    paths["meta"].mkdir()
    (paths["meta"] / "params.json").write_text(json.dumps({"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": -1}))
    names = {"tok_embeddings": (50, 8), "norm": (16,), "output": (25, 16), "layers.0.attention.wo": (16, 8)}
    names |= {f"layers.0.attention.w{letter}": (8, 16) for letter in "qkv"}
    names |= {f"layers.0.feed_forward.w{number}": (16, 12) if number == 2 else (12, 16) for number in (1, 2, 3)}
    names |= {f"layers.0.{name}_norm": (16,) for name in ("attention", "ffn")}
    for rank in (0, 1):
        slices = {f"{name}.weight": torch.ones(shape) for name, shape in names.items()}
        torch.save(slices, paths["meta"] / f"consolidated.0{rank}.pth")
    return paths


@pytest.fixture
def copy(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        shutil.rmtree(tmp_path / "place", ignore_errors=True)
        return Path(shutil.copytree(checkpoints[name], tmp_path / "place" / "checkpoint"))

    return make


def refuse(directory: Path, error: type[ToolError] | tuple[type[ToolError], ...] = BadData) -> str:
    """Convert, expect a refusal that leaves nothing behind, and return its message."""
    before = sorted(directory.parent.rglob("*"))
    to = "torchtitan" if (directory / "config.json").exists() else "hf"
    with pytest.raises(error) as caught:
        conversion.convert(Request(str(directory), to, str(directory.parent / "out")))
    assert sorted(directory.parent.rglob("*")) == before
    assert caught.value.exit_code == 65 or error is not BadData
    return str(caught.value)


class Exploit:
    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


PICKLED = [
    ("megatron-dist", ".metadata"),
    ("megatron-dist", "common.pt"),
    ("torchtitan", ".metadata"),
    ("megatron-legacy", "mp_rank_00_000/model_optim_rng.pt"),
    ("megatron-legacy", "mp_rank_01_001/model_optim_rng.pt"),
    ("hf-torch", "pytorch_model.bin"),
    ("meta", "consolidated.01.pth"),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("name", "file"), PICKLED)
def test_exploits_in_every_pickle_run_nothing(name: str, file: str, zipped: bool, copy: Callable[[str], Path]) -> None:
    checkpoint = copy(name)
    ran = checkpoint.parent / "ran"
    for hostile in (
        Exploit(os.mkdir, str(ran)),
        Exploit(eval, f"__import__('os').mkdir({str(ran)!r})"),
        Exploit(exec, f"import os; os.mkdir({str(ran)!r})"),
        Exploit(subprocess.check_output, ["mkdir", str(ran)]),
        Exploit(pickle.loads, pickle.dumps(Exploit(os.mkdir, str(ran)))),
        Exploit(getattr, ran, "mkdir"),
    ):
        if zipped and file != ".metadata":
            torch.save({"args": hostile, "model": {}}, checkpoint / file)
        else:
            (checkpoint / file).write_bytes(pickle.dumps(hostile))
        refuse(checkpoint)
        assert not ran.exists()
        # A tracker of the checkpoint's place in a run would name the same files.
        refuse(Path(f"{checkpoint}/"))


def test_an_exploit_in_a_chunk_runs_nothing(copy: Callable[[str], Path]) -> None:
    for name in ("megatron-dist", "torchtitan"):
        checkpoint = copy(name)
        metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
        place = next(iter(metadata.storage_data.values()))
        content = io.BytesIO()
        torch.save(Exploit(os.mkdir, str(checkpoint.parent / "ran")), content)
        (checkpoint / "__9_9.distcp").write_bytes(content.getvalue())
        place.relative_path, place.offset, place.length = "__9_9.distcp", 0, len(content.getvalue())
        (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
        refuse(checkpoint)
        assert not (checkpoint.parent / "ran").exists()


def mutations(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The content with bytes changed, cut off or inserted; mostly near the beginning or the end, where headers lie."""

    def position() -> int:
        near = min(len(data), 3000)
        return min(
            len(data) - 1,
            chance.choice([chance.randrange(len(data)), chance.randrange(near), len(data) - 1 - chance.randrange(near)]),
        )

    while True:
        changed = bytearray(data)
        kind = chance.randrange(4)
        if kind < 2:
            for _ in range(chance.choice([1, 1, 3])):
                changed[position()] = chance.choice([chance.randrange(256), 0, 255, ord("9"), ord("-"), ord("/"), ord("r")])
        elif kind == 2:
            del changed[position() :]
        else:
            begin = position()
            changed[begin:begin] = chance.randbytes(chance.randrange(1, 9))
        yield bytes(changed)


@pytest.mark.parametrize("name", SOURCES)
def test_any_damage_is_refused_or_harmless(name: str, copy: Callable[[str], Path]) -> None:
    """Never another exception than ours, and never half a result. Some damage is to values, which only checksums would show."""
    checkpoint = copy(name)
    chance = random.Random(len(name))
    to = "torchtitan" if name.startswith("hf") else "hf"
    outcomes = set()
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != "lt-convert.json"):
        original = path.read_bytes()
        if not original:
            continue
        for changed, _ in zip(mutations(original, chance), range(MUTATIONS), strict=False):
            path.write_bytes(changed)
            try:
                conversion.convert(Request(str(checkpoint), to, str(checkpoint.parent / "out")))
                shutil.rmtree(checkpoint.parent / "out")
                outcomes.add("harmless")
            except (BadData, NoInput):
                outcomes.add("refused")
            assert [each.name for each in checkpoint.parent.iterdir()] == ["checkpoint"]
        path.write_bytes(original)
    # Every byte of Meta's archives of small tensors matters.
    assert outcomes | ({"harmless"} if name == "meta" else set()) == {"harmless", "refused"}


@pytest.mark.parametrize("name", SOURCES)
def test_any_missing_or_empty_file_is_refused(name: str, copy: Callable[[str], Path]) -> None:
    checkpoint = copy(name)
    endings = (".distcp", ".pt", ".safetensors", ".bin", ".pth")
    files = [path for path in checkpoint.rglob("*") if path.suffix in endings or path.name == ".metadata"]
    assert files
    for path in files:
        content = path.read_bytes()
        path.write_bytes(b"")
        refuse(checkpoint)
        path.unlink()
        refuse(checkpoint, (BadData, NoInput))
        path.write_bytes(content)


LIMITED = """
import re, sys
from pathlib import Path
from lt_convert.commands import conversion
from lt_shared import console
for directory in sys.argv[2:]:
    to = "torchtitan" if Path(directory, "config.json").exists() else "hf"
    try:
        conversion.convert(conversion.Request(directory, to, sys.argv[1]))
    except console.BadData:
        print("BadData", re.search(r"VmHWM: *(\\d+)", Path("/proc/self/status").read_text().replace("\\t", ""))[1])
"""


def refuse_cheaply(directories: list[Path], place: Path) -> None:
    """In a process of its own: BadData for each, within seconds and 200 MB."""
    arguments = [sys.executable, "-c", LIMITED, str(place / "out"), *map(str, directories)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    lines = result.stdout.splitlines()
    assert len(lines) == len(directories), (result.stdout, result.stderr)
    assert max(int(line.split()[1]) for line in lines) < 200_000, lines
    assert not (place / "out").exists()


ABSURD = [
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 10**6},
    {"vocab_size": 10**15},
    {"intermediate_size": 1 << 62},
    {"num_attention_heads": 10**9, "num_key_value_heads": 10**9, "hidden_size": 10**9},
    {"model_type": "mixtral", "num_local_experts": 10**9, "num_experts_per_tok": 2},
]
ABSURD_ARGUMENTS = [
    {"num_layers": 10**9},
    {"padded_vocab_size": 10**15, "vocab_size": 10**15},
    {"num_experts": 10**9, "moe_router_topk": 2},
]


def test_absurd_configurations(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    paths = []
    for number, change in enumerate(ABSURD):
        paths.append(Path(shutil.copytree(checkpoints["hf"], tmp_path / f"hf{number}")))
        config = json.loads((paths[-1] / "config.json").read_text())
        (paths[-1] / "config.json").write_text(json.dumps(config | change))
    for number, change in enumerate(ABSURD_ARGUMENTS):
        paths.append(Path(shutil.copytree(checkpoints["megatron-dist"], tmp_path / f"dist{number}")))
        _edit_arguments(paths[-1] / "common.pt", change)
    for number, change in enumerate(ABSURD_ARGUMENTS):
        paths.append(Path(shutil.copytree(checkpoints["megatron-legacy"], tmp_path / f"legacy{number}")))
        _edit_arguments(paths[-1] / "mp_rank_00_000" / "model_optim_rng.pt", change)
    refuse_cheaply(paths, tmp_path)


def _edit_arguments(path: Path, change: dict[str, Any]) -> None:
    content = torch.load(path, weights_only=False)
    vars(content["args"]).update(change)
    torch.save(content, path)


def test_absurd_shapes(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(checkpoints[name], tmp_path / name)) for name in ("megatron-dist", "torchtitan")]
    for directory in copies:
        metadata = pickle.loads((directory / ".metadata").read_bytes())
        entry = max(metadata.state_dict_metadata.values(), key=lambda entry: len(getattr(entry, "size", ())))
        entry.size = torch.Size([1 << 40, 0, 0])
        for chunk in entry.chunks:
            chunk.offsets, chunk.sizes = torch.Size([0, 0, 0]), entry.size
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
    copies.append(tmp_path / "empty")
    state = {
        "embedding.word_embeddings.weight": torch.zeros(64, 16),
        "decoder.layers.mlp.linear_fc1.weight": torch.empty(1 << 40, 0),
    }
    torch.distributed.checkpoint.save(state, checkpoint_id=copies[-1], no_dist=True)
    for name in ("common.pt", "metadata.json"):
        shutil.copy(checkpoints["megatron-dist"] / name, copies[-1])
    refuse_cheaply(copies, tmp_path)


def test_zip_bombs(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """A compressed pickle of 300 MB in 1 MB, and nine bytes of pickle that say they number 268 million objects."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", bytes(300_000_000))
    paths = []
    for number, (name, file) in enumerate(entry for entry in PICKLED if entry[1] != ".metadata"):
        compressed, numbering = (Path(shutil.copytree(checkpoints[name], tmp_path / f"{number}{kind}")) for kind in "cn")
        (compressed / file).write_bytes(bomb.getvalue())
        with zipfile.ZipFile(numbering / file, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02]r\x00\x00\x00\x10.")
        paths += [compressed, numbering]
    refuse_cheaply(paths, tmp_path)
