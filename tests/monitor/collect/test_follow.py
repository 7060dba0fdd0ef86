"""`scrape --follow` prints events while logs grow, and goes on where it was after it ended."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from lt_shared.contracts import run_log


def step_lines(first: int, last: int) -> bytes:
    return "".join(f"{run_log.Step(step, 1000, loss=2.5).format()}\n" for step in range(first, last + 1)).encode()


def test_events_come_while_logs_grow_and_appear(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(step_lines(1, 2) + step_lines(3, 3)[:-1])
    command = [sys.executable, "-m", "lt_monitor", "scrape", "--follow", "--state", "state", str(tmp_path / "*.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None

        def read() -> tuple[str, int]:
            record = json.loads(process.stdout.readline())
            return Path(record["src"]["file"]).name, record["step"]

        assert [read(), read()] == [("a.log", 1), ("a.log", 2)]
        with (tmp_path / "a.log").open("ab") as file:
            file.write(b"\n" + step_lines(4, 4))
        assert [read(), read()] == [("a.log", 3), ("a.log", 4)]
        (tmp_path / "b.log").write_bytes(step_lines(7, 7))
        assert read() == ("b.log", 7)
        while "b.log" not in (tmp_path / "state").read_text():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with (tmp_path / "b.log").open("ab") as file:
        file.write(step_lines(8, 8))
    again = [argument for argument in command if argument != "--follow"]
    result = subprocess.run(again, capture_output=True, cwd=tmp_path, check=True)
    assert [json.loads(line)["step"] for line in result.stdout.splitlines()] == [8]


def test_standard_input_cannot_be_followed_this_way() -> None:
    command = [sys.executable, "-m", "lt_monitor", "scrape", "--follow", "-"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 2
    assert "--follow needs files" in result.stderr
