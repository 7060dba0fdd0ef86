#!/usr/bin/env bash
# megatron-core 0.16.1, torch 2.13.0, Python 3.11, Linux, 2026-11-30. megatron-core 0.19.2 gives the same.
#
# The auxiliary losses of a router do not depend on the number of data-parallel ranks, except for one: global_aux_loss adds the
# local probabilities up, divides them by the tokens of all ranks, and DDP then divides the gradient by the number of ranks once
# more. With n ranks --moe-aux-loss-coeff is in effect n times smaller, although every rank has the same tokens here.
#
# Seen, the gradient of the router's weight after the mean over the ranks, relative to one rank:
#   aux_loss: 1, 1.0000 with 2 ranks, 1.0000 with 4
#   seq_aux_loss: 1, 1.0000 with 2 ranks, 1.0000 with 4
#   global_aux_loss: 1, 0.5000 with 2 ranks, 0.2500 with 4
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/balance.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

KINDS = ("aux_loss", "seq_aux_loss", "global_aux_loss")
COUNTS = (1, 2, 4)


def train(rank, ranks, path, queue):
    dist.init_process_group("gloo", store=dist.FileStore(path, ranks), rank=rank, world_size=ranks)
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.moe.router import TopKRouter

    class Router(TopKRouter):
        def gating(self, tokens):  # 0.16.1's own needs TransformerEngine
            return tokens @ self.weight.t()

    parallel_state.initialize_model_parallel()
    groups = ProcessGroupCollection.use_mpu_process_groups()
    norms = []
    for kind in KINDS:
        config = TransformerConfig(
            num_layers=1, hidden_size=16, num_attention_heads=2, num_moe_experts=4, moe_router_topk=2,
            moe_router_load_balancing_type=kind, moe_aux_loss_coeff=1.0, use_cpu_initialization=True,
        )
        router = Router(config, pg_collection=groups)
        router.set_layer_number(1)
        router.weight.data = torch.randn(router.weight.shape, generator=torch.Generator().manual_seed(2))
        MoEAuxLossAutoScaler.main_loss_backward_scale = None
        tokens = torch.randn(32, 1, 16, generator=torch.Generator().manual_seed(3))
        (router(tokens)[0] * 0).sum().backward()
        dist.all_reduce(router.weight.grad)
        norms.append(float(router.weight.grad.norm()) / ranks)
    if rank == 0:
        queue.put(norms)
    dist.destroy_process_group()


if __name__ == "__main__":
    measured = []
    for ranks in COUNTS:
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(train, (ranks, f"{sys.argv[1]}-{ranks}", queue), nprocs=ranks)
        measured.append(queue.get())
    for kind, alone, two, four in zip(KINDS, *measured):
        print(f"{kind}: 1, {two / alone:.4f} with 2 ranks, {four / alone:.4f} with 4")
PYTHON

python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 megatron-core==0.16.1 numpy packaging
OMP_NUM_THREADS=1 "$directory/venv/bin/python" -W ignore "$directory/balance.py" "$directory/store" | tee "$directory/seen"
diff "$directory/seen" - <<'EXPECTED'
aux_loss: 1, 1.0000 with 2 ranks, 1.0000 with 4
seq_aux_loss: 1, 1.0000 with 2 ranks, 1.0000 with 4
global_aux_loss: 1, 0.5000 with 2 ranks, 0.2500 with 4
EXPECTED
