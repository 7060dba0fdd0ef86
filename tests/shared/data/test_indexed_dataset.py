"""Datasets are byte for byte megatron-core's, damaged ones are refused, and a killed writer leaves none."""

import os
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

from lt_shared.console import BadConfig, BadData, IoFailure, NoInput, TryAgain
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import HEADER, Extent, Reader, Writer, dtype_for
from lt_shared.files import storage

# A document is a list of sequences, a sequence a list of tokens.
Documents = list[list[list[int]]]

documents_of_uint16 = st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=6)
documents_of_int32 = st.lists(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=4), max_size=6)


def write(prefix: Path, documents: Documents, dtype: type[np.generic]) -> None:
    with Writer(str(prefix), dtype) as writer:
        for sequences in documents:
            tokens = [token for sequence in sequences for token in sequence]
            writer.append(
                np.array(tokens, np.int64), np.array([len(sequence) for sequence in sequences]), np.array([len(sequences)])
            )
        writer.publish()


def write_with_megatron(prefix: Path, documents: Documents, dtype: type[np.generic]) -> None:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype)
    for sequences in documents:
        tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
        builder.add_document(tokens, [len(sequence) for sequence in sequences])
    builder.finalize(f"{prefix}.idx")


def contents(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def check_same_as_megatron(directory: Path, documents: Documents, dtype: type[np.generic]) -> None:
    write(directory / "ours", documents, dtype)
    write_with_megatron(directory / "theirs", documents, dtype)
    assert contents(directory / "ours") == contents(directory / "theirs")
    reader = Reader(str(directory / "theirs"))
    assert reader.dtype == dtype
    assert [reader.document(number).tolist() for number in range(reader.documents)] == [
        [token for sequence in sequences for token in sequence] for sequences in documents
    ]


@given(documents=documents_of_uint16)
def test_files_are_those_of_megatron_uint16(tmp_path_factory: pytest.TempPathFactory, documents: Documents) -> None:
    check_same_as_megatron(tmp_path_factory.mktemp("pair"), documents, np.uint16)


@given(documents=documents_of_int32)
def test_files_are_those_of_megatron_int32(tmp_path_factory: pytest.TempPathFactory, documents: Documents) -> None:
    check_same_as_megatron(tmp_path_factory.mktemp("pair"), documents, np.int32)


@pytest.mark.parametrize(
    "documents",
    [[], [[]], [[[]]], [[], [[1, 2]], []], [[[1], [], [2, 3]], [[4]]]],
    ids=["no document", "empty document", "empty sequence", "empty first and last document", "several sequences"],
)
def test_empty_documents_and_several_sequences(tmp_path: Path, documents: Documents) -> None:
    check_same_as_megatron(tmp_path, documents, np.uint16)


def test_batches_of_documents_equal_single_ones(tmp_path: Path) -> None:
    documents = [[[1, 2], [3]], [], [[4, 5, 6]]]
    write(tmp_path / "single", documents, np.uint16)
    with Writer(str(tmp_path / "batch"), np.uint16) as writer:
        writer.append(np.arange(1, 7), np.array([2, 1, 3]), np.array([2, 0, 1]))
        assert (writer.tokens, writer.sequences, writer.documents) == (6, 3, 3)
        writer.publish()
    assert contents(tmp_path / "batch") == contents(tmp_path / "single")


def test_tokens_and_index_from_elsewhere(tmp_path: Path) -> None:
    """What merging does: whole files of tokens, then the columns of the index in steps of their own."""
    write(tmp_path / "whole", [[[1, 2], [3]], [], [[4, 5, 6]]], np.uint16)
    with Writer(str(tmp_path / "copied"), np.uint16) as writer:
        writer.bin_file.write(np.arange(1, 7, dtype=np.uint16).tobytes())
        writer.append_index(np.array([2, 1]), np.array([], np.int64))
        writer.append_index(np.array([3]), np.array([2, 0, 1]))
        assert (writer.tokens, writer.sequences, writer.documents) == (6, 3, 3)
        writer.publish()
    assert contents(tmp_path / "copied") == contents(tmp_path / "whole")


def test_megatron_reads_it(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.array([7, 8, 9]))
        writer.append(np.array([], np.int64), np.array([], np.int64), np.array([0]))
        writer.append_document(np.array([65535]))
        writer.publish()
    dataset = IndexedDataset(str(tmp_path / "data"))
    assert [dataset[number].tolist() for number in range(len(dataset))] == [[7, 8, 9], [65535]]
    assert dataset.document_indices.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("vocab_size", [1, 65499, 65500, 65536, 128256])
def test_dtype_is_megatrons_choice(vocab_size: int) -> None:
    assert dtype_for(vocab_size) == np.dtype(DType.optimal_dtype(vocab_size))


def test_nothing_appears_without_publish(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.array([1]))
    with pytest.raises(KeyboardInterrupt), Writer(str(tmp_path / "data"), np.uint16):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_sidecar_appears_with_the_dataset(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.array([1]))
        writer.publish((str(tmp_path / "data.json"), b"{}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.bin", "data.idx", "data.json"]


def test_overwriting_replaces_all(tmp_path: Path) -> None:
    write(tmp_path / "data", [[[1, 2, 3]]], np.int32)
    write(tmp_path / "data", [[[4]], [[5]]], np.uint16)
    assert Reader(str(tmp_path / "data")).tokens.tolist() == [4, 5]


def test_a_failed_write_keeps_the_older_dataset(tmp_path: Path) -> None:
    write(tmp_path / "data", [[[1, 2, 3]]], np.uint16)
    with pytest.raises(ZeroDivisionError), Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.arange(3_000_000))
        raise ZeroDivisionError
    assert Reader(str(tmp_path / "data")).tokens.tolist() == [1, 2, 3]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        with pytest.raises(TryAgain), Writer(str(tmp_path / "data"), np.uint16):
            pass
        writer.append_document(np.array([1]))
        writer.publish()
    assert Reader(str(tmp_path / "data")).tokens.tolist() == [1]


def test_an_older_dataset_of_a_finished_writer_stays_locked_until_the_index_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between `.bin` and `.idx`, a second writer could put its own `.bin` under the first one's `.idx`."""
    refused = []
    write_bytes = storage.write_bytes

    def intrude(path: str, data: bytes) -> None:
        with pytest.raises(TryAgain), Writer(str(tmp_path / "data"), np.uint16):
            pass
        refused.append(path)
        write_bytes(path, data)

    monkeypatch.setattr(storage, "write_bytes", intrude)
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.publish((str(tmp_path / "data.json"), b"{}"))
    assert refused


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write(tmp_path / "data", [[[1, 2, 3], [4]], [], [[5, 6]]], np.uint16)
    return tmp_path / "data"


def test_missing_files_are_named_with_a_remedy(prefix: Path) -> None:
    with pytest.raises(NoInput, match=r"data\.bin\.idx: no such file") as caught:
        Reader(f"{prefix}.bin")
    assert caught.value.hint == f"a prefix has no extension: {prefix}"
    prefix.with_suffix(".idx").rename(f"{prefix}_text_document.idx")
    prefix.with_suffix(".bin").rename(f"{prefix}_text_document.bin")
    with pytest.raises(NoInput) as caught:
        Reader(str(prefix))
    assert caught.value.hint == f"did you mean {prefix}_text_document?"
    Path(f"{prefix}_text_document.idx").unlink()
    with pytest.raises(NoInput) as caught:
        Reader(f"{prefix}_text_document")
    assert caught.value.hint is not None and "not finished" in caught.value.hint


def test_remote_prefix_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"^memory://data: reading a dataset through memory maps needs a local"):
        Reader("memory://data")


