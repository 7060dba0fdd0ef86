"""Two MPIJobs for mpi-operator, which is how clusters of Trainium train: one compiles the model's graphs, the other trains.

A graph that is compiled during training keeps all nodes waiting, so a short run under `neuron_parallel_compile` fills the cache
on the shared volume first; the second job waits for its mark. One process of Open MPI on each node starts the ranks there.
lt-train has no device for Trainium yet and refuses `--device neuron` at its start: what is printed here has the machines, the
order and the environment right, and cannot train until it has. On instance types with GPUs there is nothing to compile, and the
train job alone is printed.
"""

import shlex
from typing import Any

from lt_train.config.instances import NEURON
from lt_train.render import kubernetes, shell
from lt_train.render.job import Job

COMPILE_STEPS = 4
# Of a compiling run only the graphs count.
COMPILE_OPTIONS = ("--train-iters", str(COMPILE_STEPS), "--eval-iters", "0")
NEURON_ENVIRONMENT = {"CCOM_SOCKET_IFNAME": "eth0", "MALLOC_ARENA_MAX": "128"}
BACKOFF_LIMIT = 3

WAIT_FOR_WORKERS = """\
while read -r host _; do
  until ssh -n "$host" true; do sleep 5; done
done < /etc/mpi/hostfile
MASTER_ADDR=$(head -n 1 /etc/mpi/hostfile | cut -d " " -f 1)
export MASTER_ADDR"""

# 75 says that the same command goes on from what is saved.
TRAIN_AGAIN = """\
status=75
while [ "$status" -eq 75 ]; do
  status=0
  {command} || status=$?
done
exit "$status\""""


def render(job: Job, claim: str, mount: str) -> str:
    """The manifests as a stream of YAML documents."""
    kubernetes.check(job, claim, mount)
    assert job.instance
    cache = f"{mount.rstrip('/')}/neuron_cache"
    mark = shlex.quote(f"{cache}/{job.name}.compiled")
    if job.instance.resource != NEURON:
        return kubernetes.to_yaml([_mpijob(job, job.name, claim, mount, {}, _train(job, (), ()))])
    variables = NEURON_ENVIRONMENT | {"NEURON_COMPILE_CACHE_URL": cache}
    device = ("--device", "neuron")
    compiling = [
        shell.array("train", (*_without_saving(job), *device, *COMPILE_OPTIONS)),
        _mpirun(job, variables, "neuron_parallel_compile lt-train"),
        f"touch {mark}",
    ]
    waiting = f"until [ -e {mark} ]; do sleep 10; done"
    training = [waiting, *_train(job, device, tuple(variables))]
    return kubernetes.to_yaml(
        [
            _mpijob(job, f"{job.name}-compile", claim, mount, variables, compiling),
            _mpijob(job, job.name, claim, mount, variables, training),
        ]
    )


def _without_saving(job: Job) -> tuple[str, ...]:
    """lt-train's words, with checkpoints that nobody reads: a compiling run computes nonsense."""
    return (*shell.given_data(job), "--save", f"{job.save}-compile")


def _train(job: Job, device: tuple[str, ...], variables: tuple[str, ...]) -> list[str]:
    command = _mpirun(job, dict.fromkeys(variables, ""), "lt-train")
    return [shell.array("train", (*shell.given_data(job), *device)), TRAIN_AGAIN.format(command=command)]


def _mpirun(job: Job, variables: dict[str, str], program: str) -> str:
    passed = ("LD_LIBRARY_PATH", "PATH", "MASTER_ADDR", *job.environment, *variables)
    exported = " ".join(f"-x {name}" for name in passed)
    return f'mpirun --allow-run-as-root -np {job.nodes} --bind-to none --map-by ppr:1:node {exported} {program} "${{train[@]}}"'


def _mpijob(job: Job, name: str, claim: str, mount: str, variables: dict[str, str], lines: list[str]) -> dict[str, Any]:
    launcher = kubernetes.pod(job, claim, mount, kubernetes.script(WAIT_FOR_WORKERS, *lines))
    launcher["containers"][0]["env"] = [{"name": key, "value": value} for key, value in (job.environment | variables).items()]
    worker = kubernetes.accelerated(job, kubernetes.pod(job, claim, mount, ["/usr/sbin/sshd", "-De"]))
    for template in (launcher, worker):
        del template["restartPolicy"]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": 1,
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": BACKOFF_LIMIT},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": launcher}},
                "Worker": {"replicas": job.nodes, "restartPolicy": "Never", "template": {"spec": worker}},
            },
        },
    }
