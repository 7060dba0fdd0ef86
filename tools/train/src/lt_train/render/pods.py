"""Pods: the image, the volume that all of a run share, what the cluster asks for, and the accelerators of those that train."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from lt_shared.console import UsageError
from lt_train.config.instances import EFA, GPU
from lt_train.render import machines, shell
from lt_train.render.job_spec import Job, check_value

SECRET = "lt-secrets"
GRACE_SECONDS = 600
# On every object and pod of a run.
LABEL = "app.kubernetes.io/instance"
# A CronJob's name has at most 52 characters; the longest that is added to the job's is -monitor there.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
KEY = r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
SELECTOR = re.compile(f"({KEY})=({VALUE})")
TOLERATION = re.compile(f"({KEY})(?:=({VALUE}))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|[kMGTP]|[KMGTP]i)?")
POWERS = "kMGTP"


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """What only Kubernetes knows. `claim` is the PersistentVolumeClaim that is mounted at `mount`.

    Tolerations and the service account are those of all pods; the rest is for those that train.
    """

    claim: str
    mount: str
    namespace: str | None = None
    service_account: str | None = None
    tolerations: tuple[str, ...] = ()
    node_selectors: tuple[str, ...] = ()
    priority_class: str | None = None
    cpus: str | None = None
    memory: str | None = None
    shared_memory: str | None = None

    def check(self) -> None:
        """Raises UsageError for what Kubernetes would refuse."""
        if not NAME.fullmatch(self.claim):
            raise UsageError(
                f"--claim {self.claim!r} is no name of a PersistentVolumeClaim: those have small letters, digits, - and .",
                "kubectl get pvc shows those that there are",
            )
        if not self.mount.startswith("/") or not self.mount.strip("/"):
            raise UsageError(f"--mount {self.mount!r}: a volume is mounted at a directory below /", "--mount /fsx")
        check_value(self.mount, "--mount")
        names = {"namespace": self.namespace, "service-account": self.service_account, "priority-class": self.priority_class}
        for option, name in names.items():
            check_name(option, name)
        for option, value in (("cpus", self.cpus), ("memory", self.memory), ("shared-memory", self.shared_memory)):
            if value is not None and not QUANTITY.fullmatch(value):
                raise UsageError(f"--{option} {value!r} is no quantity", "as of Kubernetes: 90, 500m, 1500Gi")
        if self.memory and self.shared_memory and _amount(self.shared_memory) > _amount(self.memory):
            raise UsageError(
                f"--shared-memory {self.shared_memory} is more than --memory {self.memory}",
                "what is in shared memory is a part of the pod's memory",
            )
        for option, values, pattern, example in (
            ("node-selector", self.node_selectors, SELECTOR, "--node-selector pool=training"),
            ("toleration", self.tolerations, TOLERATION, "as a taint: nvidia.com/gpu=present:NoSchedule, or the key alone"),
        ):
            for value in values:
                if not pattern.fullmatch(value):
                    raise UsageError(f"--{option} {value!r}", example)


def check_name(option: str, name: str | None) -> None:
    """Raises UsageError for what is no name of an object."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(f"--{option} {name!r} is no name in Kubernetes", "small letters, digits, - and .")


def _amount(quantity: str) -> float:
    """In bytes, where it is memory."""
    found: Any = QUANTITY.fullmatch(quantity)
    number, unit = float(found[1]), found[2] or ""
    if unit == "m":
        return number / 1000
    power = POWERS.lower().index(unit[0].lower()) + 1 if unit else 0
    return number * (1024.0 if unit.endswith("i") else 1000.0) ** power


def script(*lines: str) -> list[str]:
    return ["bash", "-c", shell.script(*lines)]


def container(job: Job, options: PodOptions, name: str, command: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        "command": command,
        "envFrom": [{"secretRef": {"name": SECRET, "optional": True}}],
        "volumeMounts": [{"name": "shared", "mountPath": options.mount}],
    }


def pod(options: PodOptions, *containers: dict[str, Any]) -> dict[str, Any]:
    """A pod that runs the containers one after the other, and that starts nothing again by itself."""
    first = {"initContainers": list(containers[:-1])} if containers[1:] else {}
    account = {"serviceAccountName": options.service_account} if options.service_account else {}
    tolerations = {"tolerations": [_toleration(text) for text in options.tolerations]} if options.tolerations else {}
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": options.claim}}
    return {"restartPolicy": "Never", **account, **tolerations, **first, "containers": [containers[-1]], "volumes": [volume]}


def training_pod(job: Job, options: PodOptions, name: str, command: list[str]) -> dict[str, Any]:
    """On a node of the job's instance type where there is one, with its accelerators, EFA devices and shared memory."""
    devices: dict[str, Any] = {job.instance.resource if job.instance else GPU: job.accelerators}
    if job.instance and job.instance.efa:
        devices[EFA] = job.instance.efa
    requests = {name: value for name, value in (("cpu", options.cpus), ("memory", options.memory)) if value is not None}
    main = container(job, options, name, command)
    main |= {
        "env": [{"name": name, "value": value} for name, value in job.environment.items()],
        "resources": {"requests": requests | devices, "limits": devices},
        "volumeMounts": [*main["volumeMounts"], {"name": "shm", "mountPath": "/dev/shm"}],
    }
    found = pod(options, main)
    size = {"sizeLimit": options.shared_memory} if options.shared_memory else {}
    selectors = _node_selectors(job, options)
    return found | {
        **({"nodeSelector": selectors} if selectors else {}),
        **({"priorityClassName": options.priority_class} if options.priority_class else {}),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [*found["volumes"], {"name": "shm", "emptyDir": {"medium": "Memory", **size}}],
    }


def _node_selectors(job: Job, options: PodOptions) -> dict[str, str]:
    given: Sequence[Any] = [SELECTOR.fullmatch(text) for text in options.node_selectors]
    found = {each[1]: each[2] for each in given}
    if job.instance and not found.keys() & set(machines.LABELS):
        return {machines.LABELS[0]: job.instance.name, **found}
    return found


def metadata(job: Job, options: PodOptions, suffix: str = "") -> dict[str, Any]:
    """The name of an object, its namespace where one is given, and the label of the run."""
    namespace = {"namespace": options.namespace} if options.namespace else {}
    return {"name": f"{job.name}{suffix}", **namespace, "labels": labels(job)}


def labels(job: Job) -> dict[str, str]:
    return {LABEL: job.name, "app.kubernetes.io/managed-by": "lt-train"}


def batch_job(job: Job, options: PodOptions, suffix: str, template: dict[str, Any], retries: int = 3) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, options, suffix),
        "spec": {"backoffLimit": retries, "template": {"metadata": {"labels": labels(job)}, "spec": template}},
    }


def _toleration(text: str) -> dict[str, str]:
    found: Any = TOLERATION.fullmatch(text)
    operator = {"operator": "Exists"} if found[2] is None else {"operator": "Equal", "value": found[2]}
    return {"key": found[1], **operator, **({"effect": found[3]} if found[3] else {})}
