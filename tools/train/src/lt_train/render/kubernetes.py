"""Write manifests for `kubectl apply -f -`: Jobs that preprocess and convert, the training objects, and a monitor.

Kubernetes starts all objects at once. If a Job preprocesses data first, the training object is suspended so that no GPU waits;
the last container of that Job resumes it. The training shell adds 128 to the exit codes after which the pods restart. All objects
have the label of the run, so one command deletes them. The manifests hold no secrets; a Secret named lt-secrets, if it exists,
becomes environment variables of every container.
"""

import dataclasses
import json
import re
import shlex
import urllib.parse
from collections.abc import Sequence
from typing import Any

from lt_shared.console import UsageError, note
from lt_shared.credentials import covered
from lt_shared.files import storage
from lt_train.process import restart_policy
from lt_train.render import container_paths, shell, training_jobs
from lt_train.render.job_spec import Job, check_value
from lt_train.render.pods import (
    GRACE_SECONDS,
    JOB_NAME,
    LABEL,
    PodOptions,
    batch_job,
    check_name,
    container,
    labels,
    metadata,
    pod,
    script,
)
from lt_train.render.training_jobs import KINDS, Kind

AGAIN_CODES = (*restart_policy.CONTINUED, *restart_policy.FAILED)
MONITOR_SCHEDULE = "*/5 * * * *"
TENSORBOARD_PORT = 6006
# Longer than any run. The waiting Job holds no GPU.
CONVERT_WAIT_DAYS = 60
POLL_SECONDS = 10
DEFAULT_NAMESPACE = "default"
# Between the time that ranks have to save and the time after which the kubelet kills the pod.
MARGIN_SECONDS = 30

# The shell is process 1 of the container: it forwards SIGTERM and waits for lt-train to save. After an exit code without restart,
# the first node writes a .failed file, which ends the wait of the converting Job.
TRAIN = """\
output=/dev/null; failed=/dev/null
if [ "$PET_NODE_RANK" -eq 0 ]; then output={output}; failed={output}.failed; rm -f "$failed"; fi
lt-train "${{train[@]}}" > "$output" &
child=$!
trap 'kill -TERM "$child"' TERM
status=0
wait "$child" || status=$?
# The signal has ended the first wait.
if [ "$status" -eq 143 ]; then status=0; wait "$child" || status=$?; fi
case "$status" in
  {again}) status=$((status + {signalled})) ;;
  {never}) echo "lt-train has ended with exit code $status" > "$failed" ;;
esac
exit "$status\""""

# hyperpodrun must be process 1 of the container. It starts a shell for each rank, and passes SIGTERM on.
TRAIN_BY_AGENT = """\
rank() {{
  if [ "$RANK" -ne 0 ]; then exec lt-train "$@"; fi
  rm -f {output}.failed
  lt-train "$@" > {output} &
  child=$!
  trap 'kill -TERM "$child"' TERM
  status=0
  wait "$child" || status=$?
  if [ "$status" -eq 143 ]; then status=0; wait "$child" || status=$?; fi
  case "$status" in
    {never}) echo "lt-train has ended with exit code $status" > {output}.failed ;;
  esac
  exit "$status"
}}
export -f rank
exec hyperpodrun --nnodes={nodes} --nproc-per-node={ranks} --server-port={port} \\
  --shutdown-signal=SIGTERM --shutdown-timeout={seconds} \\
  --no-python bash -c 'rank "$@"' lt-train "${{train[@]}}\""""

WAIT_FOR_END = """\
for _ in {{1..{count}}}; do
  if grep -qs '"kind":"end"' {manifest}; then exit 0; fi
  if [ -e {manifest}.failed ]; then echo "no checkpoint to convert: $(cat {manifest}.failed)" >&2; exit 1; fi
  sleep {seconds}
done
echo 'no checkpoint to convert: the run has not ended within {days} days' >&2
exit 1"""

# curl reads the token from standard input, because every process of the node can read arguments.
RESUME = """\
account=/var/run/secrets/kubernetes.io/serviceaccount
printf 'Authorization: Bearer %s' "$(cat "$account/token")" |
  curl --fail-with-body --silent --show-error --retry 5 --header @- --cacert "$account/ca.crt" --request PATCH \\
    --header 'Content-Type: application/merge-patch+json' --data {change} \\
    "https://kubernetes.default.svc/{api}/namespaces/$(cat "$account/namespace")/{resource}/{name}\""""


