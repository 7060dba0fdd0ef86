"""Merged datasets are byte for byte those of one run, and parts that do not belong together are refused."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

from lt_preprocess.datasets import block_reader, merge
from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.slices import Slice
from lt_shared.console import BadData, IoFailure, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.files import storage

Run = Callable[..., subprocess.CompletedProcess[str]]
WriteLines = Callable[[Path, list[Any]], Path]
Documents = list[list[list[int]]]

documents_of_uint16 = st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=6)


def write_with_megatron(prefix: Path, documents: Documents, dtype: Any = np.uint16, multimodal: bool = False) -> str:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype, multimodal)
    for sequences in documents:
        tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
        lengths = [len(sequence) for sequence in sequences]
        builder.add_document(tokens, lengths, [0] * len(lengths) if multimodal else None)
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def contents(prefix: str | Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def merged(sources: list[str | Path], output: Path) -> manifest.Dataset:
    return merge.build(merge.plan([str(source) for source in sources], str(output)))


@settings(max_examples=30)
@given(parts=st.lists(documents_of_uint16, min_size=1, max_size=4))
def test_equals_megatrons_own_merge(tmp_path_factory: pytest.TempPathFactory, parts: list[Documents]) -> None:
    directory = tmp_path_factory.mktemp("merge")
    prefixes = [write_with_megatron(directory / f"part{number}", part) for number, part in enumerate(parts)]
    whole = write_with_megatron(directory / "whole", [document for part in parts for document in part])
    made = merged([*prefixes], directory / "merged")
    assert contents(directory / "merged") == contents(whole)
    assert (made.documents, made.dtype) == (sum(map(len, parts)), "uint16")


def test_parts_of_a_run_equal_the_run(run: Run, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    texts = [{"text": f"document {number}" * (number % 4)} for number in range(40)]
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "--plain"]
    prefixes = []
    for number in range(2):
        part = write_lines(tmp_path / f"{number}.jsonl", texts[20 * number : 20 * number + 20])
        prefixes.append(run(part, *options, "-o", tmp_path / f"part{number}").stdout)
    whole = run(write_lines(tmp_path / "all.jsonl", texts), *options, "-o", tmp_path / "whole").stdout.strip()
    result = run("merge", "-", "-o", tmp_path / "merged", input="".join(prefixes))
    assert result.returncode == 0, result.stderr
    assert contents(tmp_path / "merged") == contents(whole)
    [entry] = manifest.parse(result.stdout.splitlines(), "test")
    assert isinstance(entry, manifest.Dataset)
    assert entry == manifest.describe(str(tmp_path / "merged"))
    expected = manifest.describe(whole)
    assert (entry.documents, entry.tokens, entry.tokenizer, entry.eod) == (40, expected.tokens, expected.tokenizer, 2047)
    assert json.loads((tmp_path / "merged.json").read_bytes())["options"]["append_eod"] is True


def test_removed_documents_are_summed_up(run: Run, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    for name, words in (("a", [1, 3, 1]), ("b", [3, 9, 1]), ("c", [3])):
        file = write_lines(tmp_path / f"{name}.jsonl", [{"text": "word " * count} for count in words])
        options = ["--keep-length", "words:2:8", "--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / name]
        assert run(file, *options).returncode == 0
    result = run("merge", *(tmp_path / f"{name}_text_document" for name in "abc"), "-o", tmp_path / "merged")
    assert result.returncode == 0, result.stderr
    counts = {"too_long": 1, "too_short": 3}
    assert manifest.describe(str(tmp_path / "merged")).removed == json.loads(result.stdout.splitlines()[0])["removed"] == counts
    refused = run("verify", "--deep", "9", tmp_path / "merged")
    assert refused.returncode == 66
    assert "rules removed documents of its sources" in refused.stderr


@pytest.mark.parametrize(
    "name", ["web_{}_text_document", "web_text_document_{}", "{:05d}_tokens", "web-{:05d}-of-00011_text_document"]
)
def test_parts_as_megatron_nemo_datatrove_and_we_name_them(tmp_path: Path, name: str) -> None:
    for number in range(11):
        write_with_megatron(tmp_path / name.format(number), [[[number]]])
    merged([tmp_path], tmp_path / "out")
    assert indexed_dataset.Reader(str(tmp_path / "out")).tokens.tolist() == list(range(11))


def test_parts_of_a_limited_size(tmp_path: Path) -> None:
    """`--max-shard-size` names them -part00000 and so on; the sidecar of the last says that it is the last."""

    def write(prefix: str, is_last: bool) -> None:
        write_with_megatron(tmp_path / prefix, [[[1]]])
        (tmp_path / f"{prefix}.json").write_text(json.dumps({"dataset": {"prefix": prefix}, "part": {"is_last": is_last}}))

    write("web-00000-of-00002-part00000_text_document", False)
    write("web-00000-of-00002-part00001_text_document", True)
    write("web-00001-of-00002-part00000_text_document", False)
    with pytest.raises(NoInput, match="web-00001-of-00002-part00001_text_document"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))
    write("web-00001-of-00002-part00001_text_document", True)
    assert merged([tmp_path], tmp_path / "out").documents == 4
    Path(tmp_path / "web-00000-of-00002-part00000_text_document.idx").unlink()
    with pytest.raises(NoInput):
        merge.plan([str(tmp_path)], str(tmp_path / "again"))


def test_shards_of_different_runs_are_not_joined(
    planned: Callable[..., Plan], tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": f"text {number}"} for number in range(20)])
    (tmp_path / "parts").mkdir()

    def shard(index: int, **options: Any) -> None:
        runs.build(planned([source], demo_tokenizer, tmp_path / "parts/web", shard=Slice(index, 2), **options), 1)

    shard(0)
    shard(1)
    assert merged([tmp_path / "parts"], tmp_path / "out").documents == 20
    shard(1, append_eod=True)
    with pytest.raises(BadData, match=r"web-00001-of-00002_text_document: was not made from the same .*web-00000-of-00002"):
        merge.plan([str(tmp_path / "parts")], str(tmp_path / "again"))
    write_lines(source, [{"text": f"longer text {number}"} for number in range(40)])
    shard(0, append_eod=True)
    with pytest.raises(BadData, match="was not made from the same"):
        merge.plan([str(tmp_path / "parts")], str(tmp_path / "again"))
    shard(1, append_eod=True)
    assert merged([tmp_path / "parts"], tmp_path / "again").documents == 40


def test_parts_of_different_runs_are_not_joined(
    planned: Callable[..., Plan], tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    for name, count in (("a", 3), ("b", 5)):
        source = write_lines(tmp_path / f"{name}.jsonl", [{"text": f"text {number}"} for number in range(count)])
        (tmp_path / name).mkdir()
        runs.build(planned([source], demo_tokenizer, tmp_path / name / "web", max_shard_bytes=1), 1)
    part = "web-part0000{}_text_document"
    for number in (3, 4):
        for end in (".bin", ".idx"):
            (tmp_path / "a" / (part.format(number) + end)).write_bytes(
                (tmp_path / "b" / (part.format(number) + end)).read_bytes()
            )
    with pytest.raises(BadData, match=f"{part.format(4)}: is of another run: .*{part.format(2)} was the last part"):
        merge.plan([str(tmp_path / "a")], str(tmp_path / "out"))
    for end in (".bin", ".idx", ".json"):
        (tmp_path / "b" / (part.format(1) + end)).write_bytes((tmp_path / "a" / (part.format(1) + end)).read_bytes())
    with pytest.raises(BadData, match=f"{part.format(1)}: was not made from the same .*{part.format(0)}"):
        merge.plan([str(tmp_path / "b")], str(tmp_path / "out"))


def test_shards_of_two_counts_are_not_joined(tmp_path: Path) -> None:
    for name in ("0-of-1", "0-of-2", "1-of-2"):
        write_with_megatron(tmp_path / f"web-{name}_text_document", [[[1]]])
    with pytest.raises(BadData, match=r"several runs: .*web-\*-of-1_text_document, .*web-\*-of-2_text_document"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))


def test_links_and_dots_lead_to_the_same_dataset(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    write_with_megatron(tmp_path / "data/a", [[[1, 2]]])
    for end in (".bin", ".idx"):
        (tmp_path / f"b{end}").symlink_to(f"data/a{end}")
    for other in ("link/a", "data/../data/a", "b"):
        with pytest.raises(UsageError, match=r"data/a\): given twice"):
            merge.plan([str(tmp_path / "data/a"), f"{tmp_path}/{other}"], str(tmp_path / "out"))
        with pytest.raises(UsageError, match=r"data/a\): is both read and written"):
            merge.plan([str(tmp_path / "data/a")], f"{tmp_path}/{other}")
    assert merged([tmp_path / "link"], tmp_path / "out").documents == 1
    with pytest.raises(NoInput, match="no dataset in this directory"):
        merge.plan([str(tmp_path / "link")], str(tmp_path / "data/a"))


def test_directory_glob_and_file_names_in_the_order_of_their_numbers(run: Run, tmp_path: Path) -> None:
    """As Megatron's --partitions and NeMo name them: without leading zeros."""
    (tmp_path / "parts").mkdir()
    for number in range(12):
        write_with_megatron(tmp_path / f"parts/web_{number}_text_document", [[[number]]])
    names = sorted(tmp_path.glob("parts/*"), key=lambda path: block_key(path.name))
    for sources in (["--input", "parts"], ["parts/web_*_text_document"], ["parts/*.bin"], [*map(str, names)]):
        result = run("merge", *sources, "-o", "out", "--force", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        dataset = IndexedDataset(str(tmp_path / "out"))
        assert [int(dataset[number][0]) for number in range(len(dataset))] == list(range(12))


def block_key(name: str) -> int:
    return int(name.split("_")[1])


def test_again_is_up_to_date_until_a_part_changes(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_with_megatron(tmp_path / name, [[[1, 2]]])
    first = run("merge", "a", "b", "-o", "out", cwd=tmp_path)
    again = run("merge", "a", "b", "-o", "out", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "up to date" in again.stderr
    assert "up to date" not in run("merge", "a", "b", "-o", "out", "--force", cwd=tmp_path).stderr
    write_with_megatron(tmp_path / "b", [[[1, 2, 3]]])
    assert [json.loads(line).get("tokens") for line in run("merge", "a", "b", "-o", "out", cwd=tmp_path).stdout.splitlines()] == [
        5,
        None,
    ]
    assert "up to date" not in run("merge", "b", "a", "-o", "out", cwd=tmp_path).stderr
    os.truncate(tmp_path / "out.bin", 2)
    assert "up to date" not in run("merge", "b", "a", "-o", "out", cwd=tmp_path).stderr


def test_dry_run_writes_nothing(run: Run, tmp_path: Path) -> None:
    write_with_megatron(tmp_path / "a", [[[1]]])
    result = run("merge", "a", "-o", "out", "--dry-run", cwd=tmp_path)
    plan = json.loads(result.stdout)
    assert (plan["kind"], plan["parts"], plan["up_to_date"]) == ("plan", [str(tmp_path / "a")], False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_parts_of_a_set_must_be_complete(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        write_with_megatron(tmp_path / f"web-0000{number}-of-00005_text_document", [[[1]]])
    with pytest.raises(NoInput, match=r"web-00002-of-00005_text_document, .*web-00004-of-00005_text_document$"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))
    for number in (2, 4):
        write_with_megatron(tmp_path / f"web-0000{number}-of-00005_text_document", [[[1]]])
    assert merge.plan([str(tmp_path)], str(tmp_path / "out")).result.documents == 5
    write_with_megatron(tmp_path / "web-00000-of-00001_title_document", [[[1]]])
    with pytest.raises(BadData, match="several datasets"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))


def test_a_missing_first_shard_is_named(tmp_path: Path) -> None:
    for number in (1, 2):
        write_with_megatron(tmp_path / f"web-0000{number}-of-00003_text_document", [[[1]]])
    with pytest.raises(NoInput, match=r"missing: [^,]*/web-00000-of-00003_text_document$"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))
    write_with_megatron(tmp_path / "web-00003-of-00003_text_document", [[[1]]])
    assert merge.plan([str(tmp_path)], str(tmp_path / "out")).result.documents == 3


def test_unfinished_parts_in_a_directory(tmp_path: Path) -> None:
    write_with_megatron(tmp_path / "a", [[[1]]])
    (tmp_path / ".b.bin.partial").touch()
    with pytest.raises(NoInput, match=r"b\.bin: missing, this part is not finished"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))
    (tmp_path / ".b.bin.partial").unlink()
    (tmp_path / "c.bin").touch()
    with pytest.raises(NoInput, match=r"c\.idx: missing"):
        merge.plan([str(tmp_path)], str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (["a", "wide"], BadData, "wide: tokens are int32, those of a are uint16"),
        (["a", "modes"], BadData, "modes.idx: a multimodal dataset"),
        (["a", "nowhere"], NoInput, "nowhere.idx: no such file"),
        (["no*"], NoInput, "no file matches"),
        (["a", "a"], UsageError, "a: given twice"),
        (["a", "./a*"], UsageError, "given twice"),
        (["a", "out"], UsageError, "out: is both read and written"),
        (["empty"], NoInput, "empty: no dataset in this directory"),
        (["short"], BadData, "short.bin: 2 bytes, its index says 4"),
        (["gpt2", "llama"], BadData, "llama: tokenizer.sha256 y, that of gpt2 is x"),
        (["stale"], BadData, "stale: 2 tokens, its manifest or sidecar says 7"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "short", "gpt2", "llama", "stale"):
        write_with_megatron(Path(name), [[[1, 2]]])
    write_with_megatron(Path("wide"), [[[1, 2]]], np.int32)
    write_with_megatron(Path("modes"), [[[1, 2]]], multimodal=True)
    os.truncate("short.bin", 2)
    Path("empty").mkdir()
    for name, sha256, tokens in (("gpt2", "x", 2), ("llama", "y", 2), ("stale", "x", 7)):
        entry = manifest.Dataset(name, 1, tokens, "uint16", 50257, 50256, manifest.Tokenizer(name, sha256))
        Path(f"{name}.json").write_text(json.dumps({"dataset": manifest.record_of(entry)}))
    before = sorted(os.listdir())
    with pytest.raises(error, match=message):
        merged([*sources], Path("out"))
    assert sorted(os.listdir()) == before


def test_a_part_without_a_known_tokenizer_hides_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_with_megatron(tmp_path / name, [[[1, 2]]])
    entry = manifest.Dataset("a", 1, 2, "uint16", 50257, 50256, manifest.Tokenizer("gpt2", "x"))
    (tmp_path / "a.json").write_text(json.dumps({"dataset": manifest.record_of(entry)}))
    assert merged([tmp_path / "a"], tmp_path / "one").tokenizer == manifest.Tokenizer("gpt2", "x")
    assert merged([tmp_path / "a", tmp_path / "b"], tmp_path / "two").tokenizer is None
    assert "b: its tokenizer is not known" in capsys.readouterr().err


def test_nothing_to_merge(run: Run) -> None:
    result = run("merge", "-o", "out")
    assert result.returncode == 2
    assert "nothing to merge" in result.stderr


def test_a_malformed_index_is_refused_while_it_is_read(tmp_path: Path) -> None:
    write_with_megatron(tmp_path / "a", [[[1, 2]], [[3]]])
    with (tmp_path / "a.idx").open("r+b") as file:
        file.seek(indexed_dataset.HEADER.size)
        file.write(np.array([1], np.int32).tobytes())
    with pytest.raises(BadData, match="sequence index is malformed"):
        merged([tmp_path / "a"], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("kernel", ["copies", "cannot", "says 0"])
def test_large_parts_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.setattr(merge, "PIECE_BYTES", 1000)
    monkeypatch.setattr(merge, "BUFFER_BYTES", 300)
    copies = []
    real = os.copy_file_range

    def copy_file_range(source: int, target: int, count: int, *offsets: int) -> int:
        copies.append(count)
        if kernel == "cannot":
            raise OSError(errno.EXDEV, "different filesystems")
        return 0 if kernel == "says 0" else real(source, target, min(count, 700), *offsets)

    monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    random = np.random.default_rng(0)
    documents = [[random.integers(0, 65536, 400).tolist()] for _ in range(20)]
    for name, some in (("a", documents[:7]), ("b", documents[7:7]), ("c", documents[7:])):
        write_with_megatron(tmp_path / name, some)
    whole = write_with_megatron(tmp_path / "whole", documents)
    merged([tmp_path / "a", tmp_path / "b", tmp_path / "c"], tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)
    assert len(copies) >= 16


def test_a_part_that_shrinks_meanwhile(tmp_path: Path) -> None:
    write_with_megatron(tmp_path / "a", [[[1, 2, 3]]])
    plan = merge.plan([str(tmp_path / "a")], str(tmp_path / "out"))
    with (tmp_path / "target").open("wb") as target:
        os.truncate(tmp_path / "a.bin", 2)
        with pytest.raises(IoFailure, match="became shorter"):
            merge.concatenate([(str(tmp_path / "a.bin"), plan.shapes[0].size_bytes)], target, lambda amount: None)


@pytest.fixture
def two_files(tmp_path: Path) -> list[tuple[str, int]]:
    """Files of which the first 5 and 3 bytes are wanted, and none of one between them."""
    for name, content in (("a", b"01234rest"), ("b", b"x"), ("c", b"567rest")):
        (tmp_path / name).write_bytes(content)
    return [(str(tmp_path / "a"), 5), (str(tmp_path / "b"), 0), (str(tmp_path / "c"), 3)]


Copy = tuple[str, int, int, int]


def copies_of(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], int]) -> list[Copy]:
    """What the kernel is asked to copy: (name, bytes, offset in it, offset in the target). `answer` is how much it copies."""
    copies: list[Copy] = []
    real = os.copy_file_range

    def copy_file_range(source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
        copies.append((os.path.basename(os.readlink(f"/proc/self/fd/{source}")), count, source_offset, target_offset))
        return real(source, target, answer(count), source_offset, target_offset) if answer(count) else 0

    monkeypatch.setattr(os, "copy_file_range", copy_file_range)
    monkeypatch.setattr(merge, "PIECE_BYTES", 2)
    monkeypatch.setattr(merge, "STREAMS", 1)
    return copies


def concatenated(files: list[tuple[str, int]], target: Path) -> list[float]:
    """What the progress was told."""
    advances: list[float] = []
    with target.open("wb") as file:
        merge.concatenate(files, file, advances.append)
    return advances


def test_the_kernel_is_asked_for_each_piece_once(
    two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = copies_of(monkeypatch, lambda count: count)
    assert concatenated(two_files, tmp_path / "out") == [2, 2, 1, 2, 1]
    assert copies == [("a", 2, 0, 0), ("a", 2, 2, 2), ("a", 1, 4, 4), ("c", 2, 0, 5), ("c", 1, 2, 7)]
    assert (tmp_path / "out").read_bytes() == b"01234567"


def test_the_kernel_may_copy_less(two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = copies_of(monkeypatch, lambda count: 1)
    assert concatenated(two_files, tmp_path / "out") == [2, 2, 1, 2, 1]
    assert copies[:4] == [("a", 2, 0, 0), ("a", 1, 1, 1), ("a", 2, 2, 2), ("a", 1, 3, 3)]
    assert (tmp_path / "out").read_bytes() == b"01234567"


def test_a_buffer_takes_over_where_the_kernel_stops(
    two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a piece; reads and writes may be short, too."""
    copies_of(monkeypatch, lambda count: 1 if count == 8 else 0)
    monkeypatch.setattr(merge, "PIECE_BYTES", 8)
    monkeypatch.setattr(merge, "BUFFER_BYTES", 5)
    (tmp_path / "a").write_bytes(b"0123456789abcdefrest")
    sizes: list[tuple[int, int, int]] = []
    preadv, pwrite = os.preadv, os.pwrite

    def read(source: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append((len(buffers[0]), offset, 0))
        return preadv(source, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "pwrite", lambda target, data, offset: pwrite(target, data[:3], offset))
    assert concatenated([(str(tmp_path / "a"), 16)], tmp_path / "out") == [8, 8]
    assert (tmp_path / "out").read_bytes() == b"0123456789abcdef"
    assert sizes == [(5, 1, 0), (2, 6, 0), (5, 9, 0), (2, 14, 0)]


@pytest.mark.parametrize(
    ("number", "is_copied"),
    [
        (errno.ENOSYS, True), (errno.EXDEV, True), (errno.EINVAL, True), (errno.EOPNOTSUPP, True), (errno.EBADF, True),
        (errno.EPERM, True), (errno.EIO, False), (errno.ENOSPC, False),
    ],
)  # fmt: skip
def test_what_the_kernel_answers(
    number: int, is_copied: bool, two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some filesystems cannot; a disk that fails is an error."""

    def fail(*arguments: int) -> int:
        raise OSError(number, os.strerror(number))

    copies_of(monkeypatch, lambda count: count)
    monkeypatch.setattr(os, "copy_file_range", fail)
    if is_copied:
        assert concatenated(two_files, tmp_path / "out") == [2, 2, 1, 2, 1]
        assert (tmp_path / "out").read_bytes() == b"01234567"
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            concatenated(two_files, tmp_path / "out")


def test_after_an_interrupt_no_piece_is_begun(
    two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_shutting_down = threading.Event()
    shutdown = merge.ThreadPoolExecutor.shutdown

    def announced(pool: merge.ThreadPoolExecutor, wait: bool = True) -> None:
        is_shutting_down.set()
        shutdown(pool, wait=wait)

    def copied_later(count: int) -> int:
        if len(copies) > 1:
            is_shutting_down.wait(60)
        return count

    def interrupted(amount: float) -> None:
        raise KeyboardInterrupt

    copies = copies_of(monkeypatch, copied_later)
    monkeypatch.setattr(merge.ThreadPoolExecutor, "shutdown", announced)
    with (tmp_path / "out").open("wb") as file, pytest.raises(KeyboardInterrupt):
        merge.concatenate(two_files, file, interrupted)
    assert len(copies) <= 2


@pytest.mark.parametrize("size", [5, 6, 9])
def test_a_stream_is_written_in_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_bytes("memory://streamed/a", b"0123456789")
    monkeypatch.setattr(merge, "BUFFER_BYTES", 4)
    target, advances = io.BytesIO(), []
    merge.concatenate([("memory://streamed/a", size), ("memory://streamed/a", 2)], target, advances.append)
    assert target.getvalue() == b"0123456789"[:size] + b"01"
    assert advances == {5: [4, 1, 2], 6: [4, 2, 2], 9: [4, 4, 1, 2]}[size]
    with pytest.raises(IoFailure) as caught:
        merge.concatenate([("memory://streamed/a", 11)], target, advances.append)
    assert str(caught.value) == "memory://streamed/a: became shorter while it was copied"


def test_remote_and_local_parts_of_a_local_output(two_files: list[tuple[str, int]], tmp_path: Path) -> None:
    storage.write_bytes("memory://streamed/b", b"remote")
    for order in (0, 1):
        files = [*two_files, *two_files]
        files.insert(order * 6, ("memory://streamed/b", 3))
        concatenated(files, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == [b"rem0123456701234567", b"0123456701234567rem"][order]


def test_no_more_is_written_than_was_read(
    two_files: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the buffer would land on the piece that another thread copies."""
    copies_of(monkeypatch, lambda count: 0)
    monkeypatch.setattr(merge, "PIECE_BYTES", 8)
    preadv, pwrite = os.preadv, os.pwrite
    writes: list[tuple[int, bytes]] = []
    monkeypatch.setattr(os, "preadv", lambda source, buffers, offset: preadv(source, [buffers[0][:2]], offset))

    def write(target: int, data: memoryview, offset: int) -> int:
        writes.append((offset, bytes(data)))
        return pwrite(target, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    concatenated(two_files[:1], tmp_path / "out")
    assert writes == [(0, b"01"), (2, b"23"), (4, b"4")]


def test_the_progress_is_in_bytes_and_the_threads_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    threads: set[str] = set()
    true, copy = merge.Progress.__init__, merge._copy
    monkeypatch.setattr(merge.Progress, "__init__", lambda self, *arguments: given.append(arguments) or true(self, *arguments))
    monkeypatch.setattr(merge, "_copy", lambda *given: threads.add(threading.current_thread().name) or copy(*given))
    merged([write_with_megatron(tmp_path / "a", [[[1, 2]], [[3]]])], tmp_path / "out")
    assert given == [("merging", 6, "B")]
    assert [name.partition("_")[0] for name in threads] == ["merge"]


def test_a_target_that_is_no_file_takes_a_stream(two_files: list[tuple[str, int]], tmp_path: Path) -> None:
    class Upload:
        def __init__(self) -> None:
            self.content = b""

        def write(self, data: bytes) -> None:
            self.content += data

    for target in (io.BytesIO(), Upload()):
        merge.concatenate(two_files, target, lambda amount: None)  # type: ignore[arg-type]
        assert (target.content if isinstance(target, Upload) else target.getvalue()) == b"01234567"


def test_the_checksum_of_a_part_is_the_recorded_one(tmp_path: Path) -> None:
    """Then damage that was done since is found in the merged dataset. One of another file is of no use."""
    prefix = write_with_megatron(tmp_path / "a", [[[1, 2, 3]]])
    content = Path(f"{prefix}.bin").read_bytes()
    assert merge._checksum_of_tokens(prefix, 6) == zlib.crc32(content)
    assert merge._checksum_of_tokens(prefix, 4) == zlib.crc32(content[:4])
    for size, expected in ((6, 99), (8, zlib.crc32(content))):
        Path(f"{prefix}.json").write_text(
            json.dumps({"v": 2, "dataset": {"prefix": prefix}, "crc32": {"bin": [size, 99], "idx": [1, 1]}})
        )
        assert merge._checksum_of_tokens(prefix, 6) == expected


def test_the_plan_is_the_documented_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_with_megatron(tmp_path / name, [[[1, 2]], [[3]]])
    sources = [str(tmp_path / "a"), str(tmp_path / "b")]
    plan = merge.plan(sources, str(tmp_path / "out"))
    expected = {
        "v": 2, "kind": "plan", "command": "merge", "parts": sources, "up_to_date": False,
        "result": {
            "v": 1, "kind": "dataset", "prefix": str(tmp_path / "out"), "documents": 4, "tokens": 6, "dtype": "uint16",
            "weight": 1.0,
        },
    }  # fmt: skip
    assert plan.to_record() == expected
    made = merge.build(plan)
    assert (made.prefix, made.documents, made.tokens) == (str(tmp_path / "out"), 4, 6)
    assert merge.plan(sources, str(tmp_path / "out")).to_record() == expected | {"up_to_date": True}
    record = json.loads((tmp_path / "out.json").read_bytes())
    assert record["dataset"] == expected["result"]
    assert {end: tuple(record["crc32"][end]) for end in ("bin", "idx")} == {
        end: (len(content), zlib.crc32(content)) for end, content in zip(("bin", "idx"), contents(tmp_path / "out"), strict=True)
    }
    assert record["derivation"]["command"] == "merge"
    assert [source["prefix"] for source in record["derivation"]["sources"]] == sources


def test_options_that_all_parts_share_are_kept_but_for_the_shard(tmp_path: Path) -> None:
    for index in range(2):
        prefix = write_with_megatron(tmp_path / f"web-0000{index}-of-00002_text_document", [[[index]]])
        options = {"json_key": "text", "append_eod": True, "shard": {"index": 0, "count": 1}}
        record = {"v": 2, "dataset": {"prefix": prefix, "documents": 1, "tokens": 1, "dtype": "uint16"}, "options": options}
        Path(f"{prefix}.json").write_text(json.dumps(record))
    plan = merge.plan([str(tmp_path / f"web-0000{index}-of-00002_text_document") for index in range(2)], str(tmp_path / "out"))
    assert plan.options == {"json_key": "text", "append_eod": True}


def test_remote_parts_and_output(tmp_path: Path) -> None:
    documents: Documents = [[[1, 2], [3]], [], [[4]]]
    write_with_megatron(tmp_path / "a", documents)
    for end in (".bin", ".idx"):
        storage.write_bytes(f"memory://merge/a{end}", (tmp_path / f"a{end}").read_bytes())
    merge.build(merge.plan(["memory://merge/a", str(tmp_path / "a")], "memory://merge/out"))
    write_with_megatron(tmp_path / "whole", documents * 2)
    assert tuple(storage.read_bytes(f"memory://merge/out{end}") for end in (".bin", ".idx")) == contents(tmp_path / "whole")


def test_blocks_are_whole_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_reader, "SEQUENCES_AT_ONCE", 5)
    monkeypatch.setattr(block_reader, "DOCUMENTS_AT_ONCE", 4)
    documents: Documents = [[[1, 2], [3]], [], [[4]], [[5] * 9], [[], [6]], [[7], [8], [9]] * 3, [[]], []]
    write_with_megatron(tmp_path / "a", documents)
    for tokens_at_once in (None, 1, 4, 100):
        for first in range(len(documents)):
            with block_reader.BlockReader(str(tmp_path / "a")) as reader:
                found: list[list[int]] = []
                for block in reader.blocks(tokens_at_once, first):
                    tokens, bounds = reader.read(block), block.bounds
                    assert block.first_document == first + len(found)
                    assert tokens_at_once is None or len(tokens) <= tokens_at_once or block.documents == 1
                    found += [tokens[bounds[i] : bounds[i + 1]].tolist() for i in range(block.documents)]
                assert found == [[token for sequence in document for token in sequence] for document in documents[first:]]


def test_memory_does_not_grow_with_the_index(tmp_path: Path) -> None:
    """Six million documents of no tokens but one: an index of 120 MB; holding its columns took 200 MB."""
    documents = 6_000_000
    with (tmp_path / "a.idx").open("wb") as file:
        header = indexed_dataset.HEADER.pack(indexed_dataset.MAGIC, 1, 8, documents, documents + 1)
        lengths, offsets = np.zeros(documents, np.int32), np.zeros(documents, np.int64)
        lengths[-1] = 1
        file.write(header + lengths.tobytes() + offsets.tobytes() + np.arange(documents + 1).tobytes())
    (tmp_path / "a.bin").write_bytes(b"\x01\x00")
    script = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from lt_preprocess.datasets import merge\n"
        "def peak_kib():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "plan = merge.plan([sys.argv[1]], sys.argv[2])\n"
        "before = peak_kib()\n"
        "merge.build(plan)\n"
        "print(peak_kib() - before)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "a", tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert contents(tmp_path / "a") == contents(tmp_path / "out")
    assert int(result.stdout) < 70_000
