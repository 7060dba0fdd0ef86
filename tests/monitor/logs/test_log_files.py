"""Blocks of lines are whole however the bytes arrive, and a log's name tells its run."""

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.logs import log_files
from lt_shared.console import NoInput


class Drip(io.RawIOBase):
    """A source that gives its pieces one by one."""

    def __init__(self, pieces: list[bytes]):
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\xff", b"\x0b", b"\x85"])).map(b"".join)), st.booleans())
def test_blocks_hold_whole_lines_however_the_bytes_arrive(pieces: list[bytes], final: bool) -> None:
    whole = b"".join(pieces)
    blocks = list(log_files.blocks(Drip(pieces).read, final=final))
    ended = whole if final else whole[: max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1]
    assert b"".join(blocks) == ended
    assert all(block.endswith((b"\n", b"\r")) for block in (blocks[:-1] if final else blocks))


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    piece = b"x" * (1 << 20)
    blocks = list(log_files.blocks(Drip([piece] * 12 + [b"\nend\n"]).read))
    assert max(map(len, blocks)) <= log_files.LINE_LIMIT_BYTES + len(piece)
    assert sum(map(len, blocks)) == 12 * len(piece) + 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(os.urandom(5000)), "is compressed with gzip, not text: zcat a.log | lt-monitor ... -"),
        (" iteration 1/ 2 | lm loss: 2 |\n".encode("utf-16"), "is UTF-16, not text: iconv -f UTF-16 -t UTF-8 a.log |"),
    ],
)
@pytest.mark.parametrize(
    "command", [("summarize",), ("scrape",), ("scrape", "--state", "s"), ("alert",), ("alert", "--state", "a")]
)
def test_a_log_that_is_no_text_is_said(tool: Any, tmp_path: Path, content: bytes, said: str, command: tuple[str, ...]) -> None:
    (tmp_path / "a.log").write_bytes(content)
    done = tool(*command, "a.log")
    assert f"lt-monitor: warning: a.log: {said}" in done.stderr
    assert done.returncode == (65 if command == ("summarize",) else 0)


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
        ("/fsx/gpt/slurm-77_rank12.out", "/fsx/gpt/slurm-77"),
        ("/fsx/gpt/none_x1/attempt_0/3/stdout.log", "/fsx/gpt/none_x1"),
        (os.fsdecode(b"/fsx/\xff.log"), "/fsx/\ufffd"),
        (".log", ".log"),
    ],
)
def test_run_names(path: str, run: str) -> None:
    assert log_files.run_name(path) == run


def test_a_log_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    assert log_files.expand([str(log), str(tmp_path / "*.log")]) == [str(log)]


def test_a_directory_means_the_logs_in_it(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match=r"no log in this directory, neither train\.log nor metrics\.jsonl nor \*\.log"):
        log_files.expand([str(tmp_path)])
    for name in ("b.out", "a.err", ".c.log", "model.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "d.log").mkdir()
    assert log_files.expand([str(tmp_path)]) == [str(tmp_path / "a.err"), str(tmp_path / "b.out")]
    (tmp_path / "train.log").touch()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert log_files.expand([str(tmp_path)]) == [str(tmp_path / "metrics.jsonl")]
    (tmp_path / "train.log").write_text("x\n")
    assert log_files.expand([f"{tmp_path}/", str(tmp_path / "train.log")]) == [str(tmp_path / "train.log")]
