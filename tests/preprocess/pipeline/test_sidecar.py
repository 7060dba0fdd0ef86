"""The origin of a dataset is written beside it."""

import hashlib
import json
import os
import platform
import re
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline import sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.slices import Slice
from lt_shared import installed_versions
from lt_shared.contracts import manifest
from lt_shared.files import storage

WriteLines = Callable[[Path, list[Any]], Path]
Planned = Callable[..., Plan]
Build = Callable[..., manifest.Dataset]


def test_the_origin_is_written_beside_the_dataset(build: Build, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\nbad\n{"text": ["b", "c"]}\n{"text": ""}\n')
    made = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", append_eod=True, on_error="skip")
    record = json.loads(Path(f"{made.prefix}.json").read_bytes())
    [source] = record["sources"]
    assert source == {
        "path": str(tmp_path / "a.jsonl"),
        "size_bytes": (tmp_path / "a.jsonl").stat().st_size,
        "mtime_ns": (tmp_path / "a.jsonl").stat().st_mtime_ns,
        "head_sha256": hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest(),
    }
    assert record["counts"] == {"documents": 3, "sequences": 3, "tokens": 5, "bad_lines": 1}
    assert record["options"]["json_key"] == "text"
    assert record["options"]["append_eod"] is True
    assert record["made_by"]["lt-preprocess"] == metadata.version("lt-preprocess")
    assert manifest.describe(made.prefix) == made


def test_each_part_names_the_inputs_that_it_was_made_from(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    for name in "abc":
        write_lines(tmp_path / name, [{"text": name * 40}])
    files = [tmp_path / name for name in "abc"]
    made = runs.build(planned(files, demo_tokenizer, tmp_path / "out", max_shard_bytes=1), 1)
    records = [json.loads(Path(f"{one.prefix}.json").read_bytes()) for one in made]
    assert [Path(record["sources"][-1]["path"]).name for record in records] == ["a", "b", "c"]
    assert all(len(record["sources"]) <= 2 for record in records)
    assert [record["part"]["is_last"] for record in records] == [False, False, True]


def test_the_sidecar_names_all_that_took_part(build: Build, tmp_path: Path, demo_tokenizer: Path) -> None:
    """The versions as pip shows them; of a large input the hash of its first 64 KiB."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' * 10_000)
    made = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out")
    record = json.loads(Path(f"{made.prefix}.json").read_bytes())
    assert list(record) == [
        "v", "dataset", "crc32", "plan", "run", "part", "sources", "options", "origins", "counts", "made_by", "own_crc32",
    ]  # fmt: skip
    packages = ("lt-shared", "numba", "numpy", "orjson", "pyarrow", "sentencepiece", "tokenizers")
    assert record["made_by"] == {
        "lt-preprocess": metadata.version("lt-preprocess"),
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
    }
    assert record["v"] == 2
    assert record["part"] == {"index": 0, "is_last": True}
    assert record["options"] == {
        "json_key": "text", "json_keys": ["text"], "append_eod": False, "on_error": "fail", "special_tokens": "text",
        "shard": None, "max_shard_bytes": None,
    }  # fmt: skip
    content = (tmp_path / "a.jsonl").read_bytes()
    assert record["sources"][0]["head_sha256"] == hashlib.sha256(content[:65536]).hexdigest()
    for end in ("bin", "idx"):
        written = Path(f"{made.prefix}.{end}").read_bytes()
        assert record["crc32"][end] == [len(written), zlib.crc32(written)]


def test_the_sidecar_is_text_that_people_read(build: Build, tmp_path: Path, demo_tokenizer: Path) -> None:
    """Indented, with letters as they are; of a file name a byte that is not UTF-8 is an escape, as Python reads it back."""
    name = os.path.join(os.fsencode(tmp_path), b"\xc3\xa4\xff.jsonl")
    Path(os.fsdecode(name)).write_bytes(b'{"text": "a"}\n')
    made = build([os.fsdecode(name)], demo_tokenizer, tmp_path / "out")
    written = Path(f"{made.prefix}.json").read_bytes()
    record = json.loads(written.decode())
    assert written.startswith(b'{\n  "v": 2,\n  "dataset": {\n    "v": 1,\n    "kind": "dataset",\n    "prefix": "')
    unsealed = re.sub(rb'(?<="own_crc32": ")[0-9a-f]{8}(?="\n}\n$)', b"00000000", written)
    assert record["own_crc32"] == f"{zlib.crc32(unsealed):08x}"
    assert unsealed != written
    shown = os.path.join(os.fsencode(tmp_path), b"\xc3\xa4\\udcff.jsonl")
    assert b'\n      "path": "' + shown + b'",\n' in written
    assert os.fsencode(record["sources"][0]["path"]) == name
    assert list(record["dataset"]) == [
        "v",
        "kind",
        "prefix",
        "documents",
        "tokens",
        "dtype",
        "vocab_size",
        "eod",
        "tokenizer",
        "weight",
    ]


def test_each_part_counts_its_own_bad_lines(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    good = b'{"text": "a text of several words"}\n'
    for name, bad in (("a", 1), ("b", 3), ("c", 2)):
        (tmp_path / name).write_bytes(b"bad\n" * bad + good)
    files = [tmp_path / name for name in "abc"]
    made = runs.build(planned(files, demo_tokenizer, tmp_path / "out", max_shard_bytes=1, on_error="skip"), 1)
    counts = [json.loads(Path(f"{one.prefix}.json").read_bytes())["counts"] for one in made]
    assert [count["bad_lines"] for count in counts] == [1, 3, 2]


def test_a_package_that_is_not_installed_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "numba":
            raise metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    others = ("lt-shared", "numpy", "orjson", "pyarrow", "sentencepiece", "tokenizers")
    assert installed_versions(sidecar.PACKAGES) == dict.fromkeys(others, "1")


def test_shards_of_one_run_have_its_name(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' * 4)
    runs_of = []
    for options in ({"shard": Slice(0, 2)}, {"shard": Slice(1, 2)}, {}, {"append_eod": True}):
        [made] = runs.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", **options), 1, anew=True)
        runs_of.append(json.loads(Path(f"{made.prefix}.json").read_bytes())["run"])
    assert runs_of[0] == runs_of[1] == runs_of[2] != runs_of[3]


def test_a_remote_input_is_named_as_the_store_names_it(build: Build, tmp_path: Path, demo_tokenizer: Path) -> None:
    """Its version says more than the hash of its beginning, for which it would be read once more."""
    storage.write_bytes("memory://sidecar/a.jsonl", b'{"text": "a"}\n')
    made = build(["memory://sidecar/a.jsonl"], demo_tokenizer, tmp_path / "out")
    [source] = json.loads(Path(f"{made.prefix}.json").read_bytes())["sources"]
    assert source == storage.fingerprint("memory://sidecar/a.jsonl")


@pytest.mark.parametrize(
    ("first", "last", "count"), [(None, None, 0), (None, 0, 0), (0, None, 0), (0, 0, 1), (0, 2, 3), (1, 2, 2)]
)
def test_the_inputs_of_a_part(
    first: int | None, last: int | None, count: int, planned: Planned, tmp_path: Path, demo_tokenizer: Path
) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b'{"text": "a"}\n')
    plan = planned([tmp_path / name for name in "abc"], demo_tokenizer, tmp_path / "out")
    found = sidecar._sources(plan, sidecar.State(first_input=first, last_input=last))
    assert found is not None
    assert [Path(source["path"]).name for source in found] == list("abc")[first or 0 :][:count]


def test_passwords_of_remote_sources_are_not_written() -> None:
    source = {"path": "https://user:hunter2@host/a.jsonl?access_token=abc123&page=2", "version": "1"}
    shown = {"path": "https://(not shown)@host/a.jsonl?access_token=(not shown)&page=2", "version": "1"}
    assert sidecar._with_hash(source) == shown
