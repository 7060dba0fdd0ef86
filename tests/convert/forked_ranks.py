"""Ranks that run one of the scripts beside this file: `forked_ranks.py SCRIPT JOBS.json WORLD_SIZE DIRECTORY`.

The script is imported once and its ranks are copies of this process, which is a copy of Python with torch and megatron-core
(tests/train/nursery.py): these take six seconds of processor time to import. Each rank writes what it prints into RANK.log in
DIRECTORY. The first that fails ends all.
"""

import gc
import importlib
import multiprocessing
import os
import sys
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from lt_train.process import process_lifetime

# Where groups_left.py is.
sys.path.append(str(Path(__file__).parents[1] / "train"))


def run_rank(program: Any, rank: int, world_size: str, jobs: str, directory: Path) -> None:
    process_lifetime.die_with(os.getppid())
    log = os.open(directory / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [program.__file__, jobs, str(rank), world_size, str(directory / "store")]
    program.main()


def main(script: str, jobs: str, world_size: str, directory: str) -> int:
    # megatron-core compiles small functions as it is imported, which takes as long as all that is run here. What they compute is
    # the same without.
    torch.compile = lambda function=None, **options: function or (lambda compiled: compiled)
    program = importlib.import_module(script)
    # What is imported is no garbage: a rank that looks for some would look through all of it.
    gc.collect()
    gc.freeze()
    arguments = [(program, rank, world_size, jobs, Path(directory)) for rank in range(int(world_size))]
    started = [multiprocessing.get_context("fork").Process(target=run_rank, args=each) for each in arguments]
    for process in started:
        process.start()
    running = {process.sentinel: process for process in started}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(int(sentinel))  # type: ignore[call-overload]
            process.join()
            if process.exitcode:
                for other in running.values():
                    other.kill()
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
