"""Faults in lt-monitor's passes, as many as asked for: is any event lost, or there twice?

    python tests/hostile/campaigns/monitor.py --runs 500

A log grows, is rotated and truncated, while scrape, prom, alert and plot run over it again and again. In each run something
happens to one of them: SIGKILL at a random moment, SIGKILL at one of its renames, unlinks or syncs, an error of the disk (EIO,
ENOSPC, EDQUOT) at one of its writes, or a second one of the same at the same time. Each line of the log is one event, and at the
end each must have been counted once: in the file that scrape appends to, in the counter that prom keeps, among the findings of
alert (those of a pass that was killed may come again). A report is whole whenever it is there.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "train")]

from monitor_command import monitor  # noqa: E402

LT_MONITOR = str(Path(sys.executable).parent / "lt-monitor")
COMMANDS = {
    "scrape": ["scrape", "--state", "scrape.state", "run.log"],
    "prom": ["prom", "-o", "lt.prom", "run.log"],
    "alert": ["alert", "--json", "--state", "alert.state", "run.log"],
    "plot": ["plot", "-o", "report.html", "run.log"],
}
FAULTS = ["kill", "kill at a rename", "kill at an unlink", "kill at a sync", "EIO", "ENOSPC", "EDQUOT", "two at once", "none"]
CALLS = {
    "kill at a rename": "rename,renameat,renameat2:signal=KILL",
    "kill at an unlink": "unlink,unlinkat:signal=KILL",
    "kill at a sync": "fsync,fdatasync:signal=KILL",
    **{error: f"write,fsync,fdatasync,rename,ftruncate:error={error}" for error in ("EIO", "ENOSPC", "EDQUOT")},
}
# Nothing wrong, warnings, critical findings, and what an error of the disk or a second pass ends with. Never 70.
ORDERLY = {0, 1, 3, 73, 74, 75}


class Campaign:
    """A directory with a log, and what has been written into the log so far."""

    def __init__(self, folder: Path, seed: int):
        self.folder = folder
        self.random = random.Random(seed)
        self.steps = 0
        self.faults = 0
        self.rotations = 0
        self.happened: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.alert_outputs = 0

    def grow(self) -> None:
        with (self.folder / "run.log").open("a") as log:
            for _ in range(self.random.randint(1, 40)):
                self.steps += 1
                log.write(json.dumps({"v": 1, "kind": "step", "step": self.steps, "loss": 2.5, "skipped_steps": 1}) + "\n")
            self.faults += 1
            fault = {"fault": "other", "cause": "root", "severity": "critical", "message": f"fault number {self.faults}."}
            log.write(json.dumps({"v": 1, "kind": "fault", **fault}) + "\n")

    def rotate(self) -> None:
        """What was not read yet is in the rotated file, and a new one begins."""
        self.rotations += 1
        log = self.folder / "run.log"
        for old in self.folder.glob("run.log.*"):
            old.unlink()
        log.rename(self.folder / "run.log.1")
        log.touch()

    def truncate(self) -> None:
        """Only what every command has read may go: nobody can know what else there was."""
        for name in COMMANDS:
            self.clean(name)
        os.truncate(self.folder / "run.log", 0)

    def start(self, name: str, program: list[str]) -> subprocess.Popen[bytes]:
        """A pass in a group of its own. Findings go to a file for each pass, events to one for all."""
        self.alert_outputs += name == "alert"
        target = {"scrape": "events.jsonl", "alert": f"findings-{self.alert_outputs}"}.get(name, "output")
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / target).open("ab") as output, (self.folder / "errors").open("ab") as errors:
            return subprocess.Popen(
                [*program, *COMMANDS[name]], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def clean(self, name: str) -> None:
        """A pass to which nothing happens, as a copy, which need not start."""
        process = self.start(name, monitor())
        if process.wait() not in (0, 1, 3):
            self.problems.append(f"a pass of {name} without a fault ended with {process.returncode}")

    def run(self) -> None:
        """Something happens to the log, and then to a pass."""
        self.grow()
        happens = self.random.choice(["nothing", "nothing", "rotate", "truncate"])
        if happens == "rotate":
            # A log that is rotated twice between two passes is gone before anybody could read it.
            for name in COMMANDS:
                self.clean(name)
            self.grow()
            self.rotate()
            self.grow()
        elif happens == "truncate":
            self.truncate()
            self.grow()
        name, fault = self.random.choice(list(COMMANDS)), self.random.choice(FAULTS)
        self.happened[f"{name}: {fault}"] += 1
        if fault == "two at once":
            processes = [self.start(name, [LT_MONITOR]) for _ in range(2)]
        elif fault == "kill":
            processes = [self.start(name, [LT_MONITOR])]
            time.sleep(self.random.uniform(0.0, 0.6))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(processes[0].pid, signal.SIGKILL)
        elif fault in CALLS:
            count = self.random.randint(1, 4)
            calls = CALLS[fault].partition(":")[0]
            options = ("-e", f"trace={calls}", "-e", f"inject={CALLS[fault]}:when={count}")
            # With --seccomp-bpf, which makes it stop at these calls alone, strace 6.1 sends no signal.
            quick = ["--seccomp-bpf"] if ":error=" in CALLS[fault] else []
            strace = ["strace", "-f", *quick, "-qq", "-o", "/dev/null", *options]
            processes = [self.start(name, [*strace, LT_MONITOR])]
        else:
            processes = [self.start(name, [LT_MONITOR])]
        for process in processes:
            code = process.wait()
            if code >= 0 and code not in ORDERLY | {137}:
                self.problems.append(f"{name} with {fault} ended with {code}")
        self.look_at_outputs()

    def look_at_outputs(self) -> None:
        """What is visible is whole, at any time."""
        report, metrics = self.folder / "report.html", self.folder / "lt.prom"
        if report.exists() and not report.read_text().rstrip().endswith("</html>"):
            self.problems.append("a report is cut off")
        if metrics.exists() and "lt_monitor_last_run_timestamp_seconds" not in metrics.read_text():
            self.problems.append("a file of metrics is cut off")

    def finish(self) -> dict[str, int]:
        """Passes to which nothing happens, and then the account."""
        for name in COMMANDS:
            self.clean(name)
        events = [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]
        found = collections.Counter(event["step"] for event in events if event["kind"] == "step")
        counted = int(re.findall(r"^lt_train_skipped_steps_total\{.*\} (\d+)", (self.folder / "lt.prom").read_text(), re.M)[0])
        findings = " ".join(path.read_text() for path in self.folder.glob("findings-*"))
        told = {int(number) for number in re.findall(r"fault number (\d+)\.", findings)}
        state = json.loads((self.folder / "alert.state").read_text())
        hidden = [path.name for path in self.folder.glob(".*") if path.name.endswith(".partial")]
        if hidden:
            self.problems.append(f"left behind: {hidden}")
        return {
            "events": self.steps,
            "lost": self.steps - len(found),
            "doubled": sum(found.values()) - len(found),
            "lost by prom": max(0, self.steps - counted),
            "doubled by prom": max(0, counted - self.steps),
            "lost by alert": self.steps - state["runs"][0]["step_lines"],
            "findings": self.faults,
            "findings lost": len(set(range(1, self.faults + 1)) - told),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed")
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), options.seed)
        for _ in range(options.runs):
            campaign.run()
        account = campaign.finish()
    for what, count in sorted(campaign.happened.items()):
        print(f"{count:6d}  {what}")
    print(f"{options.runs} runs; " + ", ".join(f"{count:,} {what}" for what, count in account.items()))
    for problem in dict.fromkeys(campaign.problems):
        print(f"problem: {problem}")
    wrong = [what for what, count in account.items() if count and what not in ("events", "findings")]
    return 1 if wrong or campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
