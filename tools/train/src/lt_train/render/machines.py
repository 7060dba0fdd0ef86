"""Choose the nodes of a job: one of AWS's instance types, or any nodes with a number of GPUs and without EFA.

A pod that requests EFA devices on nodes without EFA stays pending for ever. So `--instance-type` or a node selector names the
instance type, different names are refused, and the default type applies only if its number of GPUs is requested.
"""

import dataclasses
from collections.abc import Sequence

from lt_shared.console import UsageError, note
from lt_train.config import instances
from lt_train.config.instances import INSTANCES, Instance

# The value of --instance-type for nodes without EFA.
NONE = "none"
DEFAULT = "p5.48xlarge"
# Kubernetes before 1.17 has the second label; newer versions set both.
LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def instance_named(name: str | None, gpus: int | None) -> Instance | None:
    """Return the instance type of `--instance-type` under the user's spelling, or None if it is unset or "none".

    Raises UsageError for a type that is unknown, has no GPUs, or has less than `gpus`.
    """
    if name in (None, NONE):
        return None
    instance_type = dataclasses.replace(instances.instance(name), name=name)
    if instance_type.gpu is None:
        raise UsageError(f"{name} has no GPUs: lt-train has no backend for Trainium", f"--instance-type {DEFAULT}")
    if gpus and gpus > instance_type.accelerators:
        raise UsageError(f"--gpus-per-node {gpus}: {name} has {instance_type.accelerators}", "drop it, or name another type")
    return instance_type


def instance_of_pods(name: str | None, gpus: int | None, selectors: Sequence[str]) -> Instance | None:
    """Return the instance type of pods with these node selectors, or None for nodes without EFA.

    Raises UsageError for two different types, and if no option sets the number of GPUs of a pod.
    """
    selected = _selected(selectors)
    if name not in (None, NONE) and selected and _bare(selected) != _bare(name):
        raise UsageError(f"--instance-type {name}, and a --node-selector for {selected}", "drop one of them")
    instance_type = instance_named(name if name is not None else _known(selected) if selected else _default(gpus), gpus)
    if instance_type is None and gpus is None:
        machine = f"{selected} is not in the table of instance types" if selected else f"--instance-type {NONE}"
        raise UsageError(f"{machine}: nothing says how many GPUs a pod gets", "--gpus-per-node 8")
    if instance_type is None and name is None:
        kind = f"{selected} is not in the table of instance types" if selected else f"{gpus} GPU(s) are no whole {DEFAULT}"
        note(f"no EFA, since {kind}: see --instance-type")
    return instance_type


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
