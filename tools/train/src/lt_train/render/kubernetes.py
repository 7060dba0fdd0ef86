"""Manifests for `kubectl apply -f -`: a Job that makes the data, what trains, a Job that converts, what watches the run.

Kubernetes starts everything at once. A run whose data are made first is suspended until they are there, so that no GPU waits for
them: the last container of the Job that makes them resumes it. What trains adds 128 to the exit codes after which it is started
again. All objects have the label of the run, by which one command deletes them. The manifests hold no secrets; a Secret called
lt-secrets, where there is one, becomes environment variables of every container.
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
from lt_train.render.pods import JOB_NAME, LABEL, PodOptions, batch_job, check_name, container, labels, metadata, pod, script
from lt_train.render.training_jobs import KINDS, Kind

AGAIN_CODES = (*restart_policy.CONTINUED, *restart_policy.FAILED)
MONITOR_SCHEDULE = "*/5 * * * *"
TENSORBOARD_PORT = 6006
# Longer than a run; a Job that waits has no GPU.
CONVERT_WAIT_DAYS = 60
POLL_SECONDS = 10
DEFAULT_NAMESPACE = "default"

# The shell is the container's first process: it passes on the signal that asks the pod to end, and waits for lt-train to save.
# The first node leaves word of an end after which nothing is started again.
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

WAIT_FOR_END = """\
for _ in {{1..{count}}}; do
  if grep -qs '"kind":"end"' {manifest}; then exit 0; fi
  if [ -e {manifest}.failed ]; then echo "no checkpoint to convert: $(cat {manifest}.failed)" >&2; exit 1; fi
  sleep {seconds}
done
echo 'no checkpoint to convert: the run has not ended within {days} days' >&2
exit 1"""

# The token comes from standard input: arguments are seen by every process of the node.
RESUME = """\
account=/var/run/secrets/kubernetes.io/serviceaccount
printf 'Authorization: Bearer %s' "$(cat "$account/token")" |
  curl --fail-with-body --silent --show-error --retry 5 --header @- --cacert "$account/ca.crt" --request PATCH \\
    --header 'Content-Type: application/merge-patch+json' --data {change} \\
    "https://kubernetes.default.svc/{api}/namespaces/$(cat "$account/namespace")/{resource}/{name}\""""


def render(job: Job, kind: str, options: PodOptions, queue: str | None, urls: Sequence[str], download_to: str) -> str:
    """All manifests as one stream of YAML documents. `queue` is a LocalQueue of Kueue."""
    check(job, options, queue)
    _check_downloads(urls, download_to, options.mount)
    makes_data = bool(urls or job.preprocess)
    if makes_data and options.namespace is None:
        note(f"namespace {DEFAULT_NAMESPACE}: the account that starts the run when its data are there needs one; see --namespace")
        options = dataclasses.replace(options, namespace=DEFAULT_NAMESPACE)
    job = dataclasses.replace(job, manifests=options.mount.rstrip("/"))
    trainer = KINDS[kind]
    documents = [
        *(_data(job, trainer, options, queue, urls, download_to) if makes_data else []),
        *training_jobs.documents(trainer, job, options, _train(job), queue, makes_data),
        *([_convert(job, options)] if job.convert else []),
        *([_monitor(job, options)] if not storage.is_remote(job.save) else []),
        *(_tensorboard(job, options) if job.options["tensorboard_dir"] else []),
    ]
    return f"{_deletion(job, options, documents)}{to_yaml(documents)}"


def to_yaml(documents: Sequence[dict[str, Any]]) -> str:
    """Documents with their keys in order, and scripts as they are written."""
    import yaml

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *arguments: True})
    dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, explicit_start=True, width=1000))


def _deletion(job: Job, options: PodOptions, documents: Sequence[dict[str, Any]]) -> str:
    """The command that deletes all of the run, as a comment."""
    kinds = ",".join(dict.fromkeys(document["kind"].lower() for document in documents))
    namespace = f" --namespace {options.namespace}" if options.namespace else ""
    return f"# All of this run is deleted by: kubectl delete {kinds}{namespace} -l {LABEL}={job.name}\n"


def check(job: Job, options: PodOptions, queue: str | None) -> None:
    """Raises UsageError for what Kubernetes cannot run. What a pod writes outside of the volume would be gone with the pod."""
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
    """curl fetches them in a pod, and what the manifest says everybody may read."""
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
    """A Job that downloads, tokenizes and then starts the training, which is the only object that its account may change."""
    own = metadata(job, options, "-data")
    account = options.service_account or str(own["name"])
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
        *([] if options.service_account else [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own}]),
        {"apiVersion": f"{authorization}/v1", "kind": "Role", "metadata": own, "rules": [rights]},
        {
            "apiVersion": f"{authorization}/v1",
            "kind": "RoleBinding",
            "metadata": own,
            "roleRef": {"apiGroup": authorization, "kind": "Role", "name": own["name"]},
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


def _train(job: Job) -> list[str]:
    checkpoints = shlex.quote(job.beside("checkpoints.manifest"))
    again, never = shell.pattern(AGAIN_CODES), shell.pattern(restart_policy.NEVER)
    return script(
        shell.array("train", shell.given_data(job)),
        f'mkdir -p "$(dirname {checkpoints})"',
        TRAIN.format(output=checkpoints, again=again, never=never, signalled=restart_policy.SIGNALLED),
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
    """Every five minutes what is new and wrong; a pod that fails has found something, which its log says."""
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
    """Reached with `kubectl port-forward`: it has no password of its own, so nothing opens it to the world."""
    directory = str(job.options["tensorboard_dir"])
    command = ["tensorboard", "--logdir", directory, "--bind_all", "--port", str(TENSORBOARD_PORT)]
    template = pod(options, container(job, options, "main", command)) | {"restartPolicy": "Always"}
    own = {"app": f"{job.name}-tensorboard"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(job, options, "-tensorboard"),
        "spec": {"selector": {"matchLabels": own}, "template": {"metadata": {"labels": own | labels(job)}, "spec": template}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, options, "-tensorboard"),
        "spec": {"selector": own, "ports": [{"port": TENSORBOARD_PORT}]},
    }
    return [deployment, service]
