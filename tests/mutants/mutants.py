"""Tries the mutants of one module on the tests that execute them, and prints those that survive.

    nox -s mutants -- shared/src/lt_shared/files/storage.py
    nox -s mutants -- tools/monitor/src/lt_monitor/collect/offsets.py --json

The working tree is only read. Exit code 0 when at least 95% of the mutants are killed, 1 otherwise.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import module_tests
import mutant_plugin
import operators
import pytest
import scores
from module_tests import ROOT, Baseline, Module

NAMES = {
    mutant_plugin.SURVIVED: "survived",
    mutant_plugin.KILLED: "killed",
    mutant_plugin.TIMED_OUT: "timed out",
}


@dataclasses.dataclass
class Attempt:
    """A mutant that is being tried in the process `child`, until `deadline` at the latest."""

    index: int
    tests: list[str]
    directory: Path
    deadline: float


class Driver:
    """Tries mutants in as many processes at a time as there are cores."""

    def __init__(self, module: Module, source: bytes, mutants: Sequence[operators.Mutant], baseline: Baseline, jobs: int):
        self.module = module
        self.source = source
        self.mutants = mutants
        self.baseline = baseline
        self.jobs = jobs
        self.outcomes: dict[int, scores.Outcome] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        # Kernels that numba has compiled and cached on disk do not change with their source in memory.
        self.needs_process = b"numba" in source or b"jit" in source

    def serve(self, zygote: mutant_plugin.Zygote) -> None:
        if self.module.path.read_bytes() != self.source:
            raise SystemExit(f"mutants: error: {self.module.shown} has changed since the tests began")
        running: dict[int, Attempt] = {}
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
            waiting = self._attempts(Path(scratch))
            attempt = next(waiting, None)
            while attempt is not None or running:
                while attempt is not None and len(running) < self.jobs:
                    running[self._start(zygote, attempt)] = attempt
                    attempt = next(waiting, None)
                self._reap(running)

    def _attempts(self, scratch: Path) -> Iterator[Attempt]:
        for index, mutant in enumerate(self.mutants):
            tests = self.baseline.tests_of(mutant)
            if not tests:
                self.outcomes[index] = scores.Outcome(mutant, "survived", 0)
                continue
            directory = scratch / str(index)
            (directory / "temporary").mkdir(parents=True)
            seconds = sum(self.baseline.seconds[node] for node in tests)
            limit = 60 + mutant_plugin.TIMES_AS_LONG * seconds
            yield Attempt(index, tests, directory, time.monotonic() + limit)

    def _start(self, zygote: mutant_plugin.Zygote, attempt: Attempt) -> int:
        mutant = self.mutants[attempt.index]
        mutated = mutant.apply(self.source)
        (attempt.directory / "mutant.py").write_bytes(mutated)
        environment = self.module.environment(LT_MUTANT_SOURCE=str(attempt.directory / "mutant.py"))
        if self.needs_process:
            environment["NUMBA_CACHE_DIR"] = str(attempt.directory / "numba")
        orders = {
            "tests": attempt.tests,
            "seconds": {node: self.baseline.seconds[node] for node in attempt.tests},
            "report": str(attempt.directory / "killed_by"),
            "temporary": str(attempt.directory / "temporary"),
            "environment": environment,
        }
        child = None
        if mutant.function is not None and not self.needs_process:
            child = zygote.fork(mutated, str(self.module.path), mutant.function, orders)
        return child if child is not None else self._start_process(attempt, orders, environment)

    def _start_process(self, attempt: Attempt, orders: dict[str, object], environment: dict[str, str]) -> int:
        path = attempt.directory / "orders.json"
        path.write_text(json.dumps(orders))
        files = list(dict.fromkeys(map(module_tests.file_of, attempt.tests)))
        words = [sys.executable, "-m", "pytest", "-p", "mutant_plugin", "-p", "no:cacheprovider", "-qq", "-s"]
        python_path = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parent)])
        with open(attempt.directory / "output", "wb") as output:
            process = subprocess.Popen(
                [*words, f"--basetemp={attempt.directory / 'temporary'}", *files], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
                env=os.environ | environment | {"LT_MUTANT_ORDERS": str(path), "PYTHONPATH": python_path},
            )  # fmt: skip
        # An object that is forgotten is waited for by the next one, which takes its exit code.
        self.processes.append(process)
        return process.pid

    def _reap(self, running: dict[int, Attempt]) -> None:
        """Wait for a process to end, or end one that is late."""
        while True:
            for child, attempt in list(running.items()):
                is_late = time.monotonic() > attempt.deadline
                if is_late:
                    end_group(child)
                ended, status = os.waitpid(child, 0 if is_late else os.WNOHANG)
                if ended:
                    end_group(child)
                    code = mutant_plugin.TIMED_OUT if is_late else os.waitstatus_to_exitcode(status)
                    self._take(running.pop(child), code)
                    return
            time.sleep(0.002)

    def _take(self, attempt: Attempt, code: int) -> None:
        by = attempt.directory / "killed_by"
        text = by.read_text() if by.exists() else ""
        if code == mutant_plugin.ERROR:
            raise SystemExit(f"mutants: error: mutant {attempt.index} could not be tried: {text}")
        # Any other end is a death: a module that cannot be imported, memory, a signal.
        name = NAMES.get(code, "killed")
        if name == "killed":
            text = text or f"exit code {code}"
        self.outcomes[attempt.index] = scores.Outcome(self.mutants[attempt.index], name, len(attempt.tests), text)
        shutil.rmtree(attempt.directory, ignore_errors=True)


def end_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run(module: Module, files: list[Path], jobs: int, lines: range | None, sample: int | None) -> scores.Report:
    source = module.path.read_bytes()
    found = operators.mutants(source)
    if lines is not None:
        found = [one for one in found if one.first in lines]
    if sample is not None and sample < len(found):
        found = sorted(random.Random(0).sample(found, sample), key=lambda one: one.begin)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        baseline = module_tests.measure(module, files, Path(directory))
    for node in baseline.failed:
        print(f"mutants: warning: does not pass and is left out: {node}", file=sys.stderr)
    if not baseline.executes_module:
        raise SystemExit(f"mutants: error: no test that passes executes {module.shown}; name others with --tests")
    driver = Driver(module, source, found, baseline, jobs)
    used = sorted({module_tests.file_of(node) for node in baseline.seconds})
    options = ["-p", "no:cacheprovider", "-qq", "-s", "--no-header", "--no-summary", f"--rootdir={ROOT}"]
    shown = os.dup(1)
    os.dup2(2, 1)
    pytest.main([*options, *used], plugins=[mutant_plugin.Zygote(driver.serve)])
    sys.stdout.flush()
    os.dup2(shown, 1)
    if len(driver.outcomes) < len(found):
        raise SystemExit(f"mutants: error: {len(found) - len(driver.outcomes)} mutants were not tried")
    outcomes = [driver.outcomes[index] for index in sorted(driver.outcomes)]
    return scores.Report(module.shown, source, outcomes, scores.equivalents(module.shown))


def test_files(paths: list[str]) -> list[Path]:
    """Return the paths of --tests. pytest runs no test if one of them is wrong, and every mutant would survive."""
    for path in map(Path, paths):
        if not path.exists():
            raise SystemExit(f"mutants: error: --tests {path} does not exist; paths are relative to {ROOT}")
    return [Path(path) for path in paths]


def line_range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="file of a module")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="files of tests to try instead of those found")
    parser.add_argument("--lines", type=line_range, metavar="A-B", help="only mutants of these lines")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, the same each time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON object with every mutant")
    options = parser.parse_args()
    module = Module.at(options.module)
    files = test_files(options.tests) if options.tests else module_tests.candidates(module)
    if not files:
        raise SystemExit(f"mutants: error: no test mirrors or imports {module.name}; name some with --tests")
    result = run(module, files, options.jobs, options.lines, options.sample)
    if options.json:
        print(json.dumps(result.to_record(), indent=1))
    else:
        for outcome in result.survivors():
            print(result.diff(outcome))
        print(result.summary())
    whole = options.lines is None and options.sample is None
    for before, after in result.stale() if whole else ():
        print(f"mutants: warning: equivalent.toml lists what does not survive: {before} -> {after}", file=sys.stderr)
    return 0 if result.score() >= scores.LEAST_SCORE else 1


if __name__ == "__main__":
    sys.exit(main())
