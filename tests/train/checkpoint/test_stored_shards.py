"""Objects of shards on a store: read in order, each once, ahead of who takes them, and never more than there is room for."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.planner import LoadPlan

from lt_shared.console import BadData, IoFailure, NoInput
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import object_versions, storage
from lt_train.checkpoint import remote_run
from lt_train.checkpoint.object_reader import known_objects_only
from lt_train.checkpoint.shards import stored_shards
from lt_train.checkpoint.shards.stored_shards import Objects, Place, StoredShard, StoredShards

URL = "memory://shards/run/iter_0000012"
CONTENT = bytes(range(256)) * 16


class Requests:
    """What is asked of the store: names, and bytes from the first to after the last."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, int]] = []
        self.original = object_versions.read_range

    def __call__(self, path: str, begin: int, end: int, version: str) -> bytes:
        self.places.append((path.rsplit("/", 1)[-1], begin, end))
        return self.original(path, begin, end, version)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    found = Requests()
    monkeypatch.setattr(object_versions, "read_range", found)
    return found


@pytest.fixture
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    for path in memory.find("/shards"):
        memory.rm(path)


def shards(store: Any, content: bytes = CONTENT) -> StoredShards:
    storage.write_bytes(f"{URL}/a", content)
    return StoredShards(URL, {"a": StoredShard(*object_versions.below(URL)["a"])})


def places(*sizes: int) -> list[Place]:
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    return [Place("a", begin, size) for begin, size in zip(begins, sizes, strict=True)]


def test_objects_that_follow_each_other_are_one_request(store: Any, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_shards, "REQUEST_BYTES", 100)
    wanted = [*places(30, 30, 30, 30, 250, 0), Place("a", 500, 10)]
    with Objects(shards(store), wanted) as objects:
        for place in wanted:
            assert bytes(objects.take(place)) == CONTENT[place.offset : place.end]
    asked = [(begin, end) for _, begin, end in requests.places]
    assert sorted(asked) == [(0, 90), (90, 120), (120, 220), (220, 320), (320, 370), (500, 510)]


def test_what_is_ahead_is_bounded(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_shards, "REQUEST_BYTES", 100)
    monkeypatch.setattr(stored_shards, "AHEAD_BYTES", 300)
    wanted, begun = places(*[100] * 10), threading.Semaphore(0)
    of_store = shards(store)
    read = StoredShards.read

    def counted(self: StoredShards, shard: str, begin: int, end: int) -> bytes:
        begun.release()
        return read(self, shard, begin, end)

    monkeypatch.setattr(StoredShards, "read", counted)
    with Objects(of_store, wanted) as objects:
        for number, place in enumerate(wanted):
            objects.take(place)
            expected = min(number + 4, 10)
            for _ in range(expected - (min(number + 3, 10) if number else 0)):
                assert begun.acquire(timeout=60)
            assert not begun.acquire(timeout=0.05)


def test_what_is_not_there(store: Any) -> None:
    of_store = shards(store)
    for place, reason in ((Place("a", 4000, 200), "a: ends at 4096 bytes, 4200 are needed"), (Place("b", 0, 1), "b: missing")):
        with pytest.raises(BadData, match=reason), Objects(of_store, [place]) as objects:
            objects.take(place)
    store.pipe(f"/{URL.removeprefix('memory://')}/a", CONTENT[::-1])
    with Objects(of_store, places(10)) as objects, pytest.raises(BadData, match="was replaced while it was read"):
        objects.take(places(10)[0])
    storage.remove(f"{URL}/a")
    with Objects(of_store, places(10)) as objects, pytest.raises(NoInput, match="a: no such file"):
        objects.take(places(10)[0])


def test_an_answer_that_is_too_short(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_versions, "read_range", lambda *arguments: b"short")
    with Objects(shards(store), places(10)) as objects, pytest.raises(IoFailure, match="5 bytes from byte 0 on, 10 were"):
        objects.take(places(10)[0])


class Taken:
    """In the place of a planner: keeps the tensors."""

    def __init__(self, metadata: Any):
        self.metadata, self.tensors = metadata, dict[str, torch.Tensor]()

    def load_bytes(self, item: Any, content: Any) -> None:
        pass

    def resolve_tensor(self, item: Any) -> torch.Tensor:
        dtype = self.metadata.state_dict_metadata[item.dest_index.fqn].properties.dtype
        return self.tensors.setdefault(str(item.storage_index), torch.empty(item.lengths, dtype=dtype))

    def commit_tensor(self, item: Any, tensor: torch.Tensor) -> None:
        pass


def plan(metadata: Any, files: set[str]) -> LoadPlan:
    """All tensors in these shards, last first."""
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    items = []
    for name, stored in metadata.state_dict_metadata.items():
        for chunk in getattr(stored, "chunks", ()):
            for item in create_read_items_for_chunk_list(name, stored, [chunk]):
                if metadata.storage_data[item.storage_index].relative_path in files:
                    items.append(item)
    return LoadPlan(items[::-1])


def test_two_ranks_read_a_checkpoint_once(
    finished: Path, tmp_path: Path, store: Any, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each the tensors that it wrote; they are those that are read from the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    checkpoint = checkpoint_layout.iteration_directory(finished / "two", 12)
    for path in checkpoint.iterdir():
        storage.upload(path, f"{URL}/{path.name}")
    copy = remote_run.fetch(URL, "run")
    assert not list(tmp_path.rglob("*.distcp"))
    sizes = {path.name: path.stat().st_size for path in checkpoint.glob("*.distcp")}
    read_bytes = 0
    for rank in (0, 1):
        files = {name for name in sizes if name.startswith(f"__{rank}_")}
        found = []
        for directory in (checkpoint, copy):
            requests.places.clear()
            with known_objects_only(directory):
                reader = FileSystemReader(directory)
                metadata = reader.read_metadata()
                reader.set_up_storage_reader(metadata, True)
                taken = Taken(metadata)
                reader.read_data(plan(metadata, files), taken)  # type: ignore[arg-type]
            found.append(taken.tensors)
        assert {name for name, _, _ in requests.places} <= files
        assert found[0].keys() == found[1].keys()
        assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
        assert found[0]
        read_bytes += sum(end - begin for _, begin, end in requests.places)
    objects = [
        info for name, info in metadata.storage_data.items() if "chunks" not in vars(metadata.state_dict_metadata[name.fqn])
    ]
    assert read_bytes == sum(sizes.values()) - sum(info.length for info in objects)


def test_damage_on_the_store_is_found(finished: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    checkpoint = checkpoint_layout.iteration_directory(finished / "one", 12)
    for path in checkpoint.iterdir():
        content = bytearray(path.read_bytes())
        if path.name == "__0_0.distcp":
            content[len(content) // 2] ^= 1
        storage.write_bytes(f"{URL}/{path.name}", bytes(content))
    copy = remote_run.fetch(URL, "run")
    with known_objects_only(copy), pytest.raises(BadData, match=rf"{URL}/__0_0\.distcp: the checksum of \d+ bytes at \d+"):
        reader = FileSystemReader(copy)
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        reader.read_data(plan(metadata, {"__0_0.distcp"}), Taken(metadata))  # type: ignore[arg-type]
