"""The objects that train, one for each operator: a PyTorchJob, a JobSet, or a TrainJob with its TrainingRuntime.

All run the same pods, one for each node. The training operator starts a pod again whose exit code is 128 or more; the controller
of JobSets, and with it the Kubeflow Trainer, starts all pods again unless one has ended with a code for which that is useless.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from lt_train.process import restart_policy
from lt_train.render.job_spec import Job
from lt_train.render.pods import PodOptions, labels, metadata, training_pod

# Of a run that is continued again and again; a failure that repeats at the same step ends with another code.
RESTARTS = 100
PORT = 23456
# bash's own: a program that is missing or cannot be run, and any other error.
NEVER_CODES = sorted(int(code) for code in (1, *restart_policy.NEVER, 126, 127))
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclasses.dataclass(frozen=True)
class Kind:
    """`make` gives the objects, the one that is suspended last; `resource` and `suspend` are what an API call names."""

    resource: str
    group: str
    version: str
    suspend: tuple[str, ...]
    make: Callable[[Job, PodOptions, list[str]], list[dict[str, Any]]]

    @property
    def api(self) -> str:
        return f"apis/{self.group}/{self.version}"

    def suspended(self, value: bool) -> dict[str, Any]:
        """The part of `spec` that says whether the job waits."""
        found: Any = value
        for key in reversed(self.suspend):
            found = {key: found}
        return dict(found)


def documents(
    kind: Kind, job: Job, options: PodOptions, command: list[str], queue: str | None, waits: bool
) -> list[dict[str, Any]]:
    """The objects that train with `command`. One that `waits` starts when somebody resumes it: Kueue, where there is a queue."""
    found = kind.make(job, options, command)
    if waits:
        _merge(found[-1]["spec"], kind.suspended(True))
    elif queue:
        found[-1]["metadata"]["labels"][QUEUE_LABEL] = queue
    return found


def resumption(kind: Kind, queue: str | None) -> dict[str, Any]:
    """The change of the object that starts it. With a queue Kueue does that, as soon as the object is in the queue."""
    return {"metadata": {"labels": {QUEUE_LABEL: queue}}} if queue else {"spec": kind.suspended(False)}


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and key in into:
            _merge(into[key], value)
        else:
            into[key] = value


def _ranks(job: Job) -> int:
    assert job.accelerators
    return job.accelerators


def _pytorch_job(job: Job, options: PodOptions, command: list[str]) -> list[dict[str, Any]]:
    def replicas(count: int) -> dict[str, Any]:
        # The operator looks for both names.
        template = training_pod(job, options, "pytorch", command)
        template["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": PORT}]
        del template["restartPolicy"]
        metadata = {"labels": labels(job)}
        return {"replicas": count, "restartPolicy": "ExitCode", "template": {"metadata": metadata, "spec": template}}

    workers = {"Worker": replicas(job.nodes - 1)} if job.nodes > 1 else {}
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": metadata(job, options),
            "spec": {
                "nprocPerNode": str(_ranks(job)),
                "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": RESTARTS},
                "pytorchReplicaSpecs": {"Master": replicas(1)} | workers,
            },
        }
    ]


def _set_spec(job: Job, options: PodOptions, command: list[str], **more: Any) -> dict[str, Any]:
    """The specification of a JobSet; `more` is metadata of its Job."""
    useless = {"containerName": "node", "operator": "In", "values": NEVER_CODES}
    specification = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": useless}]},
        "template": {"metadata": {"labels": labels(job)}, "spec": training_pod(job, options, "node", command)},
    }
    return {
        "failurePolicy": {
            "maxRestarts": RESTARTS,
            "rules": [{"name": "useless", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
        },
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {**more, "spec": specification}}],
    }


def _job_set(job: Job, options: PodOptions, command: list[str]) -> list[dict[str, Any]]:
    specification = _set_spec(job, options, command)
    specification = {"network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True}, **specification}
    (replicated,) = specification["replicatedJobs"]
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    # As torchrun's; the Kubeflow Trainer sets the same.
    replicated["template"]["spec"]["template"]["spec"]["containers"][0]["env"] += [
        {"name": "PET_NNODES", "value": str(job.nodes)},
        {"name": "PET_NPROC_PER_NODE", "value": str(_ranks(job))},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": f"{job.name}-node-0-0.{job.name}"},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(job, options),
            "spec": specification,
        }
    ]


def _train_job(job: Job, options: PodOptions, command: list[str]) -> list[dict[str, Any]]:
    """The TrainingRuntime is the run's own: no version of the Trainer has the same words for volumes and nodes in a TrainJob."""
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    policy = {"numNodes": job.nodes, "torch": {}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job, options),
        "spec": {"mlPolicy": policy, "template": {"spec": _set_spec(job, options, command, **step)}},
    }
    found = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, options),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": job.nodes, "numProcPerNode": _ranks(job)},
        },
    }
    return [runtime, found]


KINDS = {
    "pytorchjob": Kind("pytorchjobs", "kubeflow.org", "v1", ("runPolicy", "suspend"), _pytorch_job),
    "jobset": Kind("jobsets", "jobset.x-k8s.io", "v1alpha2", ("suspend",), _job_set),
    "trainjob": Kind("trainjobs", "trainer.kubeflow.org", "v1alpha1", ("suspend",), _train_job),
}