@pytest.mark.parametrize("thorough", [True, False])
def test_every_truncation_is_noticed(prefix: Path, thorough: bool) -> None:
    for suffix in (".idx", ".bin"):
        path = prefix.with_suffix(suffix)
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            with pytest.raises(BadData, match=str(path)):
                Reader(str(prefix), thorough)
        path.write_bytes(whole)
    Reader(str(prefix), thorough)


def test_trailing_bytes_are_noticed(prefix: Path) -> None:
    path = prefix.with_suffix(".bin")
    path.write_bytes(path.read_bytes() + b"\0\0")
    with pytest.raises(BadData, match=r"data\.bin: 14 bytes, its index says 12"):
        Reader(str(prefix))


def change(path: Path, offset: int, replacement: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(replacement)] = replacement
    path.write_bytes(content)


LENGTHS = HEADER.size
OFFSETS = LENGTHS + 3 * 4
DOCUMENTS = OFFSETS + 3 * 8


@pytest.mark.parametrize(
    ("offset", "replacement", "message"),
    [
        (0, b"X", "not an index"),
        (9, b"\2", "version 2"),
        (17, b"\x63", "dtype code 99"),
        (18, b"\4", "its header says"),
        (LENGTHS, np.int32([4, 0]).tobytes(), "sequence index"),
        (LENGTHS, np.int32([-3, 7]).tobytes(), "sequence index"),
        (OFFSETS, np.int64([2]).tobytes(), "sequence index"),
        (OFFSETS + 8, np.int64([2]).tobytes(), "sequence index"),
        (DOCUMENTS, np.int64([1]).tobytes(), "document index"),
        (DOCUMENTS + 8, np.int64([3]).tobytes(), "document index"),
        (DOCUMENTS + 24, np.int64([2]).tobytes(), "document index"),
    ],
)
def test_a_malformed_index_is_refused(prefix: Path, offset: int, replacement: bytes, message: str) -> None:
    change(prefix.with_suffix(".idx"), offset, replacement)
    with pytest.raises(BadData, match=message):
        Reader(str(prefix))


