"""Python that has imported torch and megatron-core when it starts: a copy of a process that keeps still.

A start of lt-train takes five seconds of processor time, and the tests make dozens; a copy takes half of one. `python` is a
program that asks this process's nursery for a copy, which runs `-m MODULE`, `-c CODE` or a file with the same arguments,
environment, directory, streams, umask and limits; ranks that lt-train starts there are copies, too. `light_python` is one that
has imported the other three tools alone: 0.1 seconds instead of 0.3 to 0.4. What is missing is what a new interpreter reads
(OMP_NUM_THREADS, and PYTHONPATH but for a sitecustomize.py in it), other open files, signals, which do not reach the copy, honest
figures of memory, and a GPU. Its mock data are fewer, so that its losses on them are not those of a new interpreter.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import resource
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import copy_request
from copy_request import LARGEST_REQUEST_BYTES, NAMESPACES, STREAMS

FORK = multiprocessing.get_context("fork")
# What most of their commands import, at their start or when they need it. Neither numba nor torch, which few copies import, and
# nothing that reads its settings from the environment or the current directory at its import, as matplotlib does.
OF_TOOLS = (
    *("lt_convert.cli", "lt_convert.commands.conversion", "lt_convert.weights.families", "lt_convert.commands.plan_table"),
    *("lt_convert.commands.merge.merging", "lt_convert.commands.checkpoint_comparison", "lt_convert.formats.torchtitan"),
    *("lt_convert.commands.checksum_verification", "lt_convert.formats.run_checkpoints", "lt_convert.formats.megatron.legacy"),
    *("lt_preprocess.cli", "lt_preprocess.pipeline.run", "lt_preprocess.pipeline.encoding", "lt_preprocess.datasets.merge"),
    *("lt_preprocess.datasets.decoding", "lt_preprocess.datasets.shuffle", "lt_preprocess.datasets.split"),
    *("lt_preprocess.datasets.source_places", "lt_preprocess.compiler.machine_code", "lt_preprocess.tokenizers.byte_level"),
    *("lt_preprocess.tokenizers.bpe.encoder", "lt_preprocess.tokenizers.files.tokenizer_json"),
    *("lt_monitor.cli", "lt_monitor.alerts.alert", "lt_monitor.collect.scrape", "lt_monitor.prometheus.textfile"),
    *("lt_monitor.views.goodput", "lt_monitor.views.html_report", "lt_monitor.views.plot", "lt_monitor.views.runs_table"),
    *("lt_monitor.views.summary_table", "lt_monitor.runs.faults.tail_cause", "lt_train.commands.importing", "encodings.cp437"),
)
# What ranks import when they need it: a tenth of the time of a short run.
OF_RANKS = (
    *("torch._dynamo", "torch.utils.serialization", "encodings.idna"),
    *("lt_train.megatron.torch_optimizer", "lt_train.train.scoring"),
)
TRAINING, TOOLS = "training", "tools"
PR_SET_NAME, CLONE_FS = 15, 0x200
LISTENER = "LT_NURSERY_OF_"
# A hundred times what the imports take, and how often a nursery looks for the process that it works for.
START_SECONDS, OWNER_SECONDS = 1000, 5


def python() -> str:
    """The program's path. The first call waits until the nursery is ready."""
    return _program(TRAINING)


def light_python() -> str:
    return _program(TOOLS)


