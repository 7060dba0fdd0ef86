"""A pytest plugin that tries mutants: it collects the tests once and forks a process per mutant.

In the fork the mutated function gets its new code in place, which every reference to the function sees; that takes milliseconds,
where a new process takes seconds to import torch. What is outside of functions runs at import: such a mutant gets a new process,
in which hook/sitecustomize.py compiles the mutant instead of the module.
"""

import contextlib
import faulthandler
import gc
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

HOOK = str(Path(__file__).parent / "hook")
SURVIVED, KILLED, TIMED_OUT, ERROR = 0, 10, 1, 12
MEMORY_BYTES = 8 << 30
# A test may take this many times what it took without a mutant, and so much longer: other processes use the machine, too.
TIMES_AS_LONG, SECONDS_LONGER = 5.0, 20.0


class OneTestAtATime:
    """Runs chosen tests in the given order and ends the process at the first that fails or takes too long."""

    def __init__(self, order: Sequence[str], seconds: dict[str, float], report: str):
        self.order = {node: index for index, node in enumerate(order)}
        self.seconds = seconds
        self.report = report

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        same_each_time()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        limit = SECONDS_LONGER + TIMES_AS_LONG * self.seconds.get(item.nodeid, 0.0)
        faulthandler.dump_traceback_later(limit, exit=True, file=open(os.devnull, "w"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with contextlib.suppress(OSError):
                Path(self.report).write_text(report.nodeid)
            # Not sys.exit: a mutant may have left threads, children and files in any state.
            os._exit(KILLED)


class Timings:
    """The outcome and the seconds of each test, as a JSON file."""

    def __init__(self, report: str):
        self.report = report
        self.found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        same_each_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        one = self.found.setdefault(report.nodeid, {"seconds": 0.0, "passed": True})
        one["seconds"] += report.duration
        one["passed"] = one["passed"] and report.passed

    def pytest_sessionfinish(self) -> None:
        Path(self.report).write_text(json.dumps(self.found))


def same_each_time() -> None:
    """Hypothesis chooses the same examples in each process, and does not look for smaller ones once it has found a failure."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    settings.load_profile("mutants")


def pytest_configure(config: pytest.Config) -> None:
    """In a process of its own the plugin takes its orders from the environment; see `processes`."""
    plugin: Any = None
    if "LT_MUTANT_TIMINGS" in os.environ:
        plugin = Timings(os.environ["LT_MUTANT_TIMINGS"])
    elif "LT_MUTANT_ORDERS" in os.environ:
        orders = json.loads(Path(os.environ["LT_MUTANT_ORDERS"]).read_text())
        limit_memory()
        plugin = OneTestAtATime(orders["tests"], orders["seconds"], orders["report"])
    if plugin is not None:
        config.pluginmanager.register(plugin)


def limit_memory() -> None:
    """A mutant that collects without end fails, instead of the machine. Addresses that a browser only reserves do not count."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))


def code_of(mutated: bytes, file: str, function: tuple[str, int]) -> CodeType | None:
    """The compiled function of the mutant."""
    waiting = [compile(mutated, file, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_qualname, code.co_firstlineno) == function:
            return code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return None


def live_functions(file: str) -> dict[tuple[str, int], list[FunctionType]]:
    """The functions of a module that exist in this process."""
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == file:
            found.setdefault((one.__code__.co_qualname, one.__code__.co_firstlineno), []).append(one)
    return found


class Zygote:
    """Stops after the collection and serves: `attempt` runs in a fork. The driver gives `serve`, which is called with this."""

    def __init__(self, serve: Any):
        self._serve = serve
        self.session: pytest.Session
        self.items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        same_each_time()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self._serve(self)
        return True

    def fork(self, mutated: bytes, file: str, function: tuple[str, int], orders: dict[str, Any]) -> int | None:
        """Start a process with the mutant that runs the tests of `orders`; None when code cannot be exchanged in place."""
        code = code_of(mutated, file, function)
        functions = live_functions(file).get(function, [])
        if code is None or not functions or any(one.__code__.co_freevars != code.co_freevars for one in functions):
            return None
        child = os.fork()
        if child:
            return child
        try:
            self._become(code, functions, orders)
        except BaseException as error:
            Path(orders["report"]).write_text(f"{type(error).__name__}: {error}")
            os._exit(ERROR)

    def _become(self, code: CodeType, functions: list[FunctionType], orders: dict[str, Any]) -> None:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.environ.update(orders["environment"])
        limit_memory()
        for function in functions:
            function.__code__ = code
        config = self.session.config
        config.pluginmanager.register(OneTestAtATime(orders["tests"], orders["seconds"], orders["report"]))
        config._tmp_path_factory._basetemp = Path(orders["temporary"])  # type: ignore[attr-defined]
        items = [self.items[node] for node in orders["tests"]]
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        os._exit(SURVIVED)
