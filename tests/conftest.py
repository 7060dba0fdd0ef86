"""Settings of all tests."""

import collections
import gc
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Triton's kernels run in its interpreter, which needs no GPU. Triton reads this when anything imports it, as torch may.
os.environ["TRITON_INTERPRET"] = "1"

# What is imported and collected stays: looking through it again and again, as it grows, took a quarter of that time, and would
# take half a second in every test that collects garbage.
gc.disable()

# A job in the background of a shell, or under nohup, ignores these, and its children would too: tests send them to tools. A
# handler that does nothing keeps them ignored here and leaves the default to the children.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda signal_number, frame: None)


FILES_SHOWN, LONG_SECONDS = 60, 15
# They go to one process, which has to do with them for longer than with anything else: four hundred seconds.
LONGEST = "tests/cluster/"
# Files that take, or have a test or a fixture that takes, more than half a minute. Most of these have few tests.
LONG = re.compile(
    r"tests/(install|pipeline|mutants)/|_campaign\.py|test_(tutorial|extending)\.py|convert/weights/families/|train/test_cli\.py"
    r"|preprocess/(pipeline/test_resume|datasets/test_source_places)\.py|hostile/test_convert_(occupied|planted|checksums)\.py"
    r"|convert/formats/test_(adamw|flat_optimizer)_state\.py|train/(models|parallel|ops|checkpoint)/|test_parallelism\.py"
    r"|planner/test_memory_estimate\.py|render/test_pods\.py|runtime/test_watchdog\.py|commands/test_full_size_plans\.py"
    r"|train/train/test_pipeline_schedule\.py|launch/test_(launcher|streams)\.py|data/test_stream_phases\.py"
    r"|hostile/test_(monitor_(logs|endpoints)|convert_durability|planted_preprocess_cache)\.py|optim/test_optimizer\.py"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, begin with long files, the longest first, so that none is left to the last one; then those with
    most tests."""
    if hasattr(config, "workerinput"):
        tests = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (LONGEST not in item.nodeid, not LONG.search(item.nodeid), -tests[item.path]))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file at a time to each process, but all that needs a cluster to one: they share one Slurm, and mostly wait."""
    from xdist.scheduler import LoadFileScheduling

    # It would sort files by their number of tests: they come in a better order.
    config.option.loadscopereorder = False

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return LONGEST if LONGEST in nodeid else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests recorded for people to read, as `summary`: what a newcomer downloads. Then which files take long."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(value)
    seconds: dict[str, float] = collections.defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    longest = [
        (path, taken) for path, taken in sorted(seconds.items(), key=lambda item: -item[1])[:FILES_SHOWN] if taken >= LONG_SECONDS
    ]
    if longest:
        terminalreporter.section(f"files of {LONG_SECONDS} s and more, of {sum(seconds.values()):,.0f} s in all processes")
        for path, taken in longest:
            terminalreporter.write_line(f"{taken:7.1f} s  {path}")


Calls = list[tuple[str, str, int]]


@pytest.fixture
def durable_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every fsync and rename of this process, in order: the call, the path (a rename's new one) and its size in bytes."""
    calls: Calls = []

    def recording(name: str, true: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = path_of(*arguments)
            result = true(*arguments, **options)
            calls.append((name, path, os.stat(path).st_size))
            return result

        return call

    monkeypatch.setattr(os, "fsync", recording("fsync", os.fsync, lambda file: os.readlink(f"/proc/self/fd/{file}")))
    monkeypatch.setattr(os, "rename", recording("rename", os.rename, lambda old, new: os.fspath(new)))
    return calls