def test_the_sequence_index_is_checked_beyond_the_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_shared.data.indexed_dataset.reader.CHECKED_AT_ONCE", 2)
    write(tmp_path / "data", [[[1], [2, 3], [4], [5, 6], [7]]], np.uint16)
    assert Reader(str(tmp_path / "data")).document(0).tolist() == [1, 2, 3, 4, 5, 6, 7]
    change(tmp_path / "data.idx", HEADER.size + 5 * 4 + 4 * 8, np.int64([10]).tobytes())
    with pytest.raises(BadData, match="sequence index"):
        Reader(str(tmp_path / "data"))


def test_multimodal_datasets_of_megatron_are_read(tmp_path: Path) -> None:
    builder = IndexedDatasetBuilder(str(tmp_path / "data.bin"), np.uint16, multimodal=True)
    builder.add_document(torch.tensor([1, 2]), [1, 1], [0, 1])
    builder.finalize(str(tmp_path / "data.idx"))
    assert Reader(str(tmp_path / "data")).document(0).tolist() == [1, 2]


KILLED_WHILE_WRITING = """
import os, signal, sys
import numpy as np
from lt_shared.files import storage
from lt_shared.data.indexed_dataset import Writer

prefix, step = sys.argv[1], sys.argv[2]


def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(function):
    def wrapper(*arguments):
        function(*arguments)
        kill()

    return wrapper


with Writer(prefix, np.uint16) as writer:
    writer.append_document(np.zeros(2_000_000))
    if step == "appending":
        kill()
    if step == "before .bin":
        storage.remove = kill_after(storage.remove)
    if step == "after .bin":
        storage.write_bytes = kill
    if step == "before .idx":
        storage.write_bytes = kill_after(storage.write_bytes)
    writer.publish((prefix + ".json", b"{}"))
"""


@pytest.mark.parametrize("step", ["appending", "before .bin", "after .bin", "before .idx"])
@pytest.mark.parametrize("older", [False, True], ids=["new", "overwriting"])
def test_a_killed_writer_leaves_no_dataset_of_its_own(tmp_path: Path, step: str, older: bool) -> None:
    prefix = tmp_path / "data"
    if older:
        write(prefix, [[list(range(100))] * 20_000], np.uint16)  # as many tokens as the new one
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, prefix, step])
    assert killed.returncode == -signal.SIGKILL
    if older and step == "appending":
        assert Reader(str(prefix)).tokens[:3].tolist() == [0, 1, 2]
    else:
        with pytest.raises(NoInput):
            Reader(str(prefix))
    write(prefix, [[[5]]], np.uint16)
    assert Reader(str(prefix)).tokens.tolist() == [5]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]


def test_remote_datasets_are_written(tmp_path: Path) -> None:
    with Writer("memory://bucket/data", np.int32) as writer:
        writer.append_document(np.array([1, 2, 3]))
        writer.publish(("memory://bucket/data.json", b"{}"))
    write(tmp_path / "data", [[[1, 2, 3]]], np.int32)
    assert (storage.read_bytes("memory://bucket/data.bin"), storage.read_bytes("memory://bucket/data.idx")) == contents(
        tmp_path / "data"
    )


