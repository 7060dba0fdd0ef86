"""`stock_model` on tensor-parallel ranks that share query groups: a program that prints each rank's differences."""

import json
import multiprocessing
import os
import sys
from typing import Any

import stock_model
import torch
from layouts import plan_of
from reserved_ports import free_port

from lt_train.parallel import query_groups
from lt_train.process import device
from lt_train.process.rank_environment import RankEnvironment
from lt_train.train.process_groups import TIMEOUT


def compare(rank: int, port: int, arguments: list[str]) -> None:
    """Print the differences of all ranks on rank 0, for a command line of lt-train with tensor parallelism only."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    plan = plan_of(arguments)
    ranks = plan.parallelism.tensor
    place = RankEnvironment(rank, rank, ranks, ranks, "127.0.0.1", port, "test")
    os.environ.update(place.variables())
    cpu = device.prepare("cpu", place)
    device.communicate_on_loopback(place)
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    query_groups.create_group(ranks, plan.architecture.num_query_groups, ranks, TIMEOUT)
    model_parallel_cuda_manual_seed(1)
    differences: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(differences, stock_model.differences(arguments, cpu))
    if rank == 0:
        print(json.dumps(differences))


def main(arguments: list[str]) -> int:
    port, ranks = free_port(), plan_of(arguments).parallelism.tensor
    processes = [multiprocessing.Process(target=compare, args=(rank, port, arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
