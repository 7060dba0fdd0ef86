"""Bits flip in a source: with checksums the conversion is refused, or its result is the same byte for byte."""

import hashlib
import json
import os
import random
import shutil
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from convert_models import TINY, content, run, run_here, write_model
from s3_server import names

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.engine import remote_writer
from lt_convert.formats.checkpoint import LegacyTarget
from lt_convert.tensors.output_files import OutputFile
from lt_shared.console import BadData, NoInput, ToolError
from lt_shared.files.checksums import FileChecksums, crc32

pytestmark = pytest.mark.usefixtures("unsynced")
FORMATS = ("hf", "megatron-dist", "megatron-legacy", "torchtitan")
FLIPS = 24


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run or directory of every format, converted."""
    root = tmp_path_factory.mktemp("checksums")
    write_model(root / "model", tokenizer=True)
    made = {}
    for name in FORMATS[1:]:
        target = LegacyTarget(2, 2) if name == "megatron-legacy" else LegacyTarget()
        conversion.convert(Request(str(root / "model"), name, str(root / name), legacy_target=target))
        made[name] = root / name
    conversion.convert(Request(str(root / "torchtitan"), "hf", str(root / "hf")))
    return made | {"hf": root / "hf"}


@pytest.fixture
def copy(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(checkpoints[name], tmp_path / name))


def result(source: Path, out: Path, **options: bool) -> dict[str, bytes] | ToolError:
    """What a conversion makes, or why it is refused; then nothing is left of it."""
    to = "torchtitan" if (source / "config.json").exists() else "hf"
    try:
        conversion.convert(Request(str(source), to, str(out), **options))
    except ToolError as error:
        assert [path.name for path in out.parent.iterdir() if out.name in path.name] == []
        return error
    found = content(out)
    shutil.rmtree(out)
    return found


def files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != "lt-convert.json"]


def flips(directory: Path, chance: random.Random) -> Iterator[str]:
    """Single bits, each put back before the next: at the ends and all over every file, more of them in larger ones. A tokenizer's
    files, which have a digest together, have one flip in each."""
    paths = files(directory)
    total = sum(path.stat().st_size for path in paths)
    for path in paths:
        data = path.read_bytes()
        positions = [chance.randrange(len(data)) for _ in range(max(1, FLIPS * len(data) // total))]
        for position in positions if "tokenizer" in path.parts else [0, len(data) - 1, *positions]:
            flipped = bytearray(data)
            flipped[position] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            yield f"{path.name} {position}"
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "recorded"),
    [*((name, "lt-convert.json") for name in FORMATS), *((name, FileChecksums.NAME) for name in FORMATS if name != "hf")],
)
def test_any_flipped_bit_is_refused_or_harmless(
    name: str, recorded: str, copy: Callable[[str], Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = copy(name)
    if recorded == FileChecksums.NAME:
        (source / "lt-convert.json").unlink()
        # Nothing but run.json in the iteration's directory says which tokenizer was used.
        shutil.rmtree(source / "tokenizer")
    expected = result(source, tmp_path / "out")
    assert isinstance(expected, dict)
    refused = harmless = 0
    for where in flips(source, random.Random(name)):
        found = result(source, tmp_path / "out")
        if isinstance(found, ToolError):
            assert found.exit_code == 65 or isinstance(found, NoInput), (where, str(found))
            refused += 1
        else:
            assert found == expected, where
            harmless += 1
    assert refused > FLIPS // 3
    record_property("summary", f"{refused + harmless} flipped bits in {name}, recorded in {recorded}: {harmless} harmless")


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_compared_to_the_last_bit(name: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    """The message names file and tensor; --no-verify takes the checkpoint as it is, and no other option."""
    source = copy(name)
    expected = result(source, tmp_path / "out")
    path = max(files(source), key=lambda path: (path.suffix in (".safetensors", ".distcp", ".pt"), path.stat().st_size))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle] ^= 1
    path.write_bytes(data)
    to = "torchtitan" if name == "hf" else "hf"
    refused = run(source, "--to", to, "-o", tmp_path / "out")
    assert (refused.returncode, refused.stdout) == (65, "")
    assert str(path) in refused.stderr
    assert ".weight: not as it was written, by its checksum" in refused.stderr
    assert "--no-verify" in refused.stderr
    assert not list(tmp_path.glob("*out*"))
    taken = result(source, tmp_path / "out", verify=False)
    assert isinstance(taken, dict)
    assert taken != expected


@pytest.mark.parametrize("records", [True, False])
def test_what_torch_stores_is_checked_where_nothing_else_is(records: bool, copy: Callable[[str], Path], tmp_path: Path) -> None:
    """A legacy checkpoint saved by torch, which may be told not to compute checksums: then it stores 0."""
    source = copy("megatron-legacy")
    (source / "lt-convert.json").unlink()
    (source / "release" / FileChecksums.NAME).unlink()
    paths = sorted(source.glob("release/mp_rank_*/model_optim_rng.pt"))
    before = torch.serialization.get_crc32_options()
    try:
        torch.serialization.set_crc32_options(records)
        for path in paths:
            torch.save(torch.load(path, weights_only=False), path)
    finally:
        torch.serialization.set_crc32_options(before)
    expected = result(source, tmp_path / "out")
    assert isinstance(expected, dict)
    path = paths[-1]
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda member: member.file_size)
    data = bytearray(path.read_bytes())
    names = struct.unpack_from("<HH", data, member.header_offset + 26)
    data[member.header_offset + 30 + sum(names) + member.file_size - 1] ^= 0x80
    path.write_bytes(data)
    found = result(source, tmp_path / "out")
    if records:
        assert isinstance(found, ToolError)
        assert f"{path}: " in str(found)
        assert "not as it was written, by its checksum" in str(found)
    else:
        assert isinstance(found, dict)
        assert found != expected


@pytest.mark.parametrize("to", ["hf", "megatron-legacy"])
def test_items_of_torchs_own_checkpoints_are_checked(to: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    """As TorchTitan saves them, with torch.distributed.checkpoint: each item has its own archive."""
    import torch.distributed.checkpoint as dcp

    source = copy("torchtitan")
    state = {
        name: torch.tensor(numpy.random.default_rng(seed).standard_normal(shape, dtype=numpy.float32))
        for seed, (name, shape) in enumerate(_titan_shapes(source).items())
    }
    step = tmp_path / "run" / "step-3"
    dcp.save(state, checkpoint_id=step, no_dist=True)
    shutil.copy(source.parent / "titan-config.json", tmp_path / "run" / "config.json")
    convert = ["--to", to, "-o", tmp_path / "out"]
    assert run_here(step, *convert).returncode == 0
    shutil.rmtree(tmp_path / "out")
    refused = 0
    (shard,) = step.glob("*.distcp")
    data = shard.read_bytes()
    values = state["layers.1.feed_forward.w2.weight"].numpy().tobytes()
    for position in (0, 1, len(values) // 2, len(values) - 1):
        flipped = bytearray(data)
        flipped[data.index(values) + position] ^= 4
        shard.write_bytes(flipped)
        done = run_here(step, *convert)
        refused += done.returncode == 65
        assert "layers.1.feed_forward.w2.weight: not as it was written" in done.stderr
    assert refused == 4


def _titan_shapes(source: Path) -> dict[str, tuple[int, ...]]:
    from lt_convert.containers import dcp as container
    from lt_convert.formats import torchtitan
    from lt_convert.tensors.source_files import Files
    from lt_shared.models import huggingface

    (source.parent / "titan-config.json").write_text(json.dumps(huggingface.to_config(TINY, "float32")))
    with Files() as opened:
        return {name: tensor.shape for name, tensor in torchtitan.model_tensors(container.read(str(source), opened)).items()}


def test_the_checksums_that_are_written_cover_every_object(checkpoints: dict[str, Path]) -> None:
    """Computed anew, with zlib; the ranges are those that `.metadata` names, and what is between them."""
    import pickle
    import zlib

    release = checkpoints["megatron-dist"] / "release"
    recorded = FileChecksums.read(release)
    assert recorded is not None
    assert set(recorded.ranges) == {path.name for path in release.iterdir()} - {FileChecksums.NAME}
    for name, ranges in recorded.ranges.items():
        data, position = (release / name).read_bytes(), 0
        for size, checksum in ranges:
            assert zlib.crc32(data[position : position + size]) == checksum
            position += size
        assert position == len(data)
    metadata = pickle.loads((release / ".metadata").read_bytes())
    for stored in metadata.storage_data.values():
        (found,) = recorded.within(stored.relative_path, stored.offset, stored.length)
        assert found[:2] == (stored.offset, stored.length)


@pytest.mark.parametrize("change", ["gone", "shorter", "another name", "no record of a file"])
def test_the_record_and_the_files_must_fit(change: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy("megatron-dist")
    (source / "lt-convert.json").unlink()
    path = source / "release" / FileChecksums.NAME
    record = json.loads(path.read_text())
    if change == "gone":
        (source / "release" / "__0_0.distcp").unlink()
    elif change == "shorter":
        record["crc32"]["__0_0.distcp"].pop()
    elif change == "another name":
        record["crc32"]["__0_1.distcp"] = record["crc32"].pop("__0_0.distcp")
    else:
        del record["crc32"][".metadata"]
    path.write_text(json.dumps(record))
    found = result(source, tmp_path / "out")
    assert isinstance(found, ToolError)
    assert found.exit_code == 65


def test_older_conversions_have_sha256_alone(copy: Callable[[str], Path], tmp_path: Path) -> None:
    source = copy("hf")
    record = json.loads((source / "lt-convert.json").read_text())
    for name, entry in record["files"].items():
        content = (source / name).read_bytes()
        entry["pieces"] = [
            [begin, size, hashlib.sha256(content[begin:][:size]).hexdigest(), tensor]
            for begin, size, _, tensor, _ in entry["pieces"]
        ]
    record["v"] = 2
    (source / "lt-convert.json").write_text(json.dumps(record))
    expected = result(source, tmp_path / "out")
    assert isinstance(expected, dict)
    data = bytearray((source / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (source / "model.safetensors").write_bytes(data)
    found = result(source, tmp_path / "out")
    assert isinstance(found, ToolError)
    assert "lm_head.weight: not as it was written" in str(found)


def test_a_resumed_conversion_checks_what_the_first_has_read(
    copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is damaged before the first run, which is interrupted before it could notice."""
    from lt_convert.tensors.source_checksums import SourceChecksums

    source = copy("hf")
    path = source / "model.safetensors"
    data, status = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SourceChecksums, "was_read", lambda *arguments: None)
        patch.setattr(SourceChecksums, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            conversion.convert(Request(str(source), "torchtitan", str(tmp_path / "out")))
    assert (tmp_path / ".out.partial").is_dir()
    refused = run(source, "--to", "torchtitan", "-o", tmp_path / "out")
    assert "resumes after" in refused.stderr
    assert refused.returncode == 65, refused.stderr
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("to", ["torchtitan", "megatron-dist", "megatron-legacy"])
def test_a_damaged_source_leaves_nothing(
    to: str, bucket: str, copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store, where it is noticed when all tensors are there: neither they nor the journal, from which it would go on."""
    from lt_convert.tensors.source_checksums import SourceChecksums

    uploaded: list[set[str]] = []
    finish = SourceChecksums.finish

    def compare(*arguments: Any) -> None:
        uploaded.append(names(f"{bucket}/out"))
        finish(*arguments)

    source = copy("hf")
    path = source / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with monkeypatch.context() as patch:
        patch.setattr(SourceChecksums, "was_read", lambda *arguments: None)
        patch.setattr(SourceChecksums, "finish", compare)
        with pytest.raises(BadData, match=r"model\.safetensors"):
            conversion.convert(Request(str(source), to, f"{bucket}/out"))
    assert len(uploaded[0]) > 1 and ".lt-convert.journal" in uploaded[0]
    assert names(f"{bucket}/out") == set()
    path.write_bytes(whole)
    conversion.convert(Request(str(source), to, f"{bucket}/out"))
    assert ".lt-convert.journal" not in names(f"{bucket}/out")


def test_what_is_still_uploaded_beside_the_damage_is_deleted(
    bucket: str, copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the second rank's file turns out to be made from damaged values, that of the first is on its way."""
    failed = threading.Event()
    upload = remote_writer._upload

    def in_turn(output: OutputFile, *arguments: Any) -> Any:
        if "mp_rank_01" in output.name:
            failed.set()
            raise BadData("damaged")
        assert failed.wait(60)
        return upload(output, *arguments)

    monkeypatch.setattr(remote_writer, "_upload", in_turn)
    with pytest.raises(BadData, match="damaged"):
        conversion.convert(Request(str(copy("hf")), "megatron-legacy", f"{bucket}/out", legacy_target=LegacyTarget(2, 1)))
    assert names(f"{bucket}/out") == set()


def test_crc32_is_zlibs() -> None:
    import zlib

    data = random.Random(0).randbytes(100_000)
    assert crc32(data[50_000:], crc32(data[:50_000])) == zlib.crc32(data)
