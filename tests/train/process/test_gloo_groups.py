"""How many event loops gloo runs in a rank."""

import subprocess
import sys

from reserved_ports import free_port

LOOP = "gloo_tcp_loop"
PROGRAM = """
import sys, datetime, pathlib, torch
from torch.distributed import distributed_c10d
from lt_train.process import rendezvous

rank, port = map(int, sys.argv[1:])
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
timeout = datetime.timedelta(seconds=50)
with rendezvous.share_gloo_devices():
    groups = [torch.distributed.new_group([0, 1], timeout=timeout) for _ in range(5)]
torch_s = distributed_c10d.ProcessGroupGloo
assert torch_s.__name__ == "ProcessGroupGloo"
total = torch.zeros(1)
for power, group in enumerate(groups):
    share = torch.tensor([float(10**power)])
    torch.distributed.all_reduce(share, group=group)
    total += share
backend = groups[0]._get_backend(torch.device("cpu"))
assert isinstance(backend, torch_s)
assert backend.options._timeout == timeout
loops = [task for task in pathlib.Path("/proc/self/task").glob("*/comm") if task.read_text().strip() == "NAME"]
print(int(total), len(loops))
torch.distributed.destroy_process_group()
""".replace("NAME", LOOP)


def test_groups_exchange_over_the_event_loop_of_the_first() -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROGRAM, rank, port], stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    printed = [rank.communicate(timeout=300)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert printed == [["22222", "1"]] * 2