@given(
    documents=documents_of_uint16, at_once=st.integers(1, 4), cut=st.integers(0, 6), lost=st.integers(0, 3), torn=st.booleans()
)
def test_a_resumed_dataset_is_byte_for_byte_the_one_written_at_once(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, at_once: int, cut: int, lost: int, torn: bool
) -> None:
    """Interrupted after `cut` documents and `lost` more that were not synced; `torn` adds bytes that no record counts."""
    directory = tmp_path_factory.mktemp("resumed")
    write(directory / "whole", documents, np.uint16)

    def append(writer: Writer, some: Documents) -> None:
        for sequences in some:
            tokens = [token for sequence in sequences for token in sequence]
            writer.append(
                np.array(tokens, np.int64), np.array([len(sequence) for sequence in sequences]), np.array([len(sequences)])
            )

    prefix = str(directory / "resumed")
    with pytest.raises(KeyboardInterrupt), Writer(prefix, np.uint16, Extent()) as writer:
        append(writer, documents[:cut])
        extent = writer.sync()
        append(writer, documents[cut : cut + lost])
        raise KeyboardInterrupt
    assert not Path(f"{prefix}.idx").exists() and not Path(f"{prefix}.bin").exists()
    if torn:
        for name in os.listdir(directory):
            if name.startswith(".resumed"):
                with (directory / name).open("ab") as file:
                    file.write(b"torn")
    assert indexed_dataset.can_resume(prefix, np.uint16, extent)
    with pytest.MonkeyPatch.context() as patch, Writer(prefix, np.uint16, extent) as writer:
        patch.setattr("lt_shared.data.indexed_dataset.writer.COMPOSED_AT_ONCE", at_once)
        assert writer.extent == extent
        append(writer, documents[cut:])
        recorded = writer.complete()
        writer.publish()
    for ending, content in zip(("bin", "idx"), contents(directory / "whole"), strict=True):
        assert recorded[ending] == (len(content), zlib.crc32(content))
    assert contents(directory / "resumed") == contents(directory / "whole")
    assert sorted(os.listdir(directory)) == ["resumed.bin", "resumed.idx", "whole.bin", "whole.idx"]


def test_going_on_from_what_is_not_there(tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt), Writer(prefix, np.uint16, Extent()) as writer:
        writer.append_document(np.array([1, 2, 3]))
        extent = writer.sync()
        raise KeyboardInterrupt
    os.truncate(tmp_path / ".data.bin.partial", 4)
    assert not indexed_dataset.can_resume(prefix, np.uint16, extent)
    with pytest.raises(IoFailure, match="shorter"), Writer(prefix, np.uint16, extent):
        pass
    (tmp_path / ".data.idx.partial").touch()
    indexed_dataset.discard_partial(prefix)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["bin", "lengths", "counts"])
def test_damage_between_a_kill_and_the_resume_is_found(tmp_path: Path, name: str) -> None:
    prefix = str(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt), Writer(prefix, np.uint16, Extent()) as writer:
        writer.append_document(np.arange(1000))
        extent = writer.sync()
        raise KeyboardInterrupt
    assert indexed_dataset.can_resume(prefix, np.uint16, extent)
    with (tmp_path / f".data.{name}.partial").open("r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 16]))
    assert not indexed_dataset.can_resume(prefix, np.uint16, extent)


def test_checksums_of_tokens_that_were_copied(tmp_path: Path) -> None:
    copied = np.arange(7, 5000, dtype=np.uint16)
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.array([1, 2, 3]))
        writer.bin_file.write(copied.tobytes())
        writer.tokens_were_copied(zlib.crc32(copied.tobytes()), copied.nbytes)
        writer.append_index(np.array([len(copied)]), np.array([1]))
        writer.append_document(np.array([4]))
        recorded = writer.complete()
        writer.publish()
    for ending, content in zip(("bin", "idx"), contents(tmp_path / "data"), strict=True):
        assert recorded[ending] == (len(content), zlib.crc32(content))


def test_one_resumable_writer_at_a_time(tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt), Writer(prefix, np.uint16, Extent()) as writer:
        writer.append_document(np.array([1, 2, 3]))
        extent = writer.sync()
        for second in (extent, Extent(), None):
            with pytest.raises(TryAgain), Writer(prefix, np.uint16, second):
                pass
        raise KeyboardInterrupt
    with Writer(prefix, np.uint16, extent) as writer:
        writer.publish()
    assert Reader(prefix).tokens.tolist() == [1, 2, 3]


