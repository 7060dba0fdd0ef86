"""A sidecar is read only in the shape in which it is written; it tells what a dataset was made from, and whether it is whole."""

import json
import os
import struct
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lt_preprocess.datasets import provenance
from lt_preprocess.datasets.provenance import Derivation
from lt_shared.console import BadData, CannotCreate, NoInput
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset
from lt_shared.files import ownership, storage
from lt_shared.files.checksums import FileChecksum

SHARD = {"index": 1, "count": 2}


def write_sidecar(prefix: str | Path, **record: Any) -> None:
    storage.write_bytes(f"{prefix}.json", json.dumps({"dataset": {"prefix": "a"}} | record).encode())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"options": None, "sources": None, "part": None, "counts": None, "run": None, "crc32": None},
        {"options": {}},
        {"options": {"json_keys": ["a", "b"], "json_key": "b", "append_eod": False, "special_tokens": "text", "shard": SHARD}},
        {"options": {"json_keys": None, "json_key": None, "append_eod": None, "special_tokens": None, "shard": None}},
        {"options": {"json_keys": ["a"]}},
        {"options": {"json_key": "a", "unknown": 5}},
        {"sources": []},
        {"sources": [{"path": "a"}, {"path": "b", "size_bytes": 1}]},
        {"part": {"is_last": False}},
        {"part": {"index": 0, "is_last": True}},
        {"counts": {}},
        {"counts": {"documents": 0, "sequences": 0, "tokens": 0, "bad_lines": 0}},
        {"run": "a"},
        {"crc32": {"bin": [0, 0], "idx": [42, 1]}},
    ],
    ids=json.dumps,
)
def test_a_sound_sidecar(tmp_path: Path, record: dict[str, Any]) -> None:
    write_sidecar(tmp_path / "a", **record)
    assert provenance.read_sidecar(str(tmp_path / "a")) == {"dataset": {"prefix": "a"}} | record
    assert provenance.tokenizing_options(str(tmp_path / "a")) == (record.get("options") or {})


def test_no_sidecar(tmp_path: Path) -> None:
    assert provenance.read_sidecar(str(tmp_path / "a")) is None
    assert provenance.tokenizing_options(str(tmp_path / "a")) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("options", options) for options in (5, "a", [], {"json_keys": 5}, {"json_keys": "ab"}, {"json_keys": []})),
        *(("options", options) for options in ({"json_keys": ["a", 5]}, {"json_keys": [5, "a"], "json_key": "a"})),
        *(("options", {"json_keys": ["a"], "json_key": key}) for key in ("b", 5, None)),
        ("options", {"json_keys": ["a"], "json_key": "b", "shard": SHARD}),
        *(("options", options) for options in ({"json_key": 5}, {"append_eod": 1}, {"append_eod": "a"}, {"special_tokens": 5})),
        *(("options", {"shard": shard}) for shard in (5, "a", [], {}, {"index": 0}, {"count": 1}, {"index": None, "count": 1})),
        *(
            ("options", {"shard": shard})
            for shard in ({"index": "a", "count": 1}, {"index": 0, "count": "a"}, {"index": 0, "count": True})
        ),
        *(("sources", files) for files in (5, "a", {}, [5], [{}], [{"path": 5}], [{"path": ""}], [{"path": None}])),
        *(("sources", files) for files in ([{"path": "a"}, {"path": 5}], [{"path": 5}, {"path": "a"}])),
        *(
            ("part", part)
            for part in (5, "a", [], {}, {"index": 0}, {"index": "a", "is_last": True}, {"index": True, "is_last": True})
        ),
        *(("part", {"index": 0, "is_last": value}) for value in (None, 1, "a")),
        *(
            ("counts", counts)
            for counts in (5, "a", [], {"documents": "a"}, {"sequences": True}, {"tokens": 1.5}, {"bad_lines": []})
        ),
        *(("run", run) for run in (5, [], {}, True)),
    ],
    ids=str,
)
def test_a_malformed_field(tmp_path: Path, field: str, value: Any) -> None:
    write_sidecar(tmp_path / "a", **{field: value})
    with pytest.raises(BadData) as caught:
        provenance.read_sidecar(str(tmp_path / "a"))
    assert str(caught.value) == f"{tmp_path}/a.json: not a dataset description: {field} is malformed"
    assert caught.value.hint == "delete it to use the dataset without it"


