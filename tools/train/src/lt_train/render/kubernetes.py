"""Manifests for `kubectl apply -f -`: Jobs that download and tokenize, a PyTorchJob, a Job that converts, what watches the run.

Kubernetes starts everything at once, so each stage waits for a file that the one before it finishes with, on the volume that all
share. The operator restarts pods whose exit code is 128 or more and gives up on others; 128 is added to those that are retried.
The manifests hold no secrets; a Secret called lt-secrets, where there is one, becomes environment variables of every container.
"""

import itertools
import posixpath
import re
import shlex
import urllib.parse
from collections.abc import Sequence
from typing import Any

from lt_shared import storage
from lt_shared.console import UsageError
from lt_shared.credentials import covered
from lt_train.config.instances import EFA
from lt_train.render import shell
from lt_train.render.job_spec import Job, check_value
from lt_train.runtime import restart_policy

SECRET = "lt-secrets"
# A CronJob's name has at most 52 characters; the longest that is added to the job's is -monitor there.
NAME = re.compile(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?")
CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
GRACE_SECONDS = 600
AGAIN_CODES = (*restart_policy.CONTINUED, *restart_policy.FAILED)
# Of a run that is continued again and again; a failure that repeats at the same step ends with another code.
RESTARTS = 100
MONITOR_SCHEDULE = "*/5 * * * *"
TENSORBOARD_PORT = 6006
RENDEZVOUS_PORT = 23456

# The shell is the container's first process: it passes on the signal that asks the pod to end, and waits for lt-train to save.
TRAIN = """\
lt-train "${{train[@]}}" > {output} &
child=$!
trap 'kill -TERM "$child"' TERM
status=0
wait "$child" || status=$?
# The signal has ended the first wait.
if [ "$status" -eq 143 ]; then status=0; wait "$child" || status=$?; fi
case "$status" in {again}) status=$((status + {signalled})) ;; esac
exit "$status\""""


def render(job: Job, claim: str, mount: str, urls: Sequence[str], download_to: str) -> str:
    """All manifests as one stream of YAML documents. `claim` is the PersistentVolumeClaim that is mounted at `mount`."""
    check(job, claim, mount)
    _check_downloads(urls, download_to, mount)
    documents = [
        *([_download(job, claim, mount, urls, download_to)] if urls else []),
        *([_preprocess(job, claim, mount, urls, download_to)] if job.preprocess else []),
        _training(job, claim, mount),
        *([_convert(job, claim, mount)] if job.convert else []),
        *([_monitor(job, claim, mount)] if not storage.is_remote(job.save) else []),
        *(_tensorboard(job, claim, mount) if job.options["tensorboard_dir"] else []),
    ]
    return to_yaml(documents)


def to_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """Documents with their keys in order, and scripts as they are written."""
    import yaml

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *arguments: True})
    dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, explicit_start=True, width=1000))


def check(job: Job, claim: str, mount: str) -> None:
    """Raises UsageError for what Kubernetes cannot run. What a pod writes outside of the volume would be gone with the pod."""
    if job.image is None:
        raise UsageError("no --image: pods run containers", "build containers/gpu.Dockerfile and name its address in a registry")
    if not NAME.fullmatch(job.name):
        raise UsageError(
            f"--job-name {job.name!r}: Kubernetes takes at most 44 small letters, digits and - here, a letter first",
            "--job-name lt-train",
        )
    if not CLAIM.fullmatch(claim):
        raise UsageError(
            f"--claim {claim!r} is no name of a PersistentVolumeClaim: those have small letters, digits, - and .",
            "kubectl get pvc shows those that there are",
        )
    if not mount.startswith("/") or not mount.strip("/"):
        raise UsageError(f"--mount {mount!r}: a volume is mounted at a directory below /", "--mount /fsx")
    check_value(mount, "--mount")
    options = job.options
    _on_volume("--save", job.save, mount)
    for name in ("tensorboard_dir", "load", "data_cache_path"):
        if options[name]:
            _on_volume(f"--{name.replace('_', '-')}", str(options[name]), mount)
    for path in job.data_paths:
        _on_volume("DATA", path, mount)
    for stage, words in (("preprocess", job.preprocess), ("convert", job.convert)):
        for option, value in itertools.pairwise(words or ()):
            if option in ("-o", "--output"):
                _on_volume(f"--{stage} '{option} ...'", value, mount)


def _on_volume(what: str, path: str, mount: str) -> None:
    if not storage.is_remote(path) and not posixpath.normpath(path).startswith(f"{mount.rstrip('/')}/"):
        raise UsageError(f"{what} {path} is not on the volume mounted at {mount}", f"name a path below {mount}, or a URL")


def _check_downloads(urls: Sequence[str], directory: str, mount: str) -> None:
    """curl fetches them in a pod, and what the manifest says everybody may read."""
    names = [_file_name(url) for url in urls]
    if urls:
        _on_volume("--download-to", directory, mount)
        check_value(directory, "--download-to")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--download: two files are called {name}", "download one of them by hand")


def script(*lines: str) -> list[str]:
    return ["bash", "-c", shell.script(*lines)]


def pod(job: Job, claim: str, mount: str, command: list[str], wait_for: str | None = None) -> dict[str, Any]:
    """A pod with one container, which runs `command` when the shell condition `wait_for` has come true."""
    container = {
        "name": "main",
        "image": job.image,
        "command": command,
        "envFrom": [{"secretRef": {"name": SECRET, "optional": True}}],
        "volumeMounts": [{"name": "shared", "mountPath": mount}],
    }
    found: dict[str, Any] = {"restartPolicy": "Never"}
    if wait_for is not None:
        waiting = script(f"until {wait_for}; do sleep 10; done")
        found["initContainers"] = [{**container, "name": "wait", "command": waiting}]
    return found | {
        "containers": [container],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}],
    }


