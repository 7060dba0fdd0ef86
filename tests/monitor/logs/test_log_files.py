"""Blocks of lines are whole however the bytes arrive, and a log's name tells its run."""

import bz2
import gzip
import io
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.collect.scrape import scrape
from lt_monitor.logs import line_blocks, log_files
from lt_monitor.runs import run_loader
from lt_monitor.runs.faults.tail_cause import tail_cause
from lt_shared.console import BadData, NoInput


class Drip(io.RawIOBase):
    """A source that gives its pieces one by one."""

    def __init__(self, pieces: list[bytes]):
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\xff", b"\x0b", b"\x85"])).map(b"".join)), st.booleans())
def test_blocks_hold_whole_lines_however_the_bytes_arrive(pieces: list[bytes], final: bool) -> None:
    whole = b"".join(pieces)
    blocks = list(line_blocks.blocks(Drip(pieces).read, final=final))
    ended = whole if final else whole[: max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1]
    assert b"".join(blocks) == ended
    assert all(block.endswith((b"\n", b"\r")) for block in (blocks[:-1] if final else blocks))


@pytest.mark.parametrize("line_bytes", [7, 100, line_blocks.LINE_BYTES - 1, line_blocks.LINE_BYTES, 3 * line_blocks.LINE_BYTES])
def test_a_file_is_read_in_whole_lines_and_completely(tmp_path: Path, line_bytes: int) -> None:
    path = tmp_path / "a.log"
    content = (b"x" * (line_bytes - 1) + b"\n") * (2 * line_blocks.BLOCK_BYTES // line_bytes + 3) + b"unfinished"
    path.write_bytes(content)
    with path.open("rb") as log:
        blocks = list(line_blocks.blocks(line_blocks.whole_lines(log), final=True))
    assert b"".join(blocks) == content
    assert max(map(len, blocks)) <= line_blocks.BLOCK_BYTES + line_bytes
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    with path.open("rb") as log:
        is_whole = line_blocks.whole_lines(log)(line_blocks.BLOCK_BYTES).endswith(b"\n")
    assert is_whole or line_bytes >= line_blocks.LINE_BYTES


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    piece = b"x" * (1 << 20)
    blocks = list(line_blocks.blocks(Drip([piece] * 12 + [b"\nend\n"]).read))
    assert max(map(len, blocks)) <= line_blocks.LINE_LIMIT_BYTES + len(piece)
    assert sum(map(len, blocks)) == 12 * len(piece) + 5


STEPS = b"".join(
    b" iteration %8d/     100 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n" % number
    for number in (1, 2, 3)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x04\x22\x4d\x18" + bytes(40) + b"\n", "is compressed with lz4, not text: lz4cat a.log | lt-monitor ... -"),
        (" iteration 1/ 2 | lm loss: 2 |\n".encode("utf-16"), "is UTF-16, not text: iconv -f UTF-16 -t UTF-8 a.log |"),
    ],
)
@pytest.mark.parametrize(
    "command", [("summarize",), ("scrape",), ("scrape", "--state", "s"), ("alert",), ("alert", "--state", "a")]
)
def test_a_log_that_is_no_text_is_said(tool: Any, tmp_path: Path, content: bytes, said: str, command: tuple[str, ...]) -> None:
    (tmp_path / "a.log").write_bytes(content)
    done = tool(*command, "a.log")
    if "--state" not in command:
        assert done.returncode == 65
        assert (
            f"lt-monitor: error: a.log: {said}".replace(": lz4cat", "\nhint: lz4cat").replace(": iconv", "\nhint: iconv")
            in done.stderr
        )
    else:
        assert done.returncode == 0
        assert f"lt-monitor: warning: a.log: {said}" in done.stderr


NO_LOGS = {
    "empty": (b"", 66, "is empty"),
    "nothing in gzip": (gzip.compress(b""), 66, "is empty"),
    "a program in xz": (lzma.compress(b"\x7fELF\x02\x01\x01" + bytes(9) + os.urandom(4000)), 65, "is binary, not text"),
    "blank lines in bzip2": (bz2.compress(b"\n" * 40_000), 66, "holds nothing but blank lines"),
    "damaged zstd": (b"\x28\xb5\x2f\xfd" + b"\xff" * 40, 65, "is damaged in its compressed data"),
    "the begin of gzip": (gzip.compress(STEPS)[:11], 65, "is cut off, or still being written"),
    "lz4": (b"\x04\x22\x4d\x18" + bytes(40), 65, "is compressed with lz4, not text"),
    "zip": (b"PK\x03\x04" + bytes(40), 65, "is a ZIP archive, not text"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(9) + os.urandom(4000), 65, "is binary, not text"),
    "UTF-16 without its mark": (STEPS.decode().encode("utf-16-le"), 65, "is binary, not text"),
    "zeros": (bytes(5000), 65, "holds nothing but zeros"),
    "few zeros": (bytes(7), 65, "is binary, not text"),
    "zeros and line ends": (bytes(60_000) + b"\n\n", 65, "holds nothing but zeros"),
    "blank lines": (b"\n \r\n\t\n", 66, "holds nothing but blank lines"),
    "many blank lines": (b" \n" * 40_000, 66, "holds nothing but blank lines"),
    "a byte order mark": (b"\xef\xbb\xbf", 66, "holds nothing but blank lines"),
    "binary behind text": (STEPS + os.urandom(100_000), 65, "is binary, not text"),
}