def render(job: Job, kind: str, options: PodOptions, queue: str | None, urls: Sequence[str], download_to: str) -> str:
    """Write all manifests as one stream of YAML documents. `queue` is a LocalQueue of Kueue."""
    check(job, options, queue)
    _check_downloads(urls, download_to, options.mount)
    makes_data = bool(urls or job.preprocess)
    if makes_data and options.namespace is None:
        note(f"namespace {DEFAULT_NAMESPACE}: the account that starts the run when its data are there needs one; see --namespace")
        options = dataclasses.replace(options, namespace=DEFAULT_NAMESPACE)
    job = dataclasses.replace(job, manifests=options.mount.rstrip("/"))
    trainer = KINDS[kind]
    if trainer.has_agent and job.instance and not job.instance.name.startswith("ml."):
        # The label of HyperPod's nodes has SageMaker's name of the type.
        job = dataclasses.replace(job, instance=dataclasses.replace(job.instance, name=f"ml.{job.instance.name}"))
    documents = [
        *(_data(job, trainer, options, queue, urls, download_to) if makes_data else []),
        *training_jobs.documents(trainer, job, options, _train(job, trainer), queue, makes_data),
        *([_convert(job, options)] if job.convert else []),
        *([_monitor(job, options)] if not storage.is_remote(job.save) else []),
        *(_tensorboard(job, options) if job.options["tensorboard_dir"] else []),
    ]
    return f"{_deletion(job, options, documents)}{to_yaml(documents)}"


def to_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """Dump documents with keys in insertion order and scripts as literal blocks."""
    import yaml

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *arguments: True})
    dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, explicit_start=True, width=1000))


def _deletion(job: Job, options: PodOptions, documents: Sequence[dict[str, Any]]) -> str:
    """Write the command that deletes all objects of the run, as a comment."""
    kinds = ",".join(dict.fromkeys(document["kind"].lower() for document in documents))
    namespace = f" --namespace {options.namespace}" if options.namespace else ""
    return f"# All of this run is deleted by: kubectl delete {kinds}{namespace} -l {LABEL}={job.name}\n"


def check(job: Job, options: PodOptions, queue: str | None) -> None:
    """Raise UsageError if Kubernetes cannot run the job, or if files outside the volume would be lost."""
    if job.image is None:
        raise UsageError("no --image: pods run containers", "build containers/gpu.Dockerfile and name its address in a registry")
    if not JOB_NAME.fullmatch(job.name):
        raise UsageError(
            f"--job-name {job.name!r}: Kubernetes takes at most 44 small letters, digits and - here, a letter first",
            "--job-name lt-train",
        )
    check_name("queue", queue)
    options.check()
    container_paths.check(job, [options.mount], f"the volume mounted at {options.mount}")


def _check_downloads(urls: Sequence[str], directory: str, mount: str) -> None:
    """Check the URLs of --download, which curl fetches in a pod. They must hold no passwords: manifests are not secret."""
    names = [_file_name(url) for url in urls]
    if urls:
        container_paths.check_path("--download-to", directory, [mount], f"the volume mounted at {mount}")
        check_value(directory, "--download-to")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--download: two files are called {name}", "download one of them by hand")


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


def _data(
    job: Job, kind: Kind, options: PodOptions, queue: str | None, urls: Sequence[str], directory: str
) -> list[dict[str, Any]]:
    """Build the Job that downloads, tokenizes and then starts the training, and an account that may change that object alone."""
    object_metadata = metadata(job, options, "-data")
    account = options.service_account or str(object_metadata["name"])
    subject = {"kind": "ServiceAccount", "name": account, "namespace": options.namespace}
    rights = {"apiGroups": [kind.group], "resources": [kind.resource], "resourceNames": [job.name], "verbs": ["patch"]}
    authorization = "rbac.authorization.k8s.io"
    change = json.dumps(training_jobs.resumption(kind, queue))
    resume = RESUME.format(change=shlex.quote(change), api=kind.api, resource=kind.resource, name=job.name)
    steps = [
        *([container(job, options, "download", script(*_download(urls, directory)))] if urls else []),
        *([container(job, options, "preprocess", script(*_preprocess(job)))] if job.preprocess else []),
        container(job, options, "start", script(resume)),
    ]
    template = pod(options, *steps) | {"serviceAccountName": account}
    return [
        *([] if options.service_account else [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object_metadata}]),
        {"apiVersion": f"{authorization}/v1", "kind": "Role", "metadata": object_metadata, "rules": [rights]},
        {
            "apiVersion": f"{authorization}/v1",
            "kind": "RoleBinding",
            "metadata": object_metadata,
            "roleRef": {"apiGroup": authorization, "kind": "Role", "name": object_metadata["name"]},
            "subjects": [subject],
        },
        batch_job(job, options, "-data", template),
    ]


