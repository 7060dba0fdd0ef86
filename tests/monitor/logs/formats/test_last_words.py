"""Words that count at the end of a log alone, behind labels of any kind."""

from collections.abc import Callable
from pathlib import Path

import failure_tally
import pytest

from lt_monitor.runs.faults.tail_cause import tail_cause

STEPS = "".join(
    f" iteration {step:8d}/     100 | consumed samples: 8 | elapsed time per iteration (ms): 490.0 | learning rate: 4.5E-06 | "
    "lm loss: 2.5E+00 | "
    "loss scale: 1.0 | grad norm: 0.022 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    for step in (1, 2, 3)
)
BAR = "  3%|▌     | 30/1000 [00:30<1:22:40,  2.86s/it]"

LABELS: dict[str, Callable[[int, str], str]] = {
    "none": lambda number, line: line,
    "GNU parallel": lambda number, line: f"gpu{number % 2}\t{line}",
    "GNU parallel, a word": lambda number, line: f"alpha\t{line}",
    "GNU parallel, arguments": lambda number, line: f"train.py --seed 3\t{line}",
    "Determined": lambda number, line: f"[2024-03-03 10:00:0{number}] [8de2ca81] [rank=3] {line}",
    "Determined, det trial logs": lambda number, line: f"[2024-03-03T10:00:0{number}.1Z] 8de2ca81 [rank=3] || {line}",
    "glog": lambda number, line: f"E1129 12:00:0{number}.123456 4242 train.py:{number}] {line}",
    "number and bar": lambda number, line: f"{number % 2} | {line}",
    "syslog's priority": lambda number, line: f"<6>{line}",
    "syslog without a process": lambda number, line: f"Nov 29 12:00:0{number} node7 train: {line}",
    "honcho": lambda number, line: f"12:00:0{number} trainer.1 | {line}",
    "podman": lambda number, line: f"3f2a9b8c7d6e {line}",
    "torchrun's role": lambda number, line: f"[trainer0|3]:{line}",
    "ts": lambda number, line: f"2024-11-29T12:00:0{number} {line}",
    "time alone": lambda number, line: f"00:01:0{number} {line}",
    "gitlab-runner": lambda number, line: f"2024-11-29T12:00:0{number}.123456Z 01O {line}",
    "loguru": lambda number, line: f"2024-11-29 12:00:0{number}.123 | INFO     | train:main:42 - {line}",
    "logging": lambda number, line: f"INFO:train:{line}",
    "logfmt": lambda number, line: f'time="2024-11-29T12:00:0{number}Z" level=info msg="{line}"',
    "indentation": lambda number, line: f"  {line}",
    "jsrun": lambda number, line: f"3:node07: {line}",
    "blaunch": lambda number, line: f"node07>> {line}",
    "rank": lambda number, line: f"Rank 3: {line}",
    "Ray, repeated": lambda number, line: f"(TrainWorker pid=4242) {line} [repeated 7x across cluster]",
    "colour": lambda number, line: f"\x1b[31m{line}\x1b[0m",
    "colour without its ESC": lambda number, line: f"[34m{line}[0m",
    "end of screen": lambda number, line: f"{line}\x1b[K",
}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize(("begin", "step"), [(STEPS, 3), ("begins to train\nloads the data\n", None)], ids=["steps", "text"])
def test_killed_counts_behind_the_label_of_the_lines_before(
    label: Callable[[int, str], str], begin: str, step: int | None, tmp_path: Path
) -> None:
    lines = [*begin.splitlines(), "Killed"]
    text = "".join(label(number, line) + "\n" for number, line in enumerate(lines))
    assert _verdict(tmp_path, text) == ("killed", 1, step)


@pytest.mark.parametrize(
    ("text", "fault", "code"),
    [
        (BAR + "Killed\n", "killed", 1),
        (f"\r{BAR}\r{BAR}Killed\n$ \n", "killed", 1),
        (BAR + "Terminated\n", "killed", 75),
        ("3: a\n3: b\n3: Segmentation fault (core dumped)\n", "killed", 1),
        ("INFO:train:a\nINFO:train:b\nINFO:train:Aborted (core dumped)\n", "killed", 1),
        ("reads:  20% (117/558) [#      ] eta 28:34:54 \\Terminated\n", "killed", 75),
        (BAR + "\nConnection to n7 closed by remote host.\n", "network", 75),
        (BAR + "\nclient_loop: send disconnect: Broken pipe\n", "network", 75),
        ("ssh: connect to host n7 port 22: Connection timed out\n", "network", 75),
    ],
)
def test_words_behind_a_bar_and_of_ssh(text: str, fault: str, code: int, tmp_path: Path) -> None:
    assert _verdict(tmp_path, text)[:2] == (fault, code)


@pytest.mark.parametrize(
    "text",
    [
        STEPS + "state: Killed\n",
        STEPS + "job 1: Running\njob 2: Done\nthe dragon was Killed\n",
        STEPS + "Killed by signal 9 in a story\n",
        "Killed\n" + STEPS * 2,
        STEPS + "Workers Killed: 0\nall done\nbye\nend\n",
    ],
)
def test_the_word_alone_in_other_text_is_no_failure(text: str, tmp_path: Path) -> None:
    assert _verdict(tmp_path, text)[:2] == (None, 0)


def _verdict(directory: Path, text: str) -> tuple[str | None, int, int | None]:
    log = directory / "train.log"
    log.write_bytes(text.encode())
    cause = tail_cause([str(log)])
    return cause.fault, failure_tally.CODES[cause.action], cause.last_step
