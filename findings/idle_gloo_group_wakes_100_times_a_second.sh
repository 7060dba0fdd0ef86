#!/usr/bin/env bash
# torch 2.13.0, Python 3.11, Linux, 2026-11-29.
#
# Each gloo process group that torch.distributed makes gets a device of its own, and with it a thread whose epoll_wait has a time
# limit of 10 ms: the thread wakes a hundred times a second for as long as the group lives, also if nothing is ever sent.
# megatron-core makes about 20 groups, so that a rank with gloo wakes 2,000 times a second while it waits. ProcessGroupGloo with
# options that have the devices of another group adds no such thread.
#
# Seen:
#   21 groups: 21 event loops
#   each wakes more than 20 times in an idle second: True
#   20 more on the devices of the first: 21 event loops
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/groups.py" <<'PYTHON'
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

SECONDS = 5


def event_loops():
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().strip() == "gloo_tcp_loop"]


def wakes(task):
    (line,) = (line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
groups = [dist.new_group([0]) for _ in range(20)]
loops = event_loops()
print(f"{len(groups) + 1} groups: {len(loops)} event loops")
before = {task: wakes(task) for task in loops}
time.sleep(SECONDS)
least = min(wakes(task) - count for task, count in before.items()) / SECONDS
print(f"each wakes more than 20 times in an idle second: {least > 20}")

first = dist.group.WORLD._get_backend(torch.device("cpu"))
shared = []
for number in range(20):
    options = ProcessGroupGloo._Options()
    options._devices = first.options._devices
    store = dist.PrefixStore(f"shared {number}", dist.FileStore(sys.argv[1] + "-shared", 1))
    shared.append(ProcessGroupGloo(store, 0, 1, options))
print(f"{len(shared)} more on the devices of the first: {len(event_loops())} event loops")
PYTHON

python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
"$directory/venv/bin/python" "$directory/groups.py" "$directory/store" | tee "$directory/seen"
diff "$directory/seen" - <<'EXPECTED'
21 groups: 21 event loops
each wakes more than 20 times in an idle second: True
20 more on the devices of the first: 21 event loops
EXPECTED