def _download(urls: Sequence[str], directory: str) -> list[str]:
    return [
        f"mkdir -p {shlex.quote(directory)}",
        f"cd {shlex.quote(directory)}",
        "download() {",
        '  if [ -e "$1" ]; then return; fi',
        '  curl --fail --location --retry 5 --continue-at - --output "$1.part" "$2"',
        '  mv "$1.part" "$1"',
        "}",
        *(f"download {shlex.quote(_file_name(url))} {shlex.quote(url)}" for url in urls),
    ]


def _preprocess(job: Job) -> list[str]:
    assert job.preprocess
    data = shlex.quote(job.beside("data.manifest"))
    return [
        f'mkdir -p "$(dirname {data})"',
        f"lt-preprocess {shell.command(job.preprocess)} > {data}.part",
        f"mv {data}.part {data}",
    ]


def _train(job: Job, kind: Kind) -> list[str]:
    checkpoints = shlex.quote(job.beside("checkpoints.manifest"))
    again, never = shell.pattern(AGAIN_CODES), shell.pattern(restart_policy.NEVER)
    by_agent = TRAIN_BY_AGENT.format(
        output=checkpoints,
        never=never,
        nodes=job.nodes,
        ranks=job.accelerators,
        port=training_jobs.AGENT_PORT,
        seconds=GRACE_SECONDS - MARGIN_SECONDS,
    )
    by_shell = TRAIN.format(output=checkpoints, again=again, never=never, signalled=restart_policy.SIGNALLED)
    return script(
        shell.array("train", shell.training_words(job), job),
        f'mkdir -p "$(dirname {checkpoints})"',
        by_agent if kind.has_agent else by_shell,
    )


def _convert(job: Job, options: PodOptions) -> dict[str, Any]:
    assert job.convert
    checkpoints = job.beside("checkpoints.manifest")
    count = CONVERT_WAIT_DAYS * 24 * 3600 // POLL_SECONDS
    ended = WAIT_FOR_END.format(manifest=shlex.quote(checkpoints), count=count, seconds=POLL_SECONDS, days=CONVERT_WAIT_DAYS)
    line = f"lt-convert {shell.command(job.convert)} {shlex.quote(f'@{checkpoints}')}"
    wait = container(job, options, "wait", script(ended))
    return batch_job(job, options, "-convert", pod(options, wait, container(job, options, "main", script(line))))


def _monitor(job: Job, options: PodOptions) -> dict[str, Any]:
    """Build the CronJob that runs lt-monitor alert every five minutes. A failed pod means an alert; its log has the message."""
    state, log = f"{job.save}/monitor.state", f"{job.save}/train.log"
    template = pod(options, container(job, options, "main", ["lt-monitor", "alert", "--state", state, log]))
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata(job, options, "-monitor"),
        "spec": {
            "schedule": MONITOR_SCHEDULE,
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {
                "metadata": {"labels": labels(job)},
                "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels(job)}, "spec": template}},
            },
        },
    }


def _tensorboard(job: Job, options: PodOptions) -> list[dict[str, Any]]:
    """Build TensorBoard, reachable by `kubectl port-forward` only, because TensorBoard has no passwords."""
    directory = str(job.options["tensorboard_dir"])
    command = ["tensorboard", "--logdir", directory, "--bind_all", "--port", str(TENSORBOARD_PORT)]
    template = pod(options, container(job, options, "main", command)) | {"restartPolicy": "Always"}
    selector = {"app": f"{job.name}-tensorboard"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(job, options, "-tensorboard"),
        "spec": {
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": selector | labels(job)}, "spec": template},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, options, "-tensorboard"),
        "spec": {"selector": selector, "ports": [{"port": TENSORBOARD_PORT}]},
    }
    return [deployment, service]