def test_malformed_checksums(tmp_path: Path) -> None:
    write_sidecar(tmp_path / "a", crc32={"bin": [1, 2]})
    with pytest.raises(BadData, match=rf"^{tmp_path}/a\.json: malformed checksums: 'idx'$"):
        provenance.read_sidecar(str(tmp_path / "a"))


def test_the_options_that_sources_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shared(*options: dict[str, Any] | None) -> dict[str, Any]:
        for number, one in enumerate(options):
            write_sidecar(tmp_path / str(number), options=one)
        return provenance.shared_options([Dataset(str(tmp_path / str(number))) for number in range(len(options))])

    assert shared({"append_eod": True, "json_key": "a"}) == {"append_eod": True, "json_key": "a"}
    assert shared({"json_key": "a", "run": 1}, {"json_key": "a", "run": 2}) == {"json_key": "a"}
    assert shared({"json_key": "a", "run": 1}, {"json_key": "a"}, {"run": 1}) == {}
    assert shared({"json_key": "a"}, None) == {}
    assert shared(None, {"json_key": "a"}) == {}
    assert shared({"append_eod": True}, {"append_eod": True}, {}) == {}
    assert capsys.readouterr().err == ""
    assert shared({"append_eod": True, "json_key": "a"}, {"append_eod": False, "json_key": "a"}) == {"json_key": "a"}
    assert "some of the datasets were made with --append-eod and some without" in capsys.readouterr().err


def position(files: str, part: int, is_last: bool, shard: tuple[int, int] | None = None) -> dict[str, Any]:
    """The sidecar of a part that was made from files with names of one letter."""
    return {
        "sources": [{"path": file, "size_bytes": ord(file)} for file in files],
        "part": {"index": part, "is_last": is_last},
        "options": {"shard": {"index": shard[0], "count": shard[1]} if shard else None},
    }


WHOLE = position("a", 0, True)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([WHOLE], "a"),
        ([WHOLE, position("bc", 0, True)], "abc"),
        ([WHOLE, WHOLE], "aa"),
        ([position("", 0, True)], ""),
        ([position("ab", 0, False), position("bc", 1, True)], "abc"),
        ([position("ab", 0, False), position("b", 1, False), position("bc", 2, True), WHOLE], "abca"),
        ([position("ab", 0, True, (0, 2)), position("bc", 0, True, (1, 2))], "abc"),
        ([position("a", 0, True, (0, 3)), position("a", 0, True, (1, 3)), position("ab", 0, True, (2, 3)), WHOLE], "aba"),
        (
            [
                position("a", 0, False, (0, 2)),
                position("a", 1, True, (0, 2)),
                position("b", 0, False, (1, 2)),
                position("c", 1, True, (1, 2)),
            ],
            "abc",
        ),
        ([position("a", 0, False)], None),
        ([position("a", 1, True)], None),
        ([position("a", 0, True, (1, 2))], None),
        ([position("a", 0, True, (0, 2))], None),
        ([position("a", 0, False, (0, 2)), position("a", 0, True, (1, 2))], None),
        ([position("a", 0, True, (0, 2)), position("a", 1, True, (1, 2))], None),
        ([position("a", 0, False), position("a", 0, True)], None),
        ([position("a", 0, False), position("a", 2, True)], None),
        ([position("a", 0, True, (0, 3)), position("a", 0, True, (2, 3))], None),
        ([position("aa", 0, True)], None),
        ([{}], None),
        ([WHOLE, {}], None),
        *(([WHOLE | {name: None}], None) for name in ("sources", "part", "options")),
        ([WHOLE | {"part": {"is_last": True}}], None),
    ],
    ids=str,
)
def test_the_files_that_sources_were_made_from(tmp_path: Path, records: list[dict[str, Any]], expected: str | None) -> None:
    """In the order of the runs; a file counts once in each."""
    for number, record in enumerate(records):
        write_sidecar(tmp_path / str(number), **record)
    found = provenance.shared_sources([Dataset(str(tmp_path / str(number))) for number in range(len(records))])
    assert found == (None if expected is None else [{"path": file, "size_bytes": ord(file)} for file in expected])


