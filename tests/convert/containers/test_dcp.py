"""Distributed checkpoints: torch loads what is written here, and what torch saves is read here, however it was cut."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as stock

from lt_convert.containers import dcp, torch_archive
from lt_convert.containers.dcp import Entry
from lt_convert.containers.torch_archive import Scalar
from lt_convert.engine.output_writer import contents
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, zeros
from lt_shared.console import BadData

STATE = {
    "matrix": torch.arange(42.0).reshape(6, 7),
    "layers": torch.arange(24, dtype=torch.int64).reshape(3, 2, 4).to(torch.bfloat16),
    "scalar": torch.tensor(2.5),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state = STATE | {"settings": {"a": 1}, "transposed": STATE["matrix"].T}
    stock.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    return tmp_path / "saved"


def read(directory: Path) -> dict[str, torch.Tensor]:
    with Files() as files:
        found = dcp.read(str(directory), files)
        tensors = {key: found.tensor(key) for key in found.entries}
        return {
            key: torch.frombuffer(bytearray(blocks.read(tensor, files).tobytes()), dtype=getattr(torch, tensor.dtype)).reshape(
                tensor.shape
            )
            for key, tensor in tensors.items()
        }


def test_what_torch_saves_is_read(saved: Path) -> None:
    found = read(saved)
    assert found.keys() == {*STATE, "transposed"}
    assert all(torch.equal(found[key], tensor) for key, tensor in STATE.items())
    assert torch.equal(found["transposed"], STATE["matrix"].T)


def write(directory: Path, entries: list[Entry], objects: dict[str, Any]) -> None:
    with Files() as files:
        reader = blocks.TensorReader(files)
        directory.mkdir()
        for output in dcp.outputs(entries, objects):
            (directory / output.name).write_bytes(
                b"".join(bytes(data) for segment in output.segments for data in contents(segment, reader))
            )


@pytest.mark.parametrize(("chunk_bytes", "file_bytes", "files"), [(1 << 30, 1 << 30, 1), (30, 4000, 2), (1, 1, 15)])
def test_torch_loads_what_is_written(
    chunk_bytes: int, file_bytes: int, files: int, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(dcp, "FILE_BYTES", file_bytes)
    with Files() as opened:
        source = dcp.read(str(saved), opened)
        tensors = {key: source.tensor(key) for key in STATE}
    stack = tensors["layers"]
    chunks = tuple(((layer, 0, 0), f"layer {layer}", stack.at(layer).expanded(1)) for layer in range(3))
    entries = [
        Entry("layers", "bfloat16", stack.shape, chunks),
        *(Entry.whole(key, tensors[key]) for key in ("matrix", "scalar")),
    ]
    write(tmp_path / "written", entries, {"extra": [None], "more": {"a": 1.5}})
    loaded: dict[str, Any] = {key: torch.zeros_like(tensor) for key, tensor in STATE.items()} | {"extra": 0, "more": 0}
    stock.load(loaded, checkpoint_id=tmp_path / "written", no_dist=True)
    assert all(torch.equal(loaded[key], tensor) for key, tensor in STATE.items())
    assert (loaded["extra"], loaded["more"]) == ([None], {"a": 1.5})
    assert len(list((tmp_path / "written").glob("*.distcp"))) == files
    again = read(tmp_path / "written")
    assert all(torch.equal(again[key], tensor) for key, tensor in STATE.items())
    with Files() as opened:
        objects = dcp.read(str(tmp_path / "written"), opened)
        assert objects.object("more") == {"a": 1.5}


def edit(directory: Path, change: Any) -> None:
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    change(metadata, {key.fqn: location for key, location in metadata.storage_data.items()})
    (directory / ".metadata").write_bytes(pickle.dumps(metadata))


def set_shape(sizes: list[int]) -> Any:
    def change(metadata: Any, locations: Any) -> None:
        entry = metadata.state_dict_metadata["matrix"]
        entry.size = torch.Size(sizes) if min(sizes) >= 0 else tuple(sizes)
        entry.chunks[0].sizes = entry.size

    return change


def set_rank(shape: list[int], sizes: list[int]) -> Any:
    def change(metadata: Any, locations: Any) -> None:
        entry = metadata.state_dict_metadata["matrix"]
        entry.size, entry.chunks[0].sizes = torch.Size(shape), torch.Size(sizes)

    return change


def set_location(**fields: Any) -> Any:
    return lambda metadata, locations: [setattr(locations["matrix"], field, value) for field, value in fields.items()]


def set_dtype(dtype: torch.dtype) -> Any:
    return lambda metadata, locations: setattr(metadata.state_dict_metadata["matrix"].properties, "dtype", dtype)


def change_chunks(change: Any) -> Any:
    return lambda metadata, locations: change(metadata.state_dict_metadata["matrix"].chunks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_shape([6, 8]), r"is float32 \[6, 7\], expected float32 \[6, 8\]"),
        (set_shape([1 << 40, 1 << 40]), r"expected float32 \[1099511627776, 1099511627776\]"),
        (set_shape([-1, 7]), "not a natural number"),
        (set_location(relative_path="../elsewhere.distcp"), "outside the checkpoint: '../elsewhere.distcp'"),
        (set_location(relative_path="/etc/passwd"), "outside the checkpoint"),
        (set_location(relative_path=".."), "outside the checkpoint"),
        (set_location(offset=-64), "not a natural number"),
        (set_location(offset=1 << 50), "lies beyond the end"),
        (set_location(length=10), "damaged|not a torch file"),
        (set_location(transform_descriptors=["zstd"]), "compressed or encrypted"),
        (change_chunks(lambda chunks: chunks.clear()), "do not cover"),
        (change_chunks(lambda chunks: chunks.append(chunks[0])), "do not cover"),
        (set_dtype(torch.complex64), "matrix is stored as complex64, known here are "),
        (set_dtype(torch.float64), "expected float64"),
        (set_location(relative_path="."), "outside the checkpoint: '.'"),
        (set_location(relative_path=""), "outside the checkpoint: ''"),
        (set_location(offset=0.0), "not a natural number"),
        (set_location(length=True), "not a natural number"),
        (set_rank([6, 7, 1], [6, 7]), r"is float32 \[6, 7\], expected float32 \[6, 7\]"),
        (lambda metadata, locations: metadata.storage_data.clear(), "has no storage_data for the chunk of matrix"),
        (lambda metadata, locations: setattr(metadata, "storage_data", None), "not the metadata"),
    ],
)
def test_damaged_metadata_is_refused(change: Any, message: str, saved: Path) -> None:
    edit(saved, change)
    with pytest.raises(BadData, match=message):
        read(saved)


def test_chunks_of_other_tensors_and_files_that_are_gone(saved: Path) -> None:
    def swap(metadata: Any, locations: Any) -> None:
        locations["matrix"].offset, locations["matrix"].length = locations["scalar"].offset, locations["scalar"].length

    edit(saved, swap)
    with pytest.raises(BadData, match=r"is float32 \[\], expected float32 \[6, 7\]"):
        read(saved)
    (saved / "__0_0.distcp").unlink()
    with pytest.raises(BadData, match=r"__0_0.distcp: missing"):
        read(saved)


def test_metadata_runs_nothing(saved: Path) -> None:
    class Exploit:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(saved / "ran"),)

    def hide(metadata: Any, locations: Any) -> None:
        metadata.planner_data = Exploit()

    edit(saved, hide)
    assert not (saved / "ran").exists()
    with pytest.raises(BadData, match="not a readable pickle"):
        read(saved)
    assert not (saved / "ran").exists()


def test_tensor_names_are_lazy(saved: Path) -> None:
    with Files() as files:
        tensor = dcp.read(str(saved), files).tensor("matrix")
    assert isinstance(tensor, Tensor)
    assert (tensor.name, tensor.files) == ("matrix", [str(saved / "__0_0.distcp")])


def test_what_repeats_another_tensor_is_written_once() -> None:
    once = zeros("float32", (100, 100))
    files = dcp.outputs([Entry.whole("embedding", once), Entry.whole("output", once)], {})
    assert files[0].size_bytes < 2 * once.size_bytes


def test_a_chunk_of_more_axes_than_its_tensor(tmp_path: Path) -> None:
    stock.save({"matrix": STATE["matrix"].unsqueeze(2)}, checkpoint_id=tmp_path, no_dist=True)

    def change(metadata: Any, locations: Any) -> None:
        metadata.state_dict_metadata["matrix"].size = torch.Size([6, 7])
        metadata.state_dict_metadata["matrix"].chunks[0].offsets = torch.Size([0, 0])
        [index] = metadata.storage_data
        metadata.storage_data = {type(index)("matrix", torch.Size([0, 0])): metadata.storage_data[index]}

    edit(tmp_path, change)
    with pytest.raises(BadData, match=r"is float32 \[6, 7, 1\], expected float32 \[6, 7, 1\]"):
        read(tmp_path)


def test_a_tensor_without_values(tmp_path: Path) -> None:
    stock.save({"empty": torch.zeros(0, 3)}, checkpoint_id=tmp_path / "saved", no_dist=True)
    with Files() as files:
        tensor = dcp.read(str(tmp_path / "saved"), files).tensor("empty")
    assert tensor.shape == (0, 3)
    write(tmp_path / "written", [Entry.whole("empty", tensor)], {})
    loaded = {"empty": torch.zeros(0, 3)}
    stock.load(loaded, checkpoint_id=tmp_path / "written", no_dist=True)
    with Files() as files:
        assert dcp.read(str(tmp_path / "written"), files).tensor("empty").shape == (0, 3)


def metadata_of(directory: Path) -> Any:
    return pickle.loads((directory / ".metadata").read_bytes())


def test_the_metadata_are_those_that_torch_writes(saved: Path, tmp_path: Path) -> None:
    """Read by torch's own classes: the same tensors, chunks and properties, and every field that torch gives them."""
    state = {"matrix": STATE["matrix"], "layers": STATE["layers"], "step": torch.tensor(3.0), "settings": [1]}
    stock.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    with Files() as files:
        source = dcp.read(str(saved), files)
        entries = [Entry.whole(key, source.tensor(key)) for key in ("matrix", "layers")]
    write(tmp_path / "ours", entries, {"step": Scalar(3.0), "settings": [1]})
    ours, theirs = metadata_of(tmp_path / "ours"), metadata_of(tmp_path / "theirs")
    for tensor in theirs.state_dict_metadata.values():
        # Since torch 2.15, which reads what has none; earlier versions cannot read what has some.
        vars(getattr(tensor, "properties", tensor)).pop("strides", None)
    for tensor in ours.state_dict_metadata.values():
        vars(getattr(tensor, "properties", tensor)).pop("strides", None)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert {key.fqn: vars(key) for key in ours.storage_data} == {
        key.fqn: {"fqn": key.fqn, "offset": key.offset, "index": None} for key in theirs.storage_data
    }
    assert {type(key) for key in ours.storage_data} == {type(key) for key in theirs.storage_data}
    [kind] = {type(value) for value in theirs.storage_data.values()}
    for value in ours.storage_data.values():
        assert type(value) is kind
        assert vars(value) == {
            "relative_path": "__0_0.distcp", "offset": value.offset, "length": value.length, "transform_descriptors": None,
        }  # fmt: skip
    assert vars(ours).keys() == vars(theirs).keys()
    assert (ours.planner_data, ours.storage_meta) == (None, None)
    loaded = {"step": torch.tensor(0.0)}
    stock.load(loaded, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert loaded["step"] == 3


MIB = 1 << 20


def planned(*sizes_mib: float, **more: Any) -> list[Any]:
    """The files of tensors of so many MiB, of which nothing is written. Each has another row, so that none repeats another."""
    shapes = [(int(size * 256) + number, 1024) for number, size in enumerate(sizes_mib)]
    return dcp.outputs([Entry.whole(f"t{rows}", zeros("float32", (rows, columns))) for rows, columns in shapes], {}, **more)


def test_there_are_four_files_of_64_mebibytes_to_five_gigabytes() -> None:
    assert len(planned(*[16] * 64)) == 4 + 1
    assert len(planned(64.5, 1)) == 2 + 1
    assert len(planned(63.5, 1)) == 1 + 1
    assert len(planned(*[1000] * 40)) == -(-40 // 5) + 1
    files = planned(*[16] * 64, prefix="iter_0000001/")
    assert [file.name for file in files] == [
        *(f"iter_0000001/__0_{number}.distcp" for number in range(4)),
        "iter_0000001/.metadata",
    ]
    assert max(file.size_bytes for file in files) < 280 * MIB


def test_a_file_ends_once_it_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry.whole(str(size), zeros("uint8", (size,))) for size in (5, 6)]
    size_bytes = dcp.outputs(entries[:1], {})[0].size_bytes
    for more, files in ((-1, 2), (0, 2), (1, 1)):
        monkeypatch.setattr(dcp, "FILE_BYTES", size_bytes + more)
        assert len(dcp.outputs(entries, {})) == files + 1


def test_where_the_objects_of_a_file_are() -> None:
    """Each at the next multiple of 64, as torch puts them; others read the file object by object."""
    files = dcp.outputs([Entry.whole(str(size), zeros("uint8", (size,))) for size in (5, 6, 200)], {"a": [1], "b": Scalar(1.0)})
    [data, metadata] = files
    begins, ends = data.objects[::2], data.objects[1::2]
    assert (len(begins), begins[0], ends[-1]) == (5, 0, data.size_bytes)
    assert all(begin % 64 == 0 for begin in begins)
    assert all(0 <= begin - end < 64 for begin, end in zip(begins[1:], ends, strict=False))
    found = pickle.loads(b"".join(metadata.segments)).storage_data.values()
    assert [(value.offset, value.offset + value.length) for value in found] == list(zip(begins, ends, strict=True))
    assert metadata.objects == ()


def chunks_of(shape: tuple[int, ...], dtype: str = "float32", at: tuple[int, ...] | None = None) -> list[tuple[Any, Any]]:
    """(offsets, sizes) of the chunks in which a tensor is written."""
    tensor = zeros(dtype, shape)
    whole = tuple(a + b for a, b in zip(at or (0,) * len(shape), shape, strict=True))
    entry = Entry("t", dtype, whole, ((at or (0,) * len(shape), "t", tensor),))
    metadata = pickle.loads(b"".join(dcp.outputs([entry], {})[-1].segments))
    return [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in metadata.state_dict_metadata["t"].chunks]


def test_chunks_are_of_a_gibibyte_at_most() -> None:
    assert chunks_of((1024, 1 << 18)) == [((0, 0), (1024, 1 << 18))]
    assert chunks_of((3000, 1 << 18)) == [
        ((0, 0), (1024, 1 << 18)),
        ((1024, 0), (1024, 1 << 18)),
        ((2048, 0), (952, 1 << 18)),
    ]
    assert chunks_of((1 << 31,), "uint8") == [((0,), (1 << 30,)), ((1 << 30,), (1 << 30,))]
    assert chunks_of((3, 3 << 27)) == [((row, 0), (1, 3 << 27)) for row in range(3)]
    assert chunks_of((1, 1, 1200, 1 << 18), at=(5, 7, 100, 3)) == [
        ((5, 7, 100, 3), (1, 1, 1024, 1 << 18)),
        ((5, 7, 1124, 3), (1, 1, 176, 1 << 18)),
    ]
    assert chunks_of(()) == [((), ())]
    assert chunks_of((0, 7)) == [((0, 0), (0, 7))]
    assert chunks_of((1, 1)) == [((0, 0), (1, 1))]


def test_what_repeats_another_tensor_points_to_it() -> None:
    once = zeros("float32", (100, 100))
    [_, metadata] = dcp.outputs([Entry.whole("embedding", once), Entry.whole("output", once)], {"a": [1], "b": [1]})
    found = {
        key.fqn: (value.relative_path, value.offset) for key, value in pickle.loads(metadata.segments[0]).storage_data.items()
    }
    assert found["embedding"] == found["output"]
    assert found["a"] != found["b"]


def test_headers_are_fetched_ahead_by_the_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcp, "CHUNK_BYTES", 4)
    write(tmp_path / "written", [Entry.whole("t", zeros("float32", (5,)))], {})
    monkeypatch.setattr(dcp, "PREFETCHED_CHUNKS", 2)
    fetched: list[list[tuple[str, int, int]]] = []
    monkeypatch.setattr(Files, "prefetch", lambda self, ranges: fetched.append(list(ranges)))
    with Files() as files:
        found = dcp.read(str(tmp_path / "written"), files)
        tensor = found.tensor("t")
    places = [found.locations["t", (row,)] for row in range(5)]
    ends = [torch_archive.ends(place.file, place.offset_bytes, place.length_bytes) for place in places]
    assert len(tensor.chunks) == 5
    assert [ranges for ranges in fetched if ranges[0] in [first for first, _ in ends]] == [
        ends[0] + ends[1],
        ends[2] + ends[3],
        ends[4],
    ]