MANY_DOCUMENTS = """
import resource, sys
import numpy as np
from lt_shared.data.indexed_dataset import Writer

with Writer(sys.argv[1], np.uint16) as writer:
    writer.append_document(np.zeros(3, np.uint16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        writer.append(np.zeros(200_000, np.uint16), np.ones(200_000, np.int32), np.ones(200_000, np.int32))
    writer.publish()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_index_of_many_documents_is_written_in_bounded_memory(tmp_path: Path) -> None:
    """20 million documents have an index of 400 MB; the writer may take 64 MiB for it."""
    done = subprocess.run([sys.executable, "-c", MANY_DOCUMENTS, tmp_path / "data"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10
    assert os.path.getsize(tmp_path / "data.idx") == HEADER.size + 20 * 20_000_001 + 8


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float64, np.float32, np.uint16])
def test_every_dtype_of_megatron(tmp_path: Path, dtype: type[np.generic]) -> None:
    check_same_as_megatron(tmp_path, [[[1, 2], [3]], [[4]]], dtype)


def index(*, magic: bytes = b"MMIDIDX\0\0", version: int = 1, code: int = 8, documents: tuple[int, ...] = (0, 1, 2)) -> bytes:
    """The documented layout, of two sequences of 3 and 1 tokens of 2 bytes."""
    header = struct.pack("<9sQBQQ", magic, version, code, 2, len(documents))
    return header + struct.pack(f"<2i2q{len(documents)}q", 3, 1, 0, 6, *documents)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    write(tmp_path / "data", [[[1, 2, 3]], [[4]]], np.uint16)
    assert contents(tmp_path / "data") == (struct.pack("<4H", 1, 2, 3, 4), index())
    reader = Reader(str(tmp_path / "data"))
    assert reader.documents == 2
    assert (reader.sequence_lengths.tolist(), reader.sequence_offsets.tolist()) == ([3, 1], [0, 6])
    assert (reader.document_indices.tolist(), reader.tokens.tolist()) == ([0, 1, 2], [1, 2, 3, 4])
    assert [reader.document(number).tolist() for number in range(2)] == [[1, 2, 3], [4]]


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "not an index of a Megatron dataset", None),
        (index()[:33], "not an index of a Megatron dataset", None),
        (index(magic=b"MMIDIDX\0\1"), "not an index of a Megatron dataset", None),
        (index(version=0), "version 0 with dtype code 8 is not known", None),
        (index(code=9), "version 1 with dtype code 9 is not known", None),
        (index(code=0), "version 1 with dtype code 0 is not known", None),
        (index(documents=()), "its document index is empty", None),
        (index()[:-1], "81 bytes, its header says 82", "the file is truncated: write it again"),
        (index() + b"\0", "83 bytes, its header says 82", "the file is truncated: write it again"),
        (index() + b"\0\0\0", "85 bytes, its header says 82", "the file is truncated: write it again"),
    ],
)
def test_each_refusal_of_an_index(tmp_path: Path, content: bytes, message: str, hint: str | None, thorough: bool) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(8))
    (tmp_path / "data.idx").write_bytes(content)
    with pytest.raises(BadData) as caught:
        Reader(str(tmp_path / "data"), thorough)
    assert (str(caught.value), caught.value.hint) == (f"{tmp_path}/data.idx: {message}", hint)


@pytest.mark.parametrize(
    ("documents", "is_refused"),
    [
        ((0, 1, 2), False),
        ((0, 0, 2, 2), False),
        ((0, 2, 1, 2), True),
        ((0, 1), True),
        ((0, 3), True),
        ((1, 2), True),
        ((2,), True),
    ],
)
def test_the_document_index_is_looked_at_where_it_is_asked_for(
    tmp_path: Path, documents: tuple[int, ...], is_refused: bool
) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(8))
    (tmp_path / "data.idx").write_bytes(index(documents=documents))
    Reader(str(tmp_path / "data"), thorough=False)
    if is_refused:
        with pytest.raises(BadData) as caught:
            Reader(str(tmp_path / "data"))
        assert str(caught.value) == f"{tmp_path}/data.idx: its document index does not fit its 2 sequences"
    else:
        Reader(str(tmp_path / "data"))


@pytest.mark.parametrize("thorough", [True, False])
def test_tokens_of_another_size(prefix: Path, thorough: bool) -> None:
    for size in (0, 11, 13):
        Path(f"{prefix}.bin").write_bytes(bytes(size))
        with pytest.raises(BadData) as caught:
            Reader(str(prefix), thorough)
        assert str(caught.value) == f"{prefix}.bin: {size} bytes, its index says 12"
        assert caught.value.hint == "the file is truncated: write it again"
    write(prefix, [], np.uint16)
    assert Reader(str(prefix), thorough).tokens.tolist() == []
    Path(f"{prefix}.bin").write_bytes(b"\0\0")
    with pytest.raises(BadData, match="2 bytes, its index says 0"):
        Reader(str(prefix), thorough)


def test_what_to_do_about_a_missing_file(prefix: Path, tmp_path: Path) -> None:
    def said(name: str | Path) -> tuple[str, str | None]:
        with pytest.raises(NoInput) as caught:
            Reader(str(name))
        return str(caught.value), caught.value.hint

    assert said(f"{prefix}.idx") == (f"{prefix}.idx.idx: no such file", f"a prefix has no extension: {prefix}")
    nothing = "a dataset is PREFIX.bin and PREFIX.idx"
    assert said(tmp_path / "none") == (f"{tmp_path}/none.idx: no such file", nothing)
    text = tmp_path / "web.jsonl.zst"
    text.touch()
    remedy = f"that is no dataset; for text: lt-preprocess {text} --tokenizer TOKENIZER --append-eod -o PREFIX"
    assert said(text) == (f"{text}.idx: no such file", remedy)
    Path(f"{prefix}.idx").rename(tmp_path / "none_text_document.idx")
    assert said(tmp_path / "none")[1] == f"did you mean {tmp_path}/none_text_document?"
    unfinished = "the dataset was not finished: run its lt-preprocess command again"
    assert said(prefix) == (f"{prefix}.idx: no such file", unfinished)
    assert said(tmp_path / "none_text_document") == (f"{tmp_path}/none_text_document.bin: no such file", nothing)


def test_what_was_written_is_counted() -> None:
    assert Extent(1, 2, 3, 4, 5, 6).counts() == {"tokens": 1, "sequences": 2, "documents": 3}
    assert Extent() == Extent(0, 0, 0, 0, 0, 0)


def test_a_dataset_becomes_visible_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No moment pairs an old index or sidecar with new tokens, and the index is last."""
    prefix = tmp_path / "data"
    for end in (".bin", ".idx", ".json"):
        Path(f"{prefix}{end}").write_bytes(b"old")
    calls: list[tuple[str, str]] = []
    remove, replace = storage.remove, os.replace
    monkeypatch.setattr(storage, "remove", lambda path: calls.append(("remove", os.path.basename(path))) or remove(path))
    monkeypatch.setattr(
        os, "replace", lambda source, target: calls.append(("rename", os.path.basename(target))) or replace(source, target)
    )
    for resume_from in (None, Extent()):
        calls.clear()
        with Writer(str(prefix), np.uint16, resume_from) as writer:
            writer.append_document(np.array([1]))
            writer.publish((f"{prefix}.json", b"new"))
        order = [("remove", "data.idx"), ("remove", "data.json")]
        assert calls == order + [("rename", name) for name in ("data.bin", "data.json", "data.idx")]
    assert sorted(os.listdir(tmp_path)) == ["data.bin", "data.idx", "data.json"]


