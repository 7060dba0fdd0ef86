"""pytest-xdist's workers as copies of one process that has imported the largest packages.

Each worker collects all tests and would import torch, megatron-core and transformers for that: six seconds of processor time, and
ten more in a fresh environment, where the workers compile the same files at the same time.
"""

import contextlib
import gc
import importlib
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path

# Most of what test modules import, with what it imports in turn. Nothing that pytest rewrites, such as hypothesis.
PACKAGES = (
    *("torch", "megatron.core.transformer.transformer_config", "torch.distributed.checkpoint"),
    *("transformers.models.llama.modeling_llama", "pandas"),
)
STREAMS = (0, 1, 2)
# The stand-in of a worker: it passes its streams on, and ends when the last process that holds its connection has ended.
STAND_IN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"1"], (0, 1, 2))
    connection.recv(1)
"""


def start() -> tuple[str, Callable[[], None]]:
    """Start the process. Returns the command that stands for Python in a worker, and a function that ends the process."""
    folder = Path(tempfile.mkdtemp(prefix="lt-workers-"))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "listener"))
    server.listen()
    command = [sys.executable, __file__, str(server.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[server.fileno()])
    # Connections wait until the packages are imported.
    server.close()
    (folder / "stand_in.py").write_text(STAND_IN)

    def end() -> None:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    return shlex.join([sys.executable, "-IS", str(folder / "stand_in.py"), str(folder / "listener")]), end


def import_packages() -> None:
    # As tests/conftest.py, which is not imported yet.
    os.environ["TRITON_INTERPRET"] = "1"
    gc.disable()
    # What packages say of each other, once for all workers.
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PACKAGES:
            importlib.import_module(name)
    logging.disable(logging.NOTSET)
    # A worker that collects garbage would look at all of it, and so copy its pages.
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose threads"


def fork_worker(server: socket.socket) -> socket.socket | None:
    """Wait for a stand-in, and return its connection in a new process, which has its streams; None in this process."""
    connection, _ = server.accept()
    connection.setblocking(True)
    _, files, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
    with warnings.catch_warnings():
        # Python 3.12 warns of the threads of numpy's OpenBLAS, which see to forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        is_server = os.fork()
    if is_server:
        connection.close()
    else:
        for file, stream in zip(files, STREAMS, strict=True):
            os.dup2(file, stream)
    for file in files:
        os.close(file)
    return None if is_server else connection


def serve(server: socket.socket) -> socket.socket:
    """Fork a worker for each stand-in until the tests have ended. Returns in the workers."""
    parent = os.getppid()
    import_packages()
    server.settimeout(5)
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            if connection := fork_worker(server):
                return connection
    os._exit(0)


def main() -> None:
    # Ctrl-C ends the workers, and then whoever has started this process ends it.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as server:
        connection = serve(server)
    signal.signal(signal.SIGINT, interrupt)
    # What execnet gives to Python as `-c`: its program reads all else from its input. Processes that tests spawn import no main
    # module then.
    sys.argv, sys.path[0] = ["-c"], ""
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec("import sys;exec(eval(sys.stdin.readline()))", vars(sys.modules["__main__"]))
    connection.close()


if __name__ == "__main__":
    main()