@pytest.mark.parametrize("kind", NO_LOGS)
def test_what_is_no_log_is_an_error_of_every_command(kind: str, tmp_path: Path) -> None:
    content, code, said = NO_LOGS[kind]
    bad, good = tmp_path / "a.log", tmp_path / "b.log"
    bad.write_bytes(content)
    good.write_bytes(STEPS)
    with open(tmp_path / "events", "wb") as output:
        for command in (tail_cause, run_loader.read, lambda paths: scrape(paths, None, output)):
            with pytest.raises(BadData if code == 65 else NoInput, match=f"a.log: {said}"):
                command([str(bad)])
            command([str(bad), str(good)])


@pytest.mark.parametrize("blank", [bytes(100_000), b"\n" * 100_000], ids=["zeros", "line ends"])
def test_text_between_blanks_is_read(blank: bytes, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(blank + b"\n" + STEPS + blank)
    assert tail_cause([str(log)]).last_step == 3


@pytest.mark.parametrize("name", ["rank1.log.gz", "a.out.xz", "node1/rank_2.log.gz", "worker-3/stderr.bz2"])
def test_a_compressed_log_in_a_directory_is_read_unless_its_plain_file_is_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "run" / name
    packed.parent.mkdir(parents=True)
    packed.write_bytes(gzip.compress(STEPS))
    log = tmp_path / "run/ok.log"
    log.write_bytes(STEPS)
    assert sorted(log_files.expand([str(tmp_path / "run")])) == sorted([str(log), str(packed)])
    packed.with_suffix("").write_bytes(STEPS)
    assert sorted(log_files.expand([str(tmp_path / "run")])) == sorted([str(log), str(packed.with_suffix(""))])
    assert capsys.readouterr().err == ""


def test_a_log_in_a_directory_in_a_format_that_is_not_read_is_left_out_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "run" / "rank1.log.lz4"
    packed.parent.mkdir()
    packed.write_bytes(b"\x04\x22\x4d\x18" + bytes(40))
    with pytest.raises(BadData, match=r"rank1\.log\.lz4: is compressed with lz4, not text"):
        log_files.expand([str(tmp_path / "run")])
    log = tmp_path / "run/ok.log"
    log.write_bytes(STEPS)
    assert log_files.expand([str(tmp_path / "run")]) == [str(log)]
    assert f"{packed}: is compressed with lz4, not text: left out" in capsys.readouterr().err


def test_text_with_the_name_of_a_compressed_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(STEPS)
    assert log_files.expand([str(tmp_path)]) == [str(tmp_path / "a.log.gz")]


def test_a_hole_of_zeros_is_no_binary_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(bytes(100_000) + b"\n" + STEPS)
    assert tail_cause([str(log)]).last_step == 3


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
        ("logs/rank_0.log", "logs"),
        ("logs/rank_0000.log", "logs"),
        ("logs/rank3", "logs"),
        ("logs/local_rank-3.err", "logs"),
        ("logs/rank_3_of_8.log", "logs"),
        ("logs/worker-3/stderr", "logs"),
        ("logs/worker_3/stderr.log", "logs"),
        ("logs/node1/rank_2.log", "logs"),
        ("logs/node1/2.log", "logs"),
        ("logs/node-1/rank-2/stdout", "logs"),
        ("logs/node1_rank2.log", "logs"),
        ("logs/gpu5.log", "logs"),
        ("logs/gpt.node-1.rank-2.log", "logs/gpt"),
        ("logs/gpt-worker-3.out", "logs/gpt"),
        ("rank_0.log", "rank"),
        ("./worker-3/stderr", "./worker"),
        ("logs/llama-gpu8.log", "logs/llama-gpu8"),
        ("logs/7.log", "logs/7"),
        ("logs/attempt_2/stdout.log", "logs"),
        ("runs/ranking.log", "runs/ranking"),
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
