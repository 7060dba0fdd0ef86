"""Build the training objects of each operator: a (HyperPod)PyTorchJob, a JobSet, a TrainJob and its runtime.

All run the same pods, one per node. The training operator restarts a pod whose exit code is 128 or more. The JobSet controller,
which the Kubeflow Trainer uses, restarts all pods unless a pod ends with one of `NEVER_CODES`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from lt_train.process import restart_policy
from lt_train.render.job_spec import Job
from lt_train.render.pods import PodOptions, labels, metadata, training_pod

# High, because a run may resume many times. A failure that repeats at one step has an exit code that ends the job.
RESTARTS = 100
PORT = 23456
# Restarting does not help. 1, 126 and 127 are bash's: any error, a program that cannot be run, a missing program.
NEVER_CODES = sorted(int(code) for code in (1, *restart_policy.NEVER, 126, 127))
# The port where HyperPod's operator tells hyperpodrun in each pod its rank, the first pod, and when to start.
AGENT_PORT = 8080
# HyperPod's operator starts the ranks again after any exit code: it fails the job after this many starts of all pods in an hour.
FULL_RESTARTS, RESTARTS_OF_RANKS, PERIOD_SECONDS = 3, 3, 3600
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclasses.dataclass(frozen=True)
class Kind:
    """One operator. `make` builds its objects and returns the one that can be suspended last.

    `resource` is its name in API calls, `suspend` the path of its suspend flag in `spec`. `has_agent`: hyperpodrun starts the
    ranks of a pod when the operator says so.
    """

    resource: str
    group: str
    version: str
    suspend: tuple[str, ...]
    make: Callable[[Job, PodOptions, list[str]], list[dict[str, Any]]]
    has_agent: bool = False

    @property
    def api(self) -> str:
        return f"apis/{self.group}/{self.version}"

    def suspended(self, value: bool) -> dict[str, Any]:
        """Return the part of `spec` that suspends or resumes the job."""
        nested: Any = value
        for key in reversed(self.suspend):
            nested = {key: nested}
        return dict(nested)


def documents(
    kind: Kind, job: Job, options: PodOptions, command: list[str], queue: str | None, waits: bool
) -> list[dict[str, Any]]:
    """Build the objects that train with `command`. If it `waits`, the patch of `resumption` starts it later."""
    objects = kind.make(job, options, command)
    if waits:
        _merge(objects[-1]["spec"], kind.suspended(True))
    elif queue:
        objects[-1]["metadata"]["labels"][QUEUE_LABEL] = queue
    return objects


def resumption(kind: Kind, queue: str | None) -> dict[str, Any]:
    """Return the patch that starts a suspended object: its Kueue queue, or suspend = false without a queue."""
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


def _hyperpod_job(job: Job, options: PodOptions, command: list[str]) -> list[dict[str, Any]]:
    template = training_pod(job, options, "node", command)
    template["containers"][0]["ports"] = [{"containerPort": AGENT_PORT}]
    del template["restartPolicy"]
    replicas = {"name": "node", "replicas": job.nodes, "template": {"metadata": {"labels": labels(job)}, "spec": template}}
    restarts = {
        "evalPeriodSeconds": PERIOD_SECONDS,
        "numRestartBeforeFullJobRestart": RESTARTS_OF_RANKS,
        "maxFullJobRestarts": FULL_RESTARTS,
    }
    return [
        {
            "apiVersion": "sagemaker.amazonaws.com/v1",
            "kind": "HyperPodPyTorchJob",
            "metadata": metadata(job, options),
            "spec": {
                "nprocPerNode": str(_ranks(job)),
                "runPolicy": {"cleanPodPolicy": "None", "jobMaxRetryCount": RESTARTS, "restartPolicy": restarts},
                "replicaSpecs": [replicas],
            },
        }
    ]


def _set_spec(job: Job, options: PodOptions, command: list[str], **more: Any) -> dict[str, Any]:
    """Build the specification of a JobSet. `more` is added to the template of its Job."""
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
    """Build a TrainJob with a TrainingRuntime for this run, because the Trainer's versions name volumes and nodes differently."""
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    policy = {"numNodes": job.nodes, "torch": {}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job, options),
        "spec": {"mlPolicy": policy, "template": {"spec": _set_spec(job, options, command, **step)}},
    }
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, options),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": job.nodes, "numProcPerNode": _ranks(job)},
        },
    }
    return [runtime, train_job]


KINDS = {
    "pytorchjob": Kind("pytorchjobs", "kubeflow.org", "v1", ("runPolicy", "suspend"), _pytorch_job),
    "hyperpodpytorchjob": Kind(
        "hyperpodpytorchjobs", "sagemaker.amazonaws.com", "v1", ("runPolicy", "suspend"), _hyperpod_job, has_agent=True
    ),
    "jobset": Kind("jobsets", "jobset.x-k8s.io", "v1alpha2", ("suspend",), _job_set),
    "trainjob": Kind("trainjobs", "trainer.kubeflow.org", "v1alpha1", ("suspend",), _train_job),
}
