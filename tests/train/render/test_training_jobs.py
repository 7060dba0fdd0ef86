"""What trains on Kubernetes: as a PyTorchJob, a JobSet or a TrainJob, when its data are there, where the cluster wants it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import Cluster, manifests, render, training_pods

from lt_train.process import restart_policy
from lt_train.render.training_jobs import KINDS

BASE = ("k8s", "--image", "registry/lt:1", "--model", "tiny", "--save", "/fsx/run")
DATA = ("--download", "https://host/a", "--preprocess", "/fsx/download/a --tokenizer /fsx/t -o /fsx/web")


def found(*arguments: str) -> dict[str, dict[str, Any]]:
    """The documents by their kinds; the training is called `training`."""
    documents = {document["kind"]: document for document in manifests(*BASE, *arguments)}
    return documents | {"training": next(documents[kind] for kind in ("TrainJob", "JobSet", "PyTorchJob") if kind in documents)}


def only_pod(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (pod,) = training_pods(documents.get("TrainingRuntime", documents["training"]))
    return pod


@pytest.mark.parametrize("kind", KINDS)
def test_no_gpu_is_held_while_data_are_made(kind: str) -> None:
    documents = found("--kind", kind, *DATA)
    job = documents["Job"]["spec"]["template"]["spec"]
    assert [each["name"] for each in (*job["initContainers"], *job["containers"])] == ["download", "preprocess", "start"]
    assert "nvidia.com/gpu" not in str(documents["Job"])
    specification = documents["training"]["spec"]
    assert specification.get("runPolicy", specification)["suspend"] is True
    assert "initContainers" not in only_pod(documents)
    assert "suspend" not in str(found("--kind", kind, "--mock-data"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queue", [(), ("--queue", "team")], ids=["alone", "queue"])
def test_the_run_is_started_when_its_data_are_there(tmp_path: Path, kind: str, queue: tuple[str, ...]) -> None:
    """The last container sends a request for the object that trains, and its account may do nothing else."""
    documents = found("--kind", kind, *DATA, *queue)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("team-a")
    cluster = Cluster(tmp_path)
    cluster.add("curl", f"cat > {tmp_path}/header; printf '%s\\n' \"$@\" > {tmp_path}/words")
    script = documents["Job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    done = cluster.run(script.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(tmp_path)))
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert (tmp_path / "header").read_text() == "Authorization: Bearer secret"
    assert "secret" not in " ".join(words)
    group, version = documents["training"]["apiVersion"].split("/")
    resource = f"{kind}s"
    assert words[-1].endswith(f"/apis/{group}/{version}/namespaces/team-a/{resource}/lt-train")
    rule = {"apiGroups": [group], "resources": [resource], "resourceNames": ["lt-train"], "verbs": ["patch"]}
    assert documents["Role"]["rules"] == [rule]
    change = json.loads(words[words.index("--data") + 1])
    resumed = {"runPolicy": {"suspend": False}} if kind == "pytorchjob" else {"suspend": False}
    assert change == ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}} if queue else {"spec": resumed})
    # Kueue would start what is in its queue at once.
    assert "kueue" not in str(documents["training"])


def test_an_account_of_the_user_starts_the_run() -> None:
    documents = found(*DATA, "--service-account", "trainer")
    assert "ServiceAccount" not in documents
    assert documents["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "default"}]


@pytest.mark.parametrize("kind", KINDS)
def test_one_command_deletes_all_of_a_run(kind: str) -> None:
    given = (*DATA, "--convert", "--to hf -o /fsx/hf", "--tensorboard-dir", "/fsx/run/curves", "--namespace", "team")
    printed = render(*BASE, "--kind", kind, *given)
    documents = list(yaml.safe_load_all(printed))
    command = printed.splitlines()[0]
    kinds = command.partition("kubectl delete ")[2].split()[0].split(",")
    assert set(kinds) == {document["kind"].lower() for document in documents} >= {"cronjob", kind}
    assert command.endswith(" --namespace team -l app.kubernetes.io/instance=lt-train")
    for document in documents:
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "lt-train"
        assert document["metadata"]["namespace"] == "team"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cluster_asks_for(kind: str) -> None:
    given = {
        "--service-account": "trainer",
        "--toleration": "nvidia.com/gpu=present:NoSchedule",
        "--node-selector": "pool=training",
        "--priority-class": "high",
        "--cpus": "90",
        "--memory": "1500Gi",
        "--shared-memory": "512Gi",
        "--queue": "team",
    }
    words = [word for pair in given.items() for word in pair]
    documents = found("--mock-data", "--kind", kind, *words, "--toleration", "spot")
    assert documents["training"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    pod = only_pod(documents)
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p5.48xlarge", "pool": "training"}
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("high", "trainer")
    requests = pod["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"], requests["nvidia.com/gpu"]) == ("90", "1500Gi", 8)
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Gi"}} in pod["volumes"]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]


@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_codes_after_which_no_pod_is_started_again(kind: str) -> None:
    """The controller of JobSets is told them; after others it starts all pods again."""
    documents = found("--mock-data", "--kind", kind, "--nodes", "4")
    training = documents["training"]
    specification = training["spec"] if kind == "jobset" else documents["TrainingRuntime"]["spec"]["template"]["spec"]
    (replicated,) = specification["replicatedJobs"]
    job = replicated["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["containerName"]) == ("FailJob", only_pod(documents)["containers"][0]["name"])
    assert set(restart_policy.NEVER) < set(rule["onExitCodes"]["values"])
    assert all(code < restart_policy.SIGNALLED for code in rule["onExitCodes"]["values"])
    assert (job["parallelism"], job["completions"]) == (4, 4)


def test_ranks_of_a_jobset_meet_at_its_first_pod() -> None:
    (container,) = only_pod(found("--mock-data", "--kind", "jobset", "--nodes", "4"))["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["PET_MASTER_ADDR"] == "lt-train-node-0-0.lt-train"
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("4", "8")


@pytest.mark.parametrize("name", ["data", "checkpoints"])
def test_manifests_of_a_remote_run_are_on_the_volume(name: str) -> None:
    remote = [word.replace("/fsx/run", "s3://bucket/run") for word in BASE]
    printed = render(*remote, *DATA, "--convert", "--to hf -o /fsx/hf")
    assert f"/fsx/lt-lt-train-{name}.manifest" in printed
