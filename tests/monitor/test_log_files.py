"""Lines and their offsets are the same however the bytes arrive, and a log's name tells its run."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor import log_files
from lt_shared.console import NoInput


class Drip(io.RawIOBase):
    """A source that gives its pieces one by one."""

    def __init__(self, pieces: list[bytes]):
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\xff", b"\x0b", b"\x85"])).map(b"".join)), st.booleans())
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes], final: bool) -> None:
    whole = b"".join(pieces)
    lines = [line for block in log_files.line_blocks(Drip(pieces).read, final=final) for line in block]
    assert all(whole[offset : offset + len(line)] == line for offset, line in lines)
    content = [(offset, line.rstrip(b"\r\n")) for offset, line in lines if line.strip(b"\r\n")]
    ended = whole if final else whole[: max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1]
    expected = [line for line in ended.replace(b"\r", b"\n").split(b"\n") if line]
    assert [line for _, line in content] == expected


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    piece = b"x" * (1 << 20)
    lines = [line for block in log_files.line_blocks(Drip([piece] * 12 + [b"\nend\n"]).read) for line in block]
    assert max(len(line) for _, line in lines) <= log_files.LINE_LIMIT_BYTES + len(piece)
    assert lines[-1] == (12 * len(piece) + 1, b"end\n")


@pytest.mark.parametrize(
    ("path", "run"),
    [
        ("-", "-"),
        ("/fsx/gpt/slurm-77.out", "/fsx/gpt/slurm-77"),
        ("slurm-77.out.1", "slurm-77"),
        ("slurm-77.out-20261121", "slurm-77"),
        ("gpt-1.7b", "gpt-1.7b"),
        ("runs/base/train.log", "runs/base"),
        ("runs/base/metrics.jsonl", "runs/base"),
        ("train.log", "train"),
        ("./train.log", "./train"),
        (".log", ".log"),
    ],
)
def test_run_names(path: str, run: str) -> None:
    assert log_files.run_name(path) == run


def test_a_log_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    assert log_files.expand([str(log), str(tmp_path / "*.log")]) == [str(log)]


def test_a_directory_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="is a directory"):
        log_files.expand([str(tmp_path)])
