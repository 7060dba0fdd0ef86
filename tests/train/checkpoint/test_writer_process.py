"""A rank's writer is a process without torch and without threads behind it, and ends as a rank would; no rank is ever forked."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import RUNS, command, environment

from lt_shared.contracts.manifest import Dataset
from lt_train.checkpoint.shards import writer_process
from lt_train.checkpoint.shards.archives import Frame, WrittenObject
from lt_train.checkpoint.shards.writer_process import Failure, StagedTensor, WriterProcess
from lt_train.process import run_files

STRACE = shutil.which("strace")
OBJECT = WrittenObject(6, zlib.crc32(b"object"))


@pytest.fixture
def writer() -> Iterator[WriterProcess]:
    yield writer_process.start()
    writer_process.stop()


def memory(content: bytes) -> int:
    """The descriptor of memory that holds `content`."""
    descriptor = os.memfd_create("test")
    os.write(descriptor, content)
    return descriptor


def begin(writer: WriterProcess, *paths: object) -> None:
    descriptor = memory(b"12345")
    writer.write(descriptor, [(str(path), [b"object"]) for path in paths])
    os.close(descriptor)


def write(writer: WriterProcess, *paths: object) -> writer_process.Answer:
    begin(writer, *paths)
    return writer.answer()


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_has_one_thread_and_no_torch(writer: WriterProcess, tmp_path: Path) -> None:
    process = Path(f"/proc/{writer.pid}")
    assert write(writer, tmp_path / "a") == [[OBJECT]]
    # The threads that write end with the files.
    eventually(lambda: len(list((process / "task").iterdir())) == 1)
    loaded = (process / "maps").read_text()
    assert "numpy" in loaded
    assert "torch" not in loaded
    assert int(re.findall(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())[0]) < 60_000


def test_what_is_written_lies_in_the_shared_memory(writer: WriterProcess, tmp_path: Path) -> None:
    """A head and a tail of an archive without members surround the tensor's bytes."""
    end = b"PK\x06\x06" + bytes(94)
    descriptor = memory(b"..tensor..")
    tensor = StagedTensor(Frame(b"head", end), 2, 6)
    writer.write(descriptor, [(str(tmp_path / name), [name.encode(), tensor]) for name in ("a", "b")])
    os.close(descriptor)
    content = b"headtensor" + end
    second = WrittenObject(len(content), zlib.crc32(content))
    assert writer.answer() == [[WrittenObject(1, zlib.crc32(name)), second] for name in (b"a", b"b")]
    assert [(tmp_path / name).read_bytes() for name in ("a", "b")] == [b"a" + content, b"b" + content]


def test_after_an_error_it_writes_the_next_files(writer: WriterProcess, tmp_path: Path) -> None:
    answer = write(writer, "/dev/full", tmp_path / "a")
    assert isinstance(answer, OSError)
    assert (answer.errno, run_files.is_full(answer)) == (errno.ENOSPC, True)
    answer = write(writer, tmp_path / "none/a")
    assert isinstance(answer, FileNotFoundError)
    assert str(answer) == f"[Errno 2] No such file or directory: '{tmp_path}/none/a'"
    answer = write(writer, "nowhere://a")
    assert isinstance(answer, Failure)
    assert "nowhere" in answer.reason
    assert "pip install s3fs" in str(answer.hint)
    assert answer.exit_code == 69
    assert write(writer, tmp_path / "b") == [[OBJECT]]


def test_a_killed_writer_is_as_a_killed_rank_and_another_one_is_started(writer: WriterProcess, tmp_path: Path) -> None:
    """Job files start such a rank again within the job."""
    os.mkfifo(tmp_path / "pipe")
    begin(writer, tmp_path / "pipe")
    assert writer_process.start() is writer
    assert not writer.has_answered()
    os.kill(writer.pid, signal.SIGKILL)
    assert writer.answer() == Failure("its writer was ended by SIGKILL", "often the kernel, out of memory: see dmesg", 137)
    assert writer_process._failure_of_exit(7) == Failure("its writer ended with 7", None, 74)
    # Also when it has ended before it is told to write.
    begin(writer, tmp_path / "a")
    eventually(writer.has_answered)
    assert isinstance(writer.answer(), Failure)
    another = writer_process.start()
    assert another is not writer
    assert write(another, tmp_path / "a") == [[OBJECT]]


def test_signals_to_a_ranks_group_do_not_end_it(writer: WriterProcess, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(writer.pid, number)
    assert write(writer, tmp_path / "a") == [[OBJECT]]


def test_it_ends_with_its_rank_also_while_it_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    program = (
        "import os, time; from lt_train.checkpoint.shards import writer_process; writer = writer_process.start();"
        "memory = os.memfd_create('test'); os.write(memory, b'1');"
        f"writer.write(memory, [({str(tmp_path / 'pipe')!r}, [b'object'])]); print(writer.pid, flush=True); time.sleep(600)"
    )
    rank = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert rank.stdout
    writer = Path(f"/proc/{int(rank.stdout.readline())}")
    # A thread of it waits for a reader of the pipe.
    eventually(lambda: len(list((writer / "task").iterdir())) > 1)
    rank.kill()
    rank.wait()
    eventually(lambda: not writer.exists() or "Z (zombie)" in (writer / "status").read_text())


def test_a_rank_starts_it_before_torch_is_imported() -> None:
    """Only where checkpoints may be written beside training."""
    program = """
import sys
from types import SimpleNamespace
from lt_train.checkpoint.shards import writer_process
from lt_train.launch import worker

def prepare(*arguments):
    print("torch" in sys.modules, writer_process._writer is not None and not writer_process._writer.has_ended())
    raise SystemExit

worker.prepare_process = prepare
settings = SimpleNamespace(save="run", may_save_async=lambda is_on_gpu: sys.argv[1] == "async")
groups = dict.fromkeys(("precision", "memory", "reporting"))
worker.start(SimpleNamespace(checkpointing=settings, parallelism=SimpleNamespace(device="cpu"), **groups), None)
"""
    for way, expected in (("async", "False True"), ("sync", "False False")):
        done = subprocess.run([sys.executable, "-c", program, way], capture_output=True, text=True, timeout=100)
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_no_rank_is_forked(tmp_path: Path, dataset: Dataset) -> None:
    """A new program may be started at any time: the kernel then copies nothing of a rank, not even its locks."""
    trace, run = tmp_path / "trace", tmp_path / "run"
    recorder = [str(STRACE), "-f", "--seccomp-bpf", "-e", "trace=clone,clone3,fork,vfork,execve", "-s", "4096", "-o", str(trace)]
    options = (*RUNS["one"], "--async-save", "--save", str(run), dataset.prefix)
    done = subprocess.run([*recorder, *command(*options)], env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    calls = [line.split(maxsplit=1) for line in trace.read_text().splitlines()]
    (rank,) = {process for process, call in calls if call.startswith("execve") and "lt_train.launch.worker" in call}
    # A thread of it has a number of its own.
    threads, copies, unfinished = {rank}, [], {}
    for process, call in calls:
        if process in threads and re.match(r"(<\.\.\. )?(clone|clone3|fork)\b", call):
            # Another process may have called the kernel between the two halves of a line.
            call = unfinished.pop(process, "") + call
            if "<unfinished" in call and "resumed" not in call:
                unfinished[process] = call
            elif "CLONE_THREAD" in call:
                threads.add(call.rpartition("=")[2].strip())
            elif "CLONE_VFORK" not in call:
                copies.append(call)
    assert len(threads) > 1
    assert copies == []
    writers = {process for process, call in calls if call.startswith("execve") and "writer_program" in call}
    assert len(writers) == 1