def accelerated(job: Job, template: dict[str, Any]) -> dict[str, Any]:
    """`template` on a node of the job's instance type, with its accelerators, EFA devices, and shared memory without a limit."""
    assert job.instance
    (container,) = template["containers"]
    resources: dict[str, int] = {job.instance.resource: job.accelerators or job.instance.accelerators}
    if job.instance.efa:
        resources[EFA] = job.instance.efa
    container |= {
        "env": [{"name": name, "value": value} for name, value in job.environment.items()],
        "resources": {"requests": dict(resources), "limits": resources},
        "volumeMounts": [*container["volumeMounts"], {"name": "shm", "mountPath": "/dev/shm"}],
    }
    return template | {
        "nodeSelector": {"node.kubernetes.io/instance-type": job.instance.name},
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [*template["volumes"], {"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }


def _job(name: str, template: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 3, "template": {"spec": template}},
    }


def _download(job: Job, claim: str, mount: str, urls: Sequence[str], directory: str) -> dict[str, Any]:
    lines = [
        f"mkdir -p {shlex.quote(directory)}",
        f"cd {shlex.quote(directory)}",
        "download() {",
        '  if [ -e "$1" ]; then return; fi',
        '  curl --fail --location --retry 5 --continue-at - --output "$1.part" "$2"',
        '  mv "$1.part" "$1"',
        "}",
        *(f"download {shlex.quote(_file_name(url))} {shlex.quote(url)}" for url in urls),
    ]
    return _job(f"{job.name}-download", pod(job, claim, mount, script(*lines)))


def _file_name(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise UsageError(f"--download {covered(url)!r}: no address that curl can fetch", "https://HOST/FILE")
    if parts.password is not None:
        raise UsageError(f"--download of {parts.hostname}: a password would be read in the manifest", "download it by hand")
    name = parts.path.rpartition("/")[2]
    if name in ("", ".", ".."):
        raise UsageError(f"--download {url}: no file name at its end", "https://HOST/FILE")
    return name


def _preprocess(job: Job, claim: str, mount: str, urls: Sequence[str], directory: str) -> dict[str, Any]:
    assert job.preprocess
    data = shlex.quote(job.beside("data.manifest"))
    lines = [
        f'mkdir -p "$(dirname {data})"',
        f"lt-preprocess {shell.command(job.preprocess)} > {data}.part",
        f"mv {data}.part {data}",
    ]
    there = " && ".join(f"[ -e {shlex.quote(f'{directory}/{_file_name(url)}')} ]" for url in urls)
    return _job(f"{job.name}-preprocess", pod(job, claim, mount, script(*lines), there or None))


def _training(job: Job, claim: str, mount: str) -> dict[str, Any]:
    assert job.instance
    checkpoints = shlex.quote(job.beside("checkpoints.manifest"))
    lines = [
        shell.array("train", shell.given_data(job)),
        f'mkdir -p "$(dirname {checkpoints})"',
        # The first rank alone has something to say there.
        f'output=/dev/null; if [ "$PET_NODE_RANK" -eq 0 ]; then output={checkpoints}; fi',
        TRAIN.format(output='"$output"', again=shell.pattern(AGAIN_CODES), signalled=restart_policy.SIGNALLED),
    ]
    wait_for = f"[ -e {shlex.quote(job.beside('data.manifest'))} ]" if job.preprocess else None

    def replicas(count: int) -> dict[str, Any]:
        template = accelerated(job, pod(job, claim, mount, script(*lines), wait_for))
        (container,) = template["containers"]
        container |= {"name": "pytorch", "ports": [{"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT}]}
        del template["restartPolicy"]
        return {"replicas": count, "restartPolicy": "ExitCode", "template": {"spec": template}}

    workers = {"Worker": replicas(job.nodes - 1)} if job.nodes > 1 else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name},
        "spec": {
            "nprocPerNode": str(job.accelerators or job.instance.accelerators),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": RESTARTS},
            "pytorchReplicaSpecs": {"Master": replicas(1)} | workers,
        },
    }


def _convert(job: Job, claim: str, mount: str) -> dict[str, Any]:
    assert job.convert
    checkpoints = job.beside("checkpoints.manifest")
    line = f"lt-convert {shell.command(job.convert)} {shlex.quote(f'@{checkpoints}')}"
    ended = f'grep -qs \'"kind":"end"\' {shlex.quote(checkpoints)}'
    return _job(f"{job.name}-convert", pod(job, claim, mount, script(line), ended))


def _monitor(job: Job, claim: str, mount: str) -> dict[str, Any]:
    """Every five minutes what is new and wrong; a pod that fails has found something, which its log says."""
    state, log = f"{job.save}/monitor.state", f"{job.save}/train.log"
    template = pod(job, claim, mount, ["lt-monitor", "alert", "--state", state, log])
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": f"{job.name}-monitor"},
        "spec": {
            "schedule": MONITOR_SCHEDULE,
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": {"backoffLimit": 0, "template": {"spec": template}}},
        },
    }


def _tensorboard(job: Job, claim: str, mount: str) -> list[dict[str, Any]]:
    """Reached with `kubectl port-forward`: it has no password of its own, so nothing opens it to the world."""
    name = f"{job.name}-tensorboard"
    labels = {"app": name}
    directory = str(job.options["tensorboard_dir"])
    command = ["tensorboard", "--logdir", directory, "--bind_all", "--port", str(TENSORBOARD_PORT)]
    template = pod(job, claim, mount, command) | {"restartPolicy": "Always"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": labels, "ports": [{"port": TENSORBOARD_PORT}]},
    }
    return [deployment, service]
