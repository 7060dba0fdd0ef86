#!/usr/bin/env bash
# megatron-core 0.16.1, torch 2.13.0, Python 3.11, Linux, 2026-11-30. megatron-core 0.19.2 gives the same.
#
# With a capacity of the experts, --moe-token-drop-policy position is documented to drop the tokens at the end of the batch. It
# takes torch.topk over the routing map as numbers, and topk does not say which of equal numbers it returns. So an expert that 32
# of 64 tokens chose, and that has room for 8, keeps tokens from the middle of the batch.
#
# Seen:
#   tokens of expert 0: 0, 2, 4 ... 62; room for 8
#   the first 8 are kept: False
#   kept: 8
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cat >"$directory/drop.py" <<'PYTHON'
import torch
from megatron.core.transformer.moe.moe_utils import apply_router_token_dropping

tokens, experts = 64, 4
routing_map = torch.zeros(tokens, experts, dtype=torch.bool)
routing_map[torch.arange(tokens), torch.arange(tokens) % 2] = True
probabilities = routing_map.float()
_, kept = apply_router_token_dropping(
    probabilities, routing_map, router_topk=1, capacity_factor=0.5, drop_policy="position"
)
chosen, remaining = (table[:, 0].nonzero().flatten().tolist() for table in (routing_map, kept))
print(f"tokens of expert 0: {', '.join(map(str, chosen[:3]))} ... {chosen[-1]}; room for {len(remaining)}")
print(f"the first 8 are kept: {remaining == chosen[:8]}")
print(f"kept: {len(remaining)}")
PYTHON

python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 megatron-core==0.16.1 numpy packaging
"$directory/venv/bin/python" -W ignore "$directory/drop.py" | tee "$directory/seen"
diff "$directory/seen" - <<'EXPECTED'
tokens of expert 0: 0, 2, 4 ... 62; room for 8
the first 8 are kept: False
kept: 8
EXPECTED
