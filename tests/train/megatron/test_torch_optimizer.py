"""torch's optimizers without its compiler."""

import os
import subprocess
import sys


def test_an_optimizer_is_made_without_the_compiler() -> None:
    program = """
import sys, torch
from lt_train.megatron import torch_optimizer
torch_optimizer.undo_marks()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.5)
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
print("torch._dynamo" in sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