@functools.cache
def _program(imported: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="lt-nursery-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return executable(folder / "python", sys.executable, "-IS", copy_request.__file__, str(_listener(imported)))


def variables(imported: str) -> dict[str, str]:
    """Have a child of the tests, such as a campaign, use this process's nursery instead of one of its own."""
    return {LISTENER + imported: str(_listener(imported))}


@functools.cache
def _listener(imported: str) -> Path:
    if existing := os.environ.get(LISTENER + imported):
        return Path(existing)
    if run := run_of_worker():
        # All workers of a run share one nursery. The first to ask starts it, and it ends with the process that they work for.
        folder, owner = Path(tempfile.gettempdir(), f"lt-nursery-{imported}-{run}"), os.getppid()
    else:
        folder, owner = Path(tempfile.mkdtemp(prefix="lt-nursery-"), "server"), os.getpid()
        atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    listener = folder / "listener"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        # In a new session: Ctrl-C reaches the tests, whose end is the nursery's.
        command = [sys.executable, __file__, str(listener), imported, str(owner)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        if owner == os.getpid():
            atexit.register(server.terminate)
    deadline = time.monotonic() + START_SECONDS
    while not listener.exists():
        assert time.monotonic() < deadline, f"no {listener}"
        time.sleep(0.05)
    return listener


def run_of_worker() -> str | None:
    """pytest-xdist's name of the run, in its workers alone: their children inherit the variable, and may have other sources."""
    name = "PYTEST_XDIST_TESTRUNUID"
    is_inherited = f"{name}=".encode() in Path("/proc/self/environ").read_bytes()
    return None if is_inherited else os.environ.get(name)


@functools.cache
def programs() -> str:
    """A folder for the PATH of a shell, in which `lt-train` is a copy."""
    folder = Path(python()).parent / "bin"
    folder.mkdir()
    executable(folder / "lt-train", python(), "-m", "lt_train")
    return str(folder)


@functools.cache
def programs_with_copied_ranks() -> str:
    """A folder for the PATH of a job, in which `lt-train` is a process of its own, and its ranks are copies."""
    folder = Path(python()).parent / "launchers-of-jobs"
    folder.mkdir()
    program = f"import sys; sys.executable = {python()!r}; sys.argv[0] = 'lt-train'; from lt_train.cli import main; main()"
    executable(folder / "lt-train", sys.executable, "-P", "-c", program)
    return str(folder)


@functools.cache
def light_programs() -> str:
    """A folder for the PATH of a shell, in which the other three tools are copies."""
    folder = Path(light_python()).parent / "bin"
    folder.mkdir()
    for tool in ("preprocess", "convert", "monitor"):
        executable(folder / f"lt-{tool}", light_python(), "-m", f"lt_{tool}")
    return str(folder)


def executable(path: Path, *command: str) -> str:
    """Write a program that is another with some arguments; returns its path."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def serve(listener: str, imported: str, owner: str) -> NoReturn:
    """Import everything, then make a copy for each request, until the process `owner` has ended."""
    # Python 3.12 warns of the threads of numpy's OpenBLAS, which see to forks themselves.
    warnings.filterwarnings("ignore", message=".* is multi-threaded, use of fork")
    import_training() if imported == TRAINING else import_tools()
    # A copy that collects garbage would look at all of it, and so copy the pages it is in: a third of what a short run takes.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(listener + ".not-yet")
        server.listen()
        os.rename(listener + ".not-yet", listener)
        server.settimeout(OWNER_SECONDS)
        while Path("/proc", owner).exists():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                connection.setblocking(True)
                FORK.Process(target=attend, args=(connection,)).start()
                connection.close()
    shutil.rmtree(Path(listener).parent, ignore_errors=True)
    os._exit(0)


def import_training() -> None:
    import triton_interpreter
    from layouts import assembled, prepare

    from lt_train.config.run_config import RunConfig
    from lt_train.data.blended_dataset import MockSequences
    from lt_train.launch import launcher  # noqa: F401
    from lt_train.megatron import cpu_backend
    from lt_train.process.device import CPU

    prepare(CPU, 0, 1)
    for name in OF_RANKS:
        importlib.import_module(name)
    # cattrs compiles a function for each group of settings at its first use.
    RunConfig.from_json(assembled(["--mock-data", "--model", "tiny"]).to_json())

    # prepare() has installed the CPU's functions and set the threads. Copies have one thread: other tests run beside them.
    import torch

    cpu_backend.install = lambda accelerator: None
    torch.set_num_threads(1)
    # A copy has lost the threads of torch's pool, which is made anew at its first use; of two threads of autograd that were the
    # first at the same time, one would find none and end the process.
    os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
    torch.set_num_threads = lambda threads: None
    # `nox -s cluster` does without Triton.
    if importlib.util.find_spec("triton") is not None:
        triton_interpreter.hasten()
    # Those of the 100,000 sequences are 25 million samples of 8 tokens, whose order takes three seconds of a run of three steps.
    MockSequences.COUNT = 1000


def import_tools() -> None:
    for name in OF_TOOLS:
        importlib.import_module(name)
    from lt_preprocess.compiler import machine_code

    machine_code.processor()


def attend(connection: socket.socket) -> None:
    """Run one request, and end it when the one who asked is gone."""
    message, files, _, _ = socket.recv_fds(connection, LARGEST_REQUEST_BYTES, len(STREAMS))
    copy = FORK.Process(target=become, args=(json.loads(message), files))
    copy.start()
    for file in files:
        os.close(file)
    while copy.sentinel not in wait([copy.sentinel, connection]):
        if not (number := connection.recv(16)):
            copy.kill()
            break
        os.kill(copy.pid, int(number))  # type: ignore[arg-type]
    copy.join()
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(copy.exitcode).encode())


def become(request: dict[str, Any], files: list[int]) -> None:
    """The process that was asked for, in its directory and with its streams."""
    from lt_train.process import process_lifetime

    process_lifetime.die_with(os.getppid())
    if process_lifetime.PARENT_VARIABLE in request["environment"]:
        request["environment"][process_lifetime.PARENT_VARIABLE] = str(os.getppid())
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.sched_setaffinity(0, request["cores"])
    enter_namespaces(request["process"], request["namespaces"])
    for file, stream in zip(files, STREAMS, strict=True):
        os.dup2(file, stream)
        os.close(file)
    sys.stdin = open(0, closefd=False, errors=sys.stdout.errors)
    sys.stdout = open(1, "w", closefd=False, errors=sys.stdout.errors)
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors=sys.stderr.errors)
    os.chdir(request["directory"])
    os.umask(request["umask"])
    for number, limit in request["limits"]:
        resource.setrlimit(number, limit)
    tempfile.tempdir = None
    if "torch" in sys.modules:
        from lt_train.launch import rank_processes
        from lt_train.process import signals

        signals._started = time.monotonic()
        rank_processes.subprocess = Copies  # type: ignore[attr-defined]
    run(request["arguments"], request["environment"])


def enter_namespaces(process: int, identities: list[str]) -> None:
    """Be on the node of the tests' cluster that the process which asks is on, by host name and files."""
    libc = ctypes.CDLL(None, use_errno=True)
    for name, identity in zip(NAMESPACES, identities, strict=True):
        if os.readlink(f"/proc/self/ns/{name}") != identity:
            with open(f"/proc/{process}/ns/{name}") as namespace:
                # A thread of torch's shares the root and the working directory: the kernel refuses to change them for both.
                libc.unshare(CLONE_FS)
                assert libc.setns(namespace.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


class Copies:
    """In place of `subprocess` in lt_train.launch.rank_processes."""

    DEVNULL = subprocess.DEVNULL

    class Popen:
        """A rank: a copy of its launcher."""

        def __init__(self, command: list[str], env: dict[str, str], stdin: int, start_new_session: bool):
            self.process = FORK.Process(target=become_rank, args=(command[1:], env))
            self.process.start()

        def poll(self) -> int | None:
            return self.process.exitcode

        def wait(self) -> None:
            self.process.join()

        def send_signal(self, number: int) -> None:
            if self.poll() is None:
                os.kill(self.process.pid, number)  # type: ignore[arg-type]

        def kill(self) -> None:
            self.process.kill()


def become_rank(arguments: list[str], environment: dict[str, str]) -> None:
    """Under the name `rank NUMBER`, as /proc does not show the variables of a copy."""
    os.setsid()
    if "RANK" in environment:
        ctypes.CDLL(None).prctl(PR_SET_NAME, f"rank {environment['RANK']}".encode())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    run(arguments, environment)


def run(arguments: list[str], environment: dict[str, str]) -> None:
    """Do what Python does with these arguments."""
    os.environ.clear()
    os.environ.update(environment)
    for folder in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)):
        if (customized := Path(folder, "sitecustomize.py")).is_file():
            runpy.run_path(str(customized))
            break
    if "fsspec.config" in sys.modules:
        settings = sys.modules["fsspec.config"]
        settings.set_conf_env(settings.conf)
    # Without the current directory in sys.path, which is another one here anyway.
    while arguments[0] in ("-P", "-u"):
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        # runpy warns that the nursery has imported the module, which it does anew.
        warnings.filterwarnings("ignore", module="runpy")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
