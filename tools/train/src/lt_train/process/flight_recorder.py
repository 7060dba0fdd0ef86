"""torch's flight recorder: the last collectives of this rank, with their stacks. They name the missing rank if a run hangs.

When a collective times out, torch writes them to /tmp. The watchdog ends the rank earlier, so it writes them itself, next to the
stacks. torch's TORCH_FR_BUFFER_SIZE sets their number, 2,000 by default, and 0 in older releases. The cost: a call takes 1 to 2
us longer (8 to 9 without, gloo, torch 2.13); a dump of 2,000 calls has 250 kB and is written in 50 ms, after the symbolizer has
been loaded, which takes seconds once.
"""

import os
import re

from lt_shared import version_of

# The prefix of torch's dump files, which torch's analyzer expects.
PREFIX = "nccl_trace_rank_"
CALLS = 2000
# The variable since torch 2.9, which warns of the former name, and its former name.
BUFFER_SIZE, FORMER_BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
RENAMED_IN = (2, 9)


def keep_calls() -> None:
    """Let torch record calls, unless the environment sets a number. Call this before the first process group."""
    if not {BUFFER_SIZE, FORMER_BUFFER_SIZE} & os.environ.keys():
        os.environ[buffer_size_variable(version_of("torch"))] = str(CALLS)


def buffer_size_variable(torch_version: str) -> str:
    major_minor = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2])
    return BUFFER_SIZE if major_minor >= RENAMED_IN else FORMER_BUFFER_SIZE


def dump() -> bytes:
    """Return a pickle of the recorded collectives. NCCL has a separate recorder."""
    import torch
    from torch._C import _distributed_c10d as c10d

    name = "_dump_nccl_trace" if torch.cuda.is_initialized() else "_dump_fr_trace"  # type: ignore[no-untyped-call]
    return bytes(getattr(c10d, name)()) if hasattr(c10d, name) else b""
