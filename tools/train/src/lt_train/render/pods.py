"""Build the pods of a run: their image, shared volume and tolerations, and the accelerators of training pods."""

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
# A CronJob's name has at most 52 characters, and lt-train appends -monitor to the job's name.
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
    """Options of Kubernetes. `claim` is the PersistentVolumeClaim that is mounted at `mount`.

    Tolerations and the service account apply to all pods, the other options to training pods only.
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
        """Raise UsageError for values that Kubernetes would refuse."""
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
    """Raise UsageError if `name` is not a valid name of a Kubernetes object."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(f"--{option} {name!r} is no name in Kubernetes", "small letters, digits, - and .")


def _amount(quantity: str) -> float:
    """Convert a quantity of Kubernetes to a number; a quantity of memory to bytes."""
    match: Any = QUANTITY.fullmatch(quantity)
    number, unit = float(match[1]), match[2] or ""
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
    """Build a pod that runs the containers one after the other and never restarts them."""
    init_containers = {"initContainers": list(containers[:-1])} if containers[1:] else {}
    account = {"serviceAccountName": options.service_account} if options.service_account else {}
    tolerations = {"tolerations": [_toleration(text) for text in options.tolerations]} if options.tolerations else {}
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": options.claim}}
    return {
        "restartPolicy": "Never",
        **account,
        **tolerations,
        **init_containers,
        "containers": [containers[-1]],
        "volumes": [volume],
    }


def training_pod(job: Job, options: PodOptions, name: str, command: list[str]) -> dict[str, Any]:
    """Build a training pod for a node of the job's instance type, with all accelerators, EFA devices and shared memory."""
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
    built = pod(options, main)
    size = {"sizeLimit": options.shared_memory} if options.shared_memory else {}
    selectors = _node_selectors(job, options)
    return built | {
        **({"nodeSelector": selectors} if selectors else {}),
        **({"priorityClassName": options.priority_class} if options.priority_class else {}),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [*built["volumes"], {"name": "shm", "emptyDir": {"medium": "Memory", **size}}],
    }


def _node_selectors(job: Job, options: PodOptions) -> dict[str, str]:
    matches: Sequence[Any] = [SELECTOR.fullmatch(text) for text in options.node_selectors]
    value_by_label = {match[1]: match[2] for match in matches}
    if job.instance and not value_by_label.keys() & set(machines.LABELS):
        return {machines.LABELS[0]: job.instance.name, **value_by_label}
    return value_by_label


def metadata(job: Job, options: PodOptions, suffix: str = "") -> dict[str, Any]:
    """Return the metadata of an object: its name, its namespace if one is set, and the labels of the run."""
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
    match: Any = TOLERATION.fullmatch(text)
    operator = {"operator": "Exists"} if match[2] is None else {"operator": "Equal", "value": match[2]}
    return {"key": match[1], **operator, **({"effect": match[3]} if match[3] else {})}
