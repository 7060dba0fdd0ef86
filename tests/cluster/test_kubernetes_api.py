"""What render k8s prints, given to a real Kubernetes API server on this machine: all is accepted, nothing of it is dropped.

It needs the programs kube-apiserver, which is in no package of PyPI or Debian, and etcd, and in LT_CRDS a directory with the
CRDs of PyTorchJob, JobSet, TrainJob and TrainingRuntime as YAML. It was run with Kubernetes 1.20.2, built from Debian's source
package, and Debian's etcd. Nothing runs there: an API server has no nodes.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

KINDS = ("pytorchjob", "jobset", "trainjob")
PRINTED = (
    *("--image", "registry/lt:1", "--job-name", "gpt", "--nodes", "4", "--model", "tiny", "--save", "/fsx/run"),
    *("--download", "https://host/a", "--preprocess", "/fsx/a --tokenizer /fsx/t -o /fsx/web", "--convert", "--to hf -o /fsx/hf"),
    *("--tensorboard-dir", "/fsx/run/curves", "--toleration", "nvidia.com/gpu:NoSchedule", "--node-selector", "pool=a"),
    *("--priority-class", "high", "--cpus", "90", "--memory", "1500Gi", "--shared-memory", "512Gi"),
)
CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Rules in CEL, which a server before 1.25 does not know; and what such a one wants beside a default that is empty.
NEWER = ("x-kubernetes-validations", "x-kubernetes-list-map-keys", "x-kubernetes-list-type")


class Server:
    """An API server on loopback."""

    def __init__(self, port: int):
        self.address = f"https://127.0.0.1:{port}"
        self.context = ssl._create_unverified_context()

    def call(
        self, method: str, path: str, body: Any = None, token: str = "admin", form: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": form}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {"message": error.read().decode()}

    def collection(self, document: dict[str, Any]) -> str:
        """The path of objects of this kind."""
        version = document["apiVersion"]
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        _, found = self.call("GET", root)
        (name,) = [each["name"] for each in found["resources"] if each["kind"] == document["kind"] and "/" not in each["name"]]
        return f"{root}/namespaces/default/{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    missing = [name for name in ("kube-apiserver", "etcd", "openssl") if shutil.which(name) is None]
    if missing or "LT_CRDS" not in os.environ:
        pytest.skip(f"needs kube-apiserver, etcd, and CRDs in the directory LT_CRDS; missing: {', '.join(missing) or 'LT_CRDS'}")
    folder = tmp_path_factory.mktemp("kubernetes")
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text('admin,admin,1,"system:masters"\n')
    store, peer, port = _free_ports(3)
    etcd, peers = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
    commands = (
        [
            *("etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"),
        ],
        [
            *("kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", str(port)),
            *("--cert-dir", str(folder / "certs"), "--token-auth-file", str(folder / "tokens.csv")),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--api-audiences", "api"),
            *("--service-account-key-file", str(key), "--service-account-signing-key-file", str(key)),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.97.0.0/24"),
            *("--disable-admission-plugins", "ServiceAccount"),
        ],
    )
    with (folder / "log").open("wb") as log:
        processes = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands]
    try:
        found = Server(port)
        _wait(lambda: found.call("GET", "api/v1")[0] == 200, folder / "log")
        for file in sorted(Path(os.environ["LT_CRDS"]).glob("*.yaml")):
            definition = _older(yaml.safe_load(file.read_text()))
            definition.pop("status", None)
            definition["metadata"].pop("creationTimestamp", None)
            code, answer = found.call("POST", CRDS, definition)
            assert code == 201, answer
        _wait(lambda: found.call("GET", "apis/kubeflow.org/v1")[0] == 200, folder / "log")
        _wait(lambda: found.call("GET", "apis/trainer.kubeflow.org/v1alpha1")[0] == 200, folder / "log")
        yield found
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait(is_ready: Any, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if is_ready():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def _older(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if key not in NEWER and not (key == "default" and value == "")}
        return {key: _older(value) for key, value in kept.items()}
    return [_older(entry) for entry in schema] if isinstance(schema, list) else schema


def _documents(kind: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "lt_train", "render", "k8s", "--kind", kind, *PRINTED]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Until 1.21 a CronJob was a beta of the same form.
    return [each | ({"apiVersion": "batch/v1beta1"} if each["kind"] == "CronJob" else {}) for each in yaml.safe_load_all(printed)]


def _dropped(sent: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Where something of `sent` is missing: a server drops the fields that a CRD does not have."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            yield from _dropped(value, kept.get(key) if isinstance(kept, dict) else None, f"{where}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for number, (one, other) in enumerate(zip(sent, kept, strict=True)):
            yield from _dropped(one, other, f"{where}[{number}]")
    elif sent != kept:
        yield f"{where}: {sent!r} became {kept!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_all_manifests_are_accepted_as_they_are(server: Server, kind: str) -> None:
    for document in _documents(kind):
        code, answer = server.call("POST", f"{server.collection(document)}?dryRun=All", document)
        assert code == 201, answer
        assert not list(_dropped(document, answer))


@pytest.mark.parametrize("kind", KINDS)
def test_the_account_may_start_the_run_and_nothing_else(server: Server, kind: str, tmp_path: Path) -> None:
    documents = _documents(kind)
    for document in documents:
        assert server.call("POST", server.collection(document), document)[0] == 201
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["api"]}}
    _, answer = server.call("POST", "api/v1/namespaces/default/serviceaccounts/gpt-data/token", request)
    token = answer["status"]["token"]
    (tmp_path / "token").write_text(token)
    (tmp_path / "namespace").write_text("default")
    (job,) = [document for document in documents if document["metadata"]["name"] == "gpt-data" and document["kind"] == "Job"]
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
    for old, new in {
        "/var/run/secrets/kubernetes.io/serviceaccount": str(tmp_path),
        "https://kubernetes.default.svc": server.address,
        '--cacert "$account/ca.crt"': "--insecure",
    }.items():
        assert old in script
        script = script.replace(old, new)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (training,) = [document for document in documents if document["kind"].lower() == kind]
    place = server.collection(training)
    specification = server.call("GET", f"{place}/gpt")[1]["spec"]
    assert specification.get("runPolicy", specification)["suspend"] is False
    patch = {"form": "application/merge-patch+json", "token": token}
    assert server.call("PATCH", f"{place}/other", {"spec": {}}, **patch)[0] == 403
    assert server.call("DELETE", f"{place}/gpt", token=token)[0] == 403
    assert server.call("GET", "api/v1/namespaces/default/secrets", token=token)[0] == 403
    for document in documents:
        place = f"{server.collection(document)}/{document['metadata']['name']}"
        # Nobody collects what an object owns here.
        assert server.call("DELETE", f"{place}?propagationPolicy=Background")[0] == 200
