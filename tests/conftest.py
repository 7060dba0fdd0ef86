"""Settings of all tests."""

import collections
import gc
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked_workers
import pytest
from hypothesis import settings

from lt_shared.console import output

# How long one example takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Triton's kernels run in its interpreter, which needs no GPU. Triton reads this when anything imports it, as torch may.
os.environ["TRITON_INTERPRET"] = "1"

# Without a handler, warnings of libraries would go to the standard error that tests look at.
logging.getLogger().addHandler(logging.NullHandler())

# What is imported and collected stays: looking through it again and again, as it grows, took a quarter of that time, and would
# take half a second in every test that collects garbage.
gc.disable()

# A job in the background of a shell, or under nohup, ignores these, and its children would too: tests send them to tools. A
# handler that does nothing keeps them ignored here and leaves the default to the children.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda signal_number, frame: None)


FILES_SHOWN, LONG_SECONDS = 60, 15
# Where megatron-core, of which Pythons have versions of their own, decides a result: models, optimizers, checkpoints, ranks,
# formats, and whole pipelines. Elsewhere tests start it too, for what surrounds a run (Slurm, Kubernetes, planted files, the
# order of samples), or need torch alone (kernels), whose version is the same: a second Python would repeat those for more than
# half of the time. Of the layouts that the first trains, the second trains every other one (tests/train/layouts.py).
TORCH = re.compile(
    r"tests/pipeline/test_(?!planted)|tests/convert/(formats|weights)/|convert/commands/test_(conversion|python_api)"
    r"|tests/shared/(models/architecture|data/sample_order)/|tests/preprocess/pipeline/test_gpt_dataset"
    r"|tests/train/(checkpoint/test_(?!disk_space|local)|models/(?!test_fp8)|optim/|parallel/|train/test_(?!kernel_trials))"
    r"|tests/train/process/test_(rendez|listen|gloo)"
    r"|train/(test_replacements|launch/test_launcher|config/(test_kernels|settings/test_parallelism))"
    r"|hostile/(test_train_common|test_planted_compile_caches)"
)
# Of the five guides, the one that goes through TorchTitan's files.
OTHER_GUIDES = re.compile(r"test_seeds\.py::(?!test_a_small_run_of_the_guide\[torchtitan)")
# They go to one process, which has to do with them for longer than with anything else: two hundred seconds.
LONGEST = "tests/cluster/"
# Files that take, or have a test or a fixture that takes, more than half a minute, or a quarter of one if they have few tests:
# files with few tests come last, and the other processes would wait for them.
LONG = re.compile(
    r"tests/(install|pipeline|mutants)/|_campaign\.py|test_(tutorial|extending)\.py|convert/weights/families/|train/test_cli\.py"
    r"|preprocess/(pipeline/test_resume|datasets/test_source_places)\.py|hostile/test_convert_(occupied|planted|checksums)\.py"
    r"|convert/formats/test_(adamw|flat_optimizer)_state\.py|train/(models|parallel|ops|checkpoint|train)/|test_parallelism\.py"
    r"|planner/test_memory_estimate\.py|render/test_pods\.py|process/test_watchdog\.py|commands/test_full_size_plans\.py"
    r"|launch/test_(launcher|streams)\.py|data/test_stream_phases\.py"
    r"|hostile/test_(monitor_(logs|endpoints)|convert_durability|planted_preprocess_cache)\.py|optim/test_optimizer\.py"
    r"|/test_(phases|store_ranges|growth|remote|durability|self_check|interruptions|shard_uploads|order_record|blended_dataset)\.py"
    r"|/test_(samples|control|rank_processes|trackers|micro_batches|gloo_groups|torch_optimizer|pipes_in_tables|verbosity)\.py"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: depends on the version of megatron-core (TORCH of tests/conftest.py)")
    if config.option.markexpr == "torch":
        os.environ["LT_SECOND_PYTHON"] = "1"
    if hasattr(config, "workerinput") and config.args == ["tests"]:
        config.args = rotated_rooms(config.rootpath, config.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Where all tests run, the workers are copies of one process, which imports for them."""
    if config.args == ["tests"]:
        python, end = forked_workers.start()
        config.add_cleanup(end)
        for spec in specs:
            spec.python = python


def rotated_rooms(root: Path, worker: dict[str, Any]) -> list[str]:
    """All rooms of the tests. Worker 2 of 4 begins in the middle, with the room after half of the files.

    In a fresh checkout, the first import of a module compiles it, and the other workers read the result. If all workers collected
    in the same order, each of them would compile everything at the same time.
    """
    files_to: dict[str, int] = {}
    files = 0
    for room in sorted(path for path in (root / "tests").iterdir() if path.is_dir() or path.match("test_*.py")):
        files += len(list(room.rglob("test_*.py"))) or room.is_file()
        files_to[str(room.relative_to(root))] = files
    start = files * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    return sorted(files_to, key=lambda room: (files_to[room] <= start, files_to[room]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m torch`, files without such tests are not even imported."""
    is_left_out = config.option.markexpr == "torch" and collection_path.is_file() and not TORCH.search(collection_path.as_posix())
    return True if is_left_out and collection_path.name != "conftest.py" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what depends on torch. With several processes, begin with long files, the longest first, so that none is left to the
    last one; then those with most tests."""
    for item in items:
        if TORCH.search(item.path.as_posix()) and not OTHER_GUIDES.search(item.nodeid):
            item.add_marker("torch")
    if hasattr(config, "workerinput"):
        tests = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (LONGEST not in item.nodeid, not LONG.search(item.nodeid), -tests[item.path], item.path))


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


@pytest.fixture(autouse=True)
def fresh_console() -> Iterator[None]:
    """A command that ran within this process leaves its name and its verbosity behind: the lines of later tests would differ."""
    reset_console()
    yield
    reset_console()


def reset_console() -> None:
    output.begin("lt")
    os.environ.pop(output.VERBOSITY, None)


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
