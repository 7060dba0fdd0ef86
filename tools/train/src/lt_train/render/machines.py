"""Which nodes a job is for: AWS's instance type, or any nodes with so many GPUs, which have no EFA.

A pod that asks for EFA devices where there are none is pending for ever. So the instance type comes from whatever names one,
`--instance-type` or a node selector, two that differ are refused, and a number of GPUs that is not the default type's leaves it.
"""

import dataclasses
from collections.abc import Sequence

from lt_shared.console import UsageError, note
from lt_train.config import instances
from lt_train.config.instances import INSTANCES, Instance

# For nodes that have no EFA, whoever they belong to.
NONE = "none"
DEFAULT = "p5.48xlarge"
# The second is that of Kubernetes before 1.17, which newer ones still set.
LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def named(name: str | None, gpus: int | None) -> Instance | None:
    """The instance type of `--instance-type`, under the name that was given; None without one, and for "none".

    Raises UsageError for a type that is unknown, has no GPUs, or has less than `gpus`.
    """
    if name in (None, NONE):
        return None
    found = dataclasses.replace(instances.instance(name), name=name)
    if found.gpu is None:
        raise UsageError(f"{name} has no GPUs: lt-train has no backend for Trainium", f"--instance-type {DEFAULT}")
    if gpus and gpus > found.accelerators:
        raise UsageError(f"--gpus-per-node {gpus}: {name} has {found.accelerators}", "drop it, or name another type")
    return found


def of_pods(name: str | None, gpus: int | None, selectors: Sequence[str]) -> Instance | None:
    """The instance type of pods with these node selectors, None for nodes without EFA.

    Raises UsageError for two that differ, and where nothing says how many GPUs a pod gets.
    """
    selected = _selected(selectors)
    if name not in (None, NONE) and selected and _bare(selected) != _bare(name):
        raise UsageError(f"--instance-type {name}, and a --node-selector for {selected}", "drop one of them")
    found = named(name if name is not None else _known(selected) if selected else _default(gpus), gpus)
    if found is None and gpus is None:
        machine = f"{selected} is not in the table of instance types" if selected else f"--instance-type {NONE}"
        raise UsageError(f"{machine}: nothing says how many GPUs a pod gets", "--gpus-per-node 8")
    if found is None and name is None:
        kind = f"{selected} is not in the table of instance types" if selected else f"{gpus} GPU(s) are no whole {DEFAULT}"
        note(f"no EFA, since {kind}: see --instance-type")
    return found


def _selected(selectors: Sequence[str]) -> str | None:
    types = dict.fromkeys(value for key, _, value in (text.partition("=") for text in selectors) if key in LABELS)
    if len(types) > 1:
        raise UsageError(f"--node-selector for {' and '.join(types)}: a node is of one type", "drop all but one")
    return next(iter(types), None)


def _bare(name: str) -> str:
    return name.removeprefix("ml.")


def _known(name: str | None) -> str | None:
    return name if name and _bare(name) in INSTANCES else None


def _default(gpus: int | None) -> str | None:
    return DEFAULT if gpus in (None, INSTANCES[DEFAULT].accelerators) else None
