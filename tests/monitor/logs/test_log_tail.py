"""The end of a long log is found without reading the rest, and a flood of one line takes bounded work."""

import time
from pathlib import Path

import pytest

from lt_monitor.logs import log_tail
from lt_monitor.logs.log_tail import LogTail

STEP = b" iteration %8d/ 1000000 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | lm loss: 2.5E+00 |\n"
XID = b"Nov 06 17:59:27 node7 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.\n"
WARNING = b"ip-10-1-2-%d:%d:%d [%d] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n<%d>\n"
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def faults(tail: LogTail) -> list[tuple[str, int]]:
    return [(record["fault"], record["src"]["offset"]) for record in tail.records if record["kind"] == "fault"]


def test_only_the_end_is_read_where_it_has_steps(tmp_path: Path) -> None:
    steps = b"".join(STEP % number for number in range(40_000))
    log = tmp_path / "a.log"
    log.write_bytes(OOM + steps + OOM)
    tail = LogTail(str(log))
    assert faults(tail) == [("out-of-memory", len(OOM) + len(steps))]
    assert max(record["step"] for record in tail.records if record["kind"] == "step") == 39_999
    assert tail.line_number(len(OOM) + len(steps)) == 40_002


@pytest.mark.parametrize("size", [10, 1 << 16, log_tail.FIRST_WINDOW_BYTES - 30, 9 * log_tail.FIRST_WINDOW_BYTES + 5])
def test_offsets_are_right_across_windows_and_blocks(size: int, tmp_path: Path) -> None:
    noise = b"%07d of no interest at all, one of many such lines in this log\n"
    lines = b"".join(noise % number for number in range(size // 66 + 1))
    log = tmp_path / "a.log"
    log.write_bytes(OOM + lines + OOM + lines + XID)
    tail = LogTail(str(log))
    content = log.read_bytes()
    assert [(content[offset:].split(b"\n")[0] + b"\n") for _, offset in faults(tail)] == [OOM, OOM, XID]


def test_a_flood_of_one_line_hides_nothing(tmp_path: Path) -> None:
    flood = b"".join(WARNING % (index % 200, index, index, index % 8, index) for index in range(250_000))
    middle = flood.rfind(b"\n", 0, len(flood) // 2) + 1
    log = tmp_path / "a.log"
    log.write_bytes(XID + flood[:middle] + OOM + flood[middle:])
    before = time.process_time()
    tail = LogTail(str(log))
    # 25 MB of fault lines, which would take ten seconds one by one; a gigabyte takes three.
    assert time.process_time() - before < 4
    found = faults(tail)
    assert ("xid", 0) in found
    assert ("out-of-memory", len(XID) + middle) in found
    assert len(found) < 40_000


def test_a_line_without_an_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 20_000_000 + OOM.rstrip(b"\n"))
    before = time.process_time()
    assert [name for name, _ in faults(LogTail(str(log)))] == ["out-of-memory"]
    assert time.process_time() - before < 4


def test_bars_number_the_dicts_of_hugging_face(tmp_path: Path) -> None:
    lines = "".join(
        f"  1%|          | {number}/1752 [00:29<1:22:01,  2.83s/it]\n{' ' * 52}\n"
        f"{{'loss': 3.5, 'grad_norm': 1.4, 'epoch': 0.0{number}}}\n\n"
        for number in (10, 20, 30)
    )
    log = tmp_path / "a.log"
    log.write_text(lines)
    assert [record["step"] for record in LogTail(str(log)).records] == [10, 20, 30]


def test_steps_of_many_lines(tmp_path: Path) -> None:
    head = "[2025-02-20 15:18:0{0}] INFO     [olmo_core.train.callbacks.console_logger:62, rank=0] [step={0}/7,epoch=1]\n"
    log = tmp_path / "a.log"
    log.write_text("".join(head.format(number) + "    train/CE loss=11.03\n" for number in (1, 2, 3)))
    assert [record["step"] for record in LogTail(str(log)).records] == [1, 2, 3]
