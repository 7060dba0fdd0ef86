"""The weights in a merge: a number per checkpoint, or the name of a schedule.

`minus-sqrt` and `linear` equal the schedules in Megatron-LM's tools/checkpoint/weighted_merge.py (WSM, warmup-stable-merge). A
merge of checkpoints that were trained with a constant learning rate emulates a learning rate decay: the updates between two
checkpoints are part of all later checkpoints, so they count with the sum of the later weights. With weights `D(i/n) - D((i+1)/n)`
for checkpoint i of n, oldest first, this sum follows the schedule D, which falls from 1 to 0. For a linear D all weights are
equal; for `1 - sqrt(x)` the oldest checkpoint has the largest weight. `ema` is an exponential moving average with decay DECAY per
checkpoint.
"""

import math
from collections.abc import Sequence

from lt_shared.console import UsageError

# Both are the mean: OLMo-core's merge scripts call it uniform, Megatron-LM names it after the schedule that it emulates.
MEANS = ("uniform", "linear")
MINUS_SQRT, EMA = "minus-sqrt", "ema"
NAMES = (*MEANS, MINUS_SQRT, f"{EMA}=DECAY")


def scheduled(name: str, count: int) -> list[float]:
    """The weights of `count` checkpoints, oldest first, by the schedule `name`. Raises UsageError for an unknown one."""
    if name in MEANS:
        return [1 / count] * count
    if name == MINUS_SQRT:
        return [math.sqrt((index + 1) / count) - math.sqrt(index / count) for index in range(count)]
    kind, _, value = name.partition("=")
    decay = number(value) if kind == EMA else None
    if decay is None or not 0 < decay < 1:
        raise UsageError(f"--weights {name}: unknown", f"known are {', '.join(NAMES)}, DECAY between 0 and 1, as 0.9")
    return [decay ** (count - 1)] + [(1 - decay) * decay ** (count - 1 - index) for index in range(1, count)]


def normalized(weights: Sequence[float]) -> list[float]:
    """Divide the weights by their sum. Raises UsageError for a weight that is not finite, or a sum that is not positive."""
    total = sum(weights)
    if not (math.isfinite(total) and all(map(math.isfinite, weights)) and total > 0):
        raise UsageError(
            f"the weights {', '.join(f'{weight:g}' for weight in weights)} have no positive sum",
            "they are divided by their sum: 0.7 and 0.3 are the same as 7 and 3",
        )
    return [weight / total for weight in weights]


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
