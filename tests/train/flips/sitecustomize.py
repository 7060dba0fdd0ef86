"""A bit that flips in a rank's memory: Python imports this module at its start when this directory is in PYTHONPATH.

LT_FLIP is RANK:PASS:WHAT: after that rank's forward and backward pass of this number, from 1 on, the lowest bit of one number is
another one, of its `gradient`, of a `weight`, or of what it `held` before the pass, too.
"""

import importlib.abc
import importlib.util
import os
import sys

MODULE = "lt_train.train.forward_backward"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            install(module.ForwardBackward, *os.environ["LT_FLIP"].split(":"))

        spec.loader.exec_module = exec_module
        return spec


def install(forward_backward, rank, number, what):
    original = forward_backward.run
    passes = []

    def faulty(self, batches, samples, forward_only):
        if forward_only:
            return original(self, batches, samples, forward_only)
        passes.append(1)
        is_due = len(passes) == int(number)
        if is_due and what == "held":
            flip(self, "weight")
        losses = original(self, batches, samples, forward_only)
        if is_due and what != "held":
            flip(self, what)
        return losses

    if os.environ.get("RANK") == rank:
        forward_backward.run = faulty


def flip(forward_backward, what):
    import torch

    parameters = list(forward_backward.chunks[0].module.parameters())
    chosen = parameters[len(parameters) // 2]
    numbers = chosen.main_grad if what == "gradient" else chosen.data
    numbers.view(-1).view(torch.int32)[7] ^= 1


if "LT_FLIP" in os.environ and "LT_TRAIN_PARENT" in os.environ:
    if MODULE in sys.modules:
        install(sys.modules[MODULE].ForwardBackward, *os.environ["LT_FLIP"].split(":"))
    else:
        sys.meta_path.insert(0, Finder())