def test_the_files_of_a_dataset_without_sidecar_are_not_known(tmp_path: Path) -> None:
    assert provenance.shared_sources([Dataset(str(tmp_path / "a"))]) is None


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Two documents of three tokens together."""
    with indexed_dataset.Writer(str(tmp_path / "a"), np.uint16) as writer:
        writer.append_document(np.array([1, 2]))
        writer.append_document(np.array([3]))
        writer.publish()
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<3H", 1, 2, 3)
    return str(tmp_path / "a")


def recorded(prefix: str) -> dict[str, FileChecksum]:
    contents = {ending: Path(f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx")}
    return {ending: FileChecksum(len(content), zlib.crc32(content)) for ending, content in contents.items()}


def test_what_a_dataset_was_derived_from(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(prefix).parent)
    expected: dict[str, Any] = {"prefix": prefix}
    for ending in ("bin", "idx"):
        status = os.stat(f"{prefix}.{ending}")
        path = f"{prefix}.{ending}"
        expected[ending] = {"path": path, "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    assert Derivation.of("merge", {"seed": 1}, [Dataset("a"), Dataset(prefix)]) == Derivation(
        "merge", {"seed": 1}, [expected, expected]
    )
    Path(f"{prefix}.idx").unlink()
    with pytest.raises(NoInput, match=r"a\.idx: no such file"):
        Derivation.of("merge", {}, [Dataset("a")])


def test_the_content_of_a_sidecar() -> None:
    derivation = Derivation("shuffle", {"seed": 7}, [{"prefix": "/b"}])
    checksums = {"bin": FileChecksum(6, 7), "idx": FileChecksum(8, 9)}
    path, content = provenance.sidecar(
        Dataset("/ä/a", 2, 3), checksums, derivation, {"json_key": "text"}, [{"path": "/c", "size_bytes": 5}]
    )
    assert path == "/ä/a.json"
    expected = f"""{{
  "v": 2,
  "dataset": {{
    "v": 1,
    "kind": "dataset",
    "prefix": "/ä/a",
    "documents": 2,
    "tokens": 3,
    "weight": 1.0
  }},
  "crc32": {{
    "bin": [
      6,
      7
    ],
    "idx": [
      8,
      9
    ]
  }},
  "sources": [
    {{
      "path": "/c",
      "size_bytes": 5
    }}
  ],
  "options": {{
    "json_key": "text"
  }},
  "derivation": {{
    "command": "shuffle",
    "options": {{
      "seed": 7
    }},
    "sources": [
      {{
        "prefix": "/b"
      }}
    ]
  }},
  "made_by": {{
    "lt-preprocess": "{metadata.version("lt-preprocess")}"
  }},
  "own_crc32": "00000000"
}}
"""
    assert content.decode() == expected.replace("00000000", f"{zlib.crc32(expected.encode()):08x}")
    assert json.loads(provenance.sidecar(Dataset("a"), checksums, derivation, {})[1])["sources"] is None


ORIGIN = Derivation("shuffle", {"seed": 7}, [{"prefix": "/b"}])


@pytest.fixture
def finished(prefix: str) -> Dataset:
    """The same dataset with the sidecar of a finished command."""
    made = Dataset(prefix, 2, 3, "uint16")
    path, content = provenance.sidecar(made, recorded(prefix), ORIGIN, {})
    Path(path).write_bytes(content)
    assert provenance.finished(prefix, ORIGIN) == made
    return made


def change_sidecar(prefix: str, **changes: Any) -> None:
    path = Path(f"{prefix}.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


def test_another_command_has_not_finished(finished: Dataset) -> None:
    for other in (
        Derivation("merge", ORIGIN.options, ORIGIN.sources),
        Derivation(ORIGIN.command, {"seed": 8}, ORIGIN.sources),
        Derivation(ORIGIN.command, ORIGIN.options, []),
    ):
        assert provenance.finished(finished.prefix, other) is None


@pytest.mark.parametrize("field", ["documents", "tokens", "dtype"])
def test_a_dataset_that_is_not_the_described_one_is_not_finished(finished: Dataset, field: str) -> None:
    change_sidecar(finished.prefix, dataset={"prefix": "a", "documents": 2, "tokens": 3, "dtype": "uint16", field: None})
    assert provenance.finished(finished.prefix, ORIGIN) is None
    change_sidecar(finished.prefix, dataset={"prefix": "a", "documents": 2, "tokens": 3, "dtype": "uint16"})
    assert provenance.finished(finished.prefix, ORIGIN) == finished


def flip_border(prefix: str) -> None:
    """The second document begins at the first sequence, too, which a reader does not refuse."""
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    assert content[-24:] == struct.pack("<3q", 0, 1, 2)
    content[-16] = 0
    Path(f"{prefix}.idx").write_bytes(content)


@pytest.mark.parametrize("what", ["no sidecar", "malformed sidecar", "no bin", "no idx", "short bin", "other idx"])
def test_a_damaged_dataset_is_not_finished(finished: Dataset, what: str) -> None:
    prefix = finished.prefix
    if what == "other idx":
        flip_border(prefix)
    elif what == "short bin":
        os.truncate(f"{prefix}.bin", 4)
    elif what == "malformed sidecar":
        Path(f"{prefix}.json").write_text("[")
    else:
        Path(f"{prefix}.{ {'no sidecar': 'json', 'no bin': 'bin', 'no idx': 'idx'}[what] }").unlink()
    assert provenance.finished(prefix, ORIGIN) is None


def test_whether_an_index_is_sound(prefix: str) -> None:
    checksums = recorded(prefix)
    assert provenance.is_index_sound(prefix, {"crc32": checksums}) is True
    for ending in ("bin", "idx"):
        for size_bytes in (checksums[ending].size_bytes - 1, checksums[ending].size_bytes + 1):
            other = checksums | {ending: FileChecksum(size_bytes, checksums[ending].crc32)}
            assert provenance.is_index_sound(prefix, {"crc32": other}) is False
    other = checksums | {"bin": FileChecksum(checksums["bin"].size_bytes, 1)}
    assert provenance.is_index_sound(prefix, {"crc32": other}) is True
    other = checksums | {"idx": FileChecksum(checksums["idx"].size_bytes, 1)}
    assert provenance.is_index_sound(prefix, {"crc32": other}) is False
    with pytest.raises(BadData, match=rf"^{prefix}\.json: malformed checksums"):
        provenance.is_index_sound(prefix, {"crc32": 5})
    Path(f"{prefix}.bin").unlink()
    with pytest.raises(NoInput):
        provenance.is_index_sound(prefix, {"crc32": checksums})


def test_an_index_without_checksum_is_sound_if_it_holds_anything(prefix: str) -> None:
    Path(f"{prefix}.bin").unlink()
    Path(f"{prefix}.idx").write_bytes(b"a")
    assert provenance.is_index_sound(prefix, {}) is True
    Path(f"{prefix}.idx").write_bytes(b"")
    assert provenance.is_index_sound(prefix, {}) is False


def test_a_remote_index_is_not_read() -> None:
    prefix = "memory://provenance/a"
    storage.write_bytes(f"{prefix}.bin", b"ab")
    storage.write_bytes(f"{prefix}.idx", b"abc")
    assert provenance.is_index_sound(prefix, {"crc32": {"bin": [2, 0], "idx": [3, 0]}}) is True
    assert provenance.is_index_sound(prefix, {"crc32": {"bin": [2, 0], "idx": [4, 0]}}) is False
    provenance.check_not_planted(prefix)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("ending", ["bin", "idx", "json"])
def test_a_dataset_of_another_user_is_not_taken(finished: Dataset, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = finished.prefix
    provenance.check_not_planted(prefix)
    for uid in (1, 1001):
        os.chown(f"{prefix}.{ending}", uid, -1)
        with pytest.raises(CannotCreate) as caught:
            provenance.finished(prefix, ORIGIN)
        assert str(caught.value) == f"{prefix}.{ending}: belongs to another user (uid {uid})"
        assert caught.value.hint == "name that dataset if you trust it, choose another output, or remove it"
    monkeypatch.chdir(Path(prefix).parent)
    with pytest.raises(CannotCreate, match=rf"^a\.{ending}: belongs to another user"):
        provenance.check_not_planted("a")
    # What would be made anew is no danger.
    flip_border(prefix)
    assert provenance.finished(prefix, ORIGIN) is None


def test_what_root_has_made_is_taken(finished: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's datasets, for a user who runs the command again."""
    if os.geteuid() != 0:
        pytest.skip("only root has files of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(ownership, "_new_file", lambda directory: None)
    assert provenance.finished(finished.prefix, ORIGIN) == finished


def test_files_on_a_mount_that_changes_owners_are_taken(finished: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a file that is made beside them has another owner, too."""
    directory = Path(finished.prefix).parent
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    asked: list[str] = []

    def new_file(found: str) -> os.stat_result:
        asked.append(found)
        return os.stat(f"{finished.prefix}.bin")

    for ending in ("bin", "idx", "json"):
        os.chown(f"{finished.prefix}.{ending}", 1001, -1)
    monkeypatch.setattr(ownership, "_new_file", new_file)
    assert provenance.finished(finished.prefix, ORIGIN) == finished
    assert asked == [str(directory)] * 3
