"""What trains on Kubernetes, of each kind, when its data are there, where the cluster wants it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import Cluster, manifests, render, training_command, training_pods

from lt_train.process import restart_policy
from lt_train.render.training_jobs import KINDS

BASE = ("k8s", "--image", "registry/lt:1", "--model", "tiny", "--save", "/fsx/run")
TRAINING = ("TrainJob", "JobSet", "PyTorchJob", "HyperPodPyTorchJob")
DATA = ("--download", "https://host/a", "--preprocess", "/fsx/download/a --tokenizer /fsx/t -o /fsx/web")


def found(*arguments: str) -> dict[str, dict[str, Any]]:
    """The documents by their kinds; the training is called `training`."""
    documents = {document["kind"]: document for document in manifests(*BASE, *arguments)}
    return documents | {"training": next(documents[kind] for kind in TRAINING if kind in documents)}


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
    resumed = {"runPolicy": {"suspend": False}} if kind.endswith("pytorchjob") else {"suspend": False}
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
    instance_type = "ml.p5.48xlarge" if kind == "hyperpodpytorchjob" else "p5.48xlarge"
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": instance_type, "pool": "training"}
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


def test_hyperpodrun_starts_the_ranks_of_a_pod() -> None:
    documents = found("--mock-data", "--kind", "hyperpodpytorchjob", "--nodes", "4", "--instance-type", "ml.p5.48xlarge")
    training = documents["training"]
    assert (training["apiVersion"], training["spec"]["nprocPerNode"]) == ("sagemaker.amazonaws.com/v1", "8")
    (replicas,) = training["spec"]["replicaSpecs"]
    assert replicas["replicas"] == 4
    # Kueue and Kubecost read the labels of pods.
    assert replicas["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "lt-train"
    (container,) = only_pod(documents)["containers"]
    assert container["ports"] == [{"containerPort": 8080}]


@pytest.mark.parametrize(("code", "says"), [(0, None), (78, "lt-train has ended with exit code 78"), (74, None)])
def test_ranks_of_hyperpodrun(tmp_path: Path, code: int, says: str | None) -> None:
    """Its arguments are torchrun's and three of its own. The first rank's output is the manifest; a later start forgets
    that an earlier one has failed."""
    from torch.distributed.run import get_args_parser

    options = ("--kind", "hyperpodpytorchjob", "--nodes", "2", "--instance-type", "none", "--gpus-per-node", "2")
    place = ("--mount", str(tmp_path), "--save", f"{tmp_path}/my run", "--wandb-project", "it's $HOME", "--wandb-exp-name", "e")
    documents = manifests(
        "k8s", "--image", "lt", *options, *place, "--model", "tiny", "--mock-data", "--convert", f"--to hf -o {tmp_path}/hf"
    )
    cluster = Cluster(tmp_path)
    cluster.add("lt-train", f"echo rank $RANK; exit $(( RANK ? 0 : {code} ))")
    # A stand-in for the agent: it starts the ranks of one pod one after another.
    words = tmp_path / "words"
    cluster.add(
        "hyperpodrun",
        f'printf \'%s\\n\' "$@" > \'{words}\'; while [ "${{1#--}}" != "$1" ]; do shift; done\n'
        'status=0; for RANK in 0 1; do export RANK; "$@" || status=$?; done; exit $status',
    )
    (tmp_path / "my run").mkdir()
    failed = tmp_path / "my run/checkpoints.manifest.failed"
    failed.write_text("before")
    done = cluster.run(training_command(list(documents))[2])
    assert done.returncode == code, done.stderr
    parser = get_args_parser()
    # torch 2.13 has the last one itself.
    for option in {"--server-port", "--shutdown-signal", "--shutdown-timeout"} - set(parser._option_string_actions):
        parser.add_argument(option)
    parsed = parser.parse_args(words.read_text().splitlines())
    assert (parsed.server_port, parsed.shutdown_signal, str(parsed.shutdown_timeout)) == ("8080", "SIGTERM", "570")
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.no_python, parsed.training_script) == ("2", "2", True, "bash")
    assert all("--wandb-project it's $HOME --wandb-exp-name e" in call for call in cluster.calls if call.startswith("lt-train"))
    assert (tmp_path / "my run/checkpoints.manifest").read_text() == "rank 0\n"
    assert "rank 1" in done.stdout
    assert (failed.read_text().strip() if failed.exists() else None) == says


@pytest.mark.parametrize("name", ["data", "checkpoints"])
def test_manifests_of_a_remote_run_are_on_the_volume(name: str) -> None:
    remote = [word.replace("/fsx/run", "s3://bucket/run") for word in BASE]
    printed = render(*remote, *DATA, "--convert", "--to hf -o /fsx/hf")
    assert f"/fsx/lt-lt-train-{name}.manifest" in printed