def test_the_index_grows_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp may be small; of a remote output nothing is local but /tmp."""
    directories: list[object] = []
    temporary = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: directories.append(dir) or temporary(dir=dir))
    monkeypatch.chdir(tmp_path)
    for prefix in (str(tmp_path / "data"), "data", "memory://bucket/beside"):
        with Writer(prefix, np.uint16) as writer:
            writer.append_document(np.array([1]))
            writer.publish()
    assert directories == [str(tmp_path)] * 2 + ["."] * 2 + [None] * 2


def test_an_interrupted_writer_keeps_what_can_be_resumed(tmp_path: Path) -> None:
    prefix = str(tmp_path / "data")
    assert not indexed_dataset.is_partial(prefix)
    with Writer(prefix, np.uint16, Extent()) as writer:
        writer.append_document(np.array([1]))
    kept = [".data.bin.partial", ".data.counts.partial", ".data.lengths.partial"]
    assert sorted(os.listdir(tmp_path)) == kept
    assert indexed_dataset.is_partial(prefix)
    assert [len((tmp_path / name).read_bytes()) for name in kept] == [2, 4, 4]
    indexed_dataset.discard_partial(prefix)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("stage", ["nothing", "nothing, over an older one", "spools alone", "tokens", "index", "all"])
def test_a_publication_is_undone(tmp_path: Path, stage: str) -> None:
    """Its process was killed after some of the renames; while the counts are there, not all is published."""
    prefix = tmp_path / "data"
    with Writer(str(prefix), np.uint16, Extent()) as writer:
        writer.append_document(np.array([1, 2]))
        extent = writer.sync()
    partial = {name: tmp_path / f".data.{name}.partial" for name in ("bin", "lengths", "counts")}
    if stage == "spools alone":
        partial["bin"].unlink()
    if stage == "nothing, over an older one":
        Path(f"{prefix}.bin").write_bytes(b"older")
    if stage in ("tokens", "index", "all"):
        partial["bin"].rename(f"{prefix}.bin")
    if stage in ("index", "all"):
        Path(f"{prefix}.idx").write_bytes(b"index")
    if stage == "all":
        partial["counts"].unlink()
    was_begun = stage != "all"
    assert indexed_dataset.retract_unfinished(str(prefix)) is was_begun
    left = {"nothing": ["bin", "counts", "lengths"], "spools alone": ["counts", "lengths"], "all": []}
    expected = [f".data.{name}.partial" for name in left.get(stage, left["nothing"])]
    if "older" in stage:
        assert Path(f"{prefix}.bin").read_bytes() == b"older"
        Path(f"{prefix}.bin").unlink()
    assert sorted(os.listdir(tmp_path)) == (expected if was_begun else ["data.bin", "data.idx"])
    assert indexed_dataset.can_resume(str(prefix), np.uint16, extent) == (stage not in ("spools alone", "all"))


def test_all_three_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor).st_size))
        fsync(descriptor)

    with pytest.raises(KeyboardInterrupt), Writer(str(tmp_path / "data"), np.uint16, Extent()) as writer:
        monkeypatch.setattr(os, "fsync", sync)
        writer.append(np.array([1, 2, 3]), np.array([2, 1]), np.array([1, 1, 0]))
        writer.sync()
        assert synced == [(".data.bin.partial", 6), (".data.lengths.partial", 8), (".data.counts.partial", 12)]
        raise KeyboardInterrupt


def test_an_older_dataset_stays_when_the_disk_is_full(tmp_path: Path) -> None:
    """The last tokens are written before its index is removed. /dev/full is always full."""
    write(tmp_path / "data", [[[1, 2, 3]]], np.uint16)
    with (
        pytest.raises(IoFailure, match=r"data\.\w+: no space left on device"),
        Writer(str(tmp_path / "data"), np.uint16) as writer,
    ):
        writer.append_document(np.array([4]))
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer.bin_file.fileno())
        os.close(full)
        writer.publish()
    assert Reader(str(tmp_path / "data")).tokens.tolist() == [1, 2, 3]
    assert sorted(os.listdir(tmp_path)) == [".data.bin.partial", "data.bin", "data.idx"]


def test_the_maps_cannot_be_written(prefix: Path) -> None:
    reader = Reader(str(prefix))
    for array in (reader.tokens, reader.sequence_lengths, reader.sequence_offsets, reader.document_indices):
        assert not array.flags.writeable


def test_a_sequence_of_less_than_no_tokens(tmp_path: Path) -> None:
    """Its offsets fit, and so does the size of the tokens."""
    (tmp_path / "data.bin").write_bytes(bytes(8))
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2, 3)
    (tmp_path / "data.idx").write_bytes(header + struct.pack("<2i2q3q", -1, 5, 0, -2, 0, 1, 2))
    with pytest.raises(BadData, match="its sequence index is malformed"):
        Reader(str(tmp_path / "data"))


def test_what_the_sidecar_records_is_computed_once(tmp_path: Path) -> None:
    with Writer(str(tmp_path / "data"), np.uint16) as writer:
        writer.append_document(np.array([1, 2, 3]))
        first = writer.complete()
        assert writer.complete() == first
        writer.publish()
    assert [tuple(first[end]) for end in ("bin", "idx")] == [
        (len(content), zlib.crc32(content)) for content in contents(tmp_path / "data")
    ]


def test_each_document_is_read_alone(tmp_path: Path) -> None:
    write(tmp_path / "data", [[[1]], [[2], [3]], [[4]]], np.uint16)
    assert [Reader(str(tmp_path / "data")).document(number).tolist() for number in range(3)] == [[1], [2, 3], [4]]
