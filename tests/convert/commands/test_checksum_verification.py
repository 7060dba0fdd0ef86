"""Verification finds every changed byte of a result."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash
from safetensors.torch import load_file

from lt_convert.commands import checksum_verification, conversion
from lt_convert.commands.conversion import Request
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput, Progress


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan", "megatron-legacy"])
def test_a_changed_byte_anywhere_is_found(to: str, models: dict[str, Path], tmp_path: Path) -> None:
    made = convert(models["grouped"], to, tmp_path / "made")
    record = checksum_verification.verify(str(made))
    assert record["problems"] == []
    files = [path for path in made.rglob("*") if path.is_file() and path.name != "lt-convert.json"]
    assert record["files"] == len(files)
    assert record["bytes"] == sum(path.stat().st_size for path in files)
    for path in files:
        content = path.read_bytes()
        for position in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            assert len(checksum_verification.verify(str(made))["problems"]) == 1, (path, position)
        path.write_bytes(content)
    assert checksum_verification.verify(f"{made}/")["problems"] == []


def test_problems_name_the_tensor_and_the_file(models: dict[str, Path], tmp_path: Path) -> None:
    source = convert(models["grouped"], "megatron-dist", tmp_path / "run")
    made = convert(source, "hf", tmp_path / "hf")
    path = made / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] += 1
    (made / "config.json").unlink()
    (made / "generation_config.json").write_text("")
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    begin, end = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"]
    content[start + begin : start + end] = tensors["model.layers.1.mlp.up_proj.weight"].numpy().tobytes()
    path.write_bytes(content)
    assert checksum_verification.verify(str(made))["problems"] == [
        f"{path}: model.layers.1.mlp.up_proj.weight changed since it was written",
        f"{made}/generation_config.json: 0 bytes, expected 3",
        f"{made}/config.json: missing",
    ]


def test_without_checksums(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(NoInput, match=r"lt-convert\.json: no such file"):
        checksum_verification.verify(str(models["grouped"]))
    with pytest.raises(NoInput):
        checksum_verification.verify(str(tmp_path / "gone"))
    shutil.copytree(models["grouped"], tmp_path / "hf")
    (tmp_path / "hf" / "lt-convert.json").write_text("junk")
    with pytest.raises(BadData, match="malformed"):
        checksum_verification.verify(str(tmp_path / "hf"))


DIGESTS = {2: lambda content: hashlib.sha256(content).hexdigest(), 3: xxhash.xxh3_128_hexdigest}


@pytest.fixture(params=DIGESTS)
def made_by_hand(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of two pieces, the second a tensor; one in a directory; and one without content. Of both versions of the record."""
    contents = {"one": b"0123456789", "a/two": b"abc", "empty": b""}
    pieces = {"one": [(0, 4, ""), (4, 6, "t")], "a/two": [(0, 3, "")], "empty": []}
    files = {
        name: {
            "bytes": len(content),
            "pieces": [
                [begin, size, DIGESTS[request.param](content[begin : begin + size]), tensor, 0]
                for begin, size, tensor in pieces[name]
            ],
        }
        for name, content in contents.items()
    }
    record = {"v": request.param, "options": {}, "source": [], "files": files}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "lt-convert.json").write_text(json.dumps(record))
    return tmp_path


def test_every_piece_is_read_once_in_blocks(made_by_hand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[str, int, int]] = []
    advances: list[float] = []
    read = Files.read
    monkeypatch.setattr(
        Files,
        "read",
        lambda self, path, offset, length: reads.append((path, offset, length)) or read(self, path, offset, length),
    )
    monkeypatch.setattr(Progress, "advance", lambda self, done: advances.append(done))
    monkeypatch.setattr(checksum_verification, "READ_BYTES", 4)
    record = checksum_verification.verify(f"{made_by_hand}//")
    assert record == {"path": str(made_by_hand), "files": 3, "bytes": 13, "problems": []}
    one, two = f"{made_by_hand}/one", f"{made_by_hand}/a/two"
    assert reads == [(one, 0, 4), (one, 4, 4), (one, 8, 2), (two, 0, 3)]
    assert advances == [4, 4, 2, 3]


def test_the_progress_is_in_bytes_of_all_files(made_by_hand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    true = Progress.__init__
    monkeypatch.setattr(Progress, "__init__", lambda self, *arguments: given.append(arguments) or true(self, *arguments))
    checksum_verification.verify(str(made_by_hand))
    assert given == [("verify", 13, "B")]


def test_each_kind_of_problem(made_by_hand: Path) -> None:
    (made_by_hand / "one").write_bytes(b"012345678x")
    (made_by_hand / "a/two").write_bytes(b"abx")
    (made_by_hand / "empty").write_bytes(b"1")
    record = checksum_verification.verify(str(made_by_hand))
    assert record["problems"] == [
        f"{made_by_hand}/one: t changed since it was written",
        f"{made_by_hand}/a/two: bytes 0 to 3 changed since it was written",
        f"{made_by_hand}/empty: 1 bytes, expected 0",
    ]
    (made_by_hand / "one").write_bytes(b"x12345678")
    (made_by_hand / "empty").unlink()
    assert checksum_verification.verify(str(made_by_hand))["problems"] == [
        f"{made_by_hand}/one: 9 bytes, expected 10",
        f"{made_by_hand}/a/two: bytes 0 to 3 changed since it was written",
        f"{made_by_hand}/empty: missing",
    ]
    (made_by_hand / "one").write_bytes(b"x12345678x")
    assert checksum_verification.verify(str(made_by_hand))["problems"][:2] == [
        f"{made_by_hand}/one: bytes 0 to 4 changed since it was written",
        f"{made_by_hand}/one: t changed since it was written",
    ]
    (made_by_hand / "one").unlink()
    assert checksum_verification.verify(str(made_by_hand))["problems"] == [
        f"{made_by_hand}/one: missing",
        f"{made_by_hand}/a/two: bytes 0 to 3 changed since it was written",
        f"{made_by_hand}/empty: missing",
    ]


def test_the_result_as_text() -> None:
    record = {"path": "/out", "files": 3, "bytes": 1_234_567_890_123, "problems": []}
    assert list(checksum_verification.lines(record)) == ["/out: 3 files, 1,234.568 GB: as written"]
    assert list(checksum_verification.lines(record | {"problems": ["a: missing", "b: missing"]})) == [
        "a: missing",
        "b: missing",
        "/out: 3 files, 1,234.568 GB: 2 problems",
    ]


def test_what_to_do_without_checksums(tmp_path: Path) -> None:
    with pytest.raises(NoInput) as caught:
        checksum_verification.verify(f"{tmp_path}/")
    assert str(caught.value) == f"{tmp_path}/lt-convert.json: no such file"
    assert caught.value.hint == "only conversions have checksums; compare two checkpoints with lt-convert verify A B"
