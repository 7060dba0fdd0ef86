"""What the training loop itself costs: processor time of a step outside the passes of the model and the optimizer.

    RANK=0 WORLD_SIZE=1 ... python tests/bench/loop_cost.py OPTIONS OF LT-TRAIN

This process is the one rank of the run. The last line of its output has medians over the steps, in milliseconds of processor
time of its main thread: `loop`, all from one step to the next but the step's own work (micro batches, passes, mean loss,
optimizer), with what is done within it for the ranks' agreement and for losses of samples; and of these losses alone,
`sample_losses`. A step of any length has this, and it depends less than wall time on what else the machine does.
"""

import collections
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lt_train.cli import main
from lt_train.train import forward_backward
from lt_train.train.forward_backward import ForwardBackward
from lt_train.train.hooks.progress import Progress
from lt_train.train.train_step import Stepper
from lt_train.train.trainer import Trainer

WARMUP_STEPS = 20

spent: collections.Counter[str] = collections.Counter()
steps: list[dict[str, float]] = []


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose processor time in this thread counts as `name`."""

    def measured(*words: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*words, **named)
        finally:
            spent[name] += time.thread_time() - began  # type: ignore[assignment]

    return measured


def watch(progress: Progress) -> None:
    beat, log = progress.watchdog.beat, progress.log
    log.sample_losses = timed("losses of samples", log.sample_losses)  # type: ignore[method-assign]

    def counted(iteration: int) -> None:
        beat(iteration)
        steps.append({**spent, "all": time.thread_time()})

    progress.watchdog.beat = counted  # type: ignore[method-assign]


def prepare() -> None:
    begin = Progress.__init__

    def initialized(progress: Progress, *words: Any) -> None:
        begin(progress, *words)
        watch(progress)

    Progress.__init__ = initialized  # type: ignore[method-assign]
    Trainer._answers = timed("agreement", Trainer._answers)  # type: ignore[method-assign]
    Stepper.train = timed("step", Stepper.train)  # type: ignore[method-assign]
    ForwardBackward.sample_losses = timed(  # type: ignore[method-assign]
        "losses of samples in the step", ForwardBackward.sample_losses
    )
    forward_backward._with_sample_sums = timed("with sums", forward_backward._with_sample_sums)
    forward_backward.mean_loss = timed("without sums", forward_backward.mean_loss)


def medians() -> dict[str, float]:
    found = collections.defaultdict(list)
    for before, after in zip(steps[WARMUP_STEPS:], steps[WARMUP_STEPS + 1 :], strict=False):
        of_step = collections.Counter({name: after[name] - before.get(name, 0.0) for name in after})
        sums = of_step["with sums"] - of_step["without sums"] if of_step["with sums"] else 0.0
        within = of_step["agreement"] + of_step["losses of samples in the step"] + sums
        found["loop"].append(of_step["all"] - of_step["step"] + within)
        found["sample_losses"].append(of_step["losses of samples"] + of_step["losses of samples in the step"] + sums)
    return {name: 1e3 * statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    prepare()
    try:
        main()
    finally:
        print(json.dumps(medians()))
