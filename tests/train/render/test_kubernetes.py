"""Manifests: valid for Kubernetes and the operator's schema, with the right machines, and shell that does what is promised."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from rendering import Cluster, manifests, remarks, render, scripts, training_command, training_pods

from lt_shared.console import BadConfig, UsageError
from lt_train.render.training_jobs import KINDS

BASE = ("--image", "registry/lt:1", "--model", "tiny", "--train-iters", "5")
END = """echo '{"v":1,"kind":"end","count":1}'"""


def k8s(mount: Path | str, *arguments: str) -> list[dict[str, Any]]:
    return manifests("k8s", *BASE, "--mount", str(mount), "--save", f"{mount}/run", *arguments)


def training_script(documents: list[dict[str, Any]]) -> str:
    return training_command(documents)[2]


def test_every_kind_of_manifest() -> None:
    documents = k8s(
        "/fsx",
        *(
            "--nodes",
            "3",
            "--job-name",
            "gpt",
            "--download",
            "https://host/a.jsonl.xz",
            "--download",
            "https://host/vocab.json?x=1",
        ),
        *("--preprocess", "/fsx/download/a.jsonl.xz --tokenizer /fsx/download -o /fsx/web", "--convert", "--to hf -o /fsx/hf"),
        *("--tensorboard-dir", "/fsx/run/curves"),
    )
    assert [(document["kind"], document["metadata"]["name"]) for document in documents] == [
        ("ServiceAccount", "gpt-data"),
        ("Role", "gpt-data"),
        ("RoleBinding", "gpt-data"),
        ("Job", "gpt-data"),
        ("PyTorchJob", "gpt"),
        ("Job", "gpt-convert"),
        ("CronJob", "gpt-monitor"),
        ("Deployment", "gpt-tensorboard"),
        ("Service", "gpt-tensorboard"),
    ]
    replicas = documents[4]["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {"Master": 1, "Worker": 2}
    assert documents[4]["spec"]["nprocPerNode"] == "8"


@pytest.mark.parametrize(
    ("instance", "gpus", "efa"),
    [("p4d.24xlarge", 8, 4), ("p5.48xlarge", 8, 32), ("ml.p5en.48xlarge", 8, 16), ("g5.12xlarge", 4, 1)],
)
def test_the_machines(instance: str, gpus: int, efa: int) -> None:
    job, _ = k8s("/fsx", "--mock-data", "--instance-type", instance)
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": instance}
    container = pod["containers"][0]
    limits = {"nvidia.com/gpu": gpus, "vpc.amazonaws.com/efa": efa}
    assert container["resources"] == {"limits": limits, "requests": limits}
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "FI_PROVIDER", "value": "efa"} in container["env"]
    # The operator looks for both names.
    assert (container["name"], container["ports"][0]["name"]) == ("pytorch", "pytorchjob-port")


LABEL = "node.kubernetes.io/instance-type"
OLD_LABEL = "beta.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("arguments", "gpus", "efa", "selector"),
    [
        (("--node-selector", f"{LABEL}=g5.xlarge"), 1, 0, {LABEL: "g5.xlarge"}),
        (("--node-selector", f"{LABEL}=g5.xlarge", "--gpus-per-node", "1"), 1, 0, {LABEL: "g5.xlarge"}),
        (("--node-selector", f"{LABEL}=ml.p5en.48xlarge"), 8, 16, {LABEL: "ml.p5en.48xlarge"}),
        (("--node-selector", f"{OLD_LABEL}=p4d.24xlarge", "--gpus-per-node", "4"), 4, 4, {OLD_LABEL: "p4d.24xlarge"}),
        (("--node-selector", f"{LABEL}=ml.p5.48xlarge", "--instance-type", "p5.48xlarge"), 8, 32, {LABEL: "ml.p5.48xlarge"}),
        (("--node-selector", "pool=a"), 8, 32, {LABEL: "p5.48xlarge", "pool": "a"}),
        (("--gpus-per-node", "8"), 8, 32, {LABEL: "p5.48xlarge"}),
        (("--instance-type", "p5.48xlarge", "--gpus-per-node", "4"), 4, 32, {LABEL: "p5.48xlarge"}),
    ],
)
def test_efa_follows_from_the_machine(arguments: tuple[str, ...], gpus: int, efa: int, selector: dict[str, str]) -> None:
    job, _ = k8s("/fsx", "--mock-data", *arguments)
    (pod,) = training_pods(job)
    assert pod["nodeSelector"] == selector
    wanted = {"nvidia.com/gpu": gpus} | ({"vpc.amazonaws.com/efa": efa} if efa else {})
    assert pod["containers"][0]["resources"]["limits"] == wanted
    assert ("FI_PROVIDER" in str(pod)) is bool(efa)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "gpus", "selector", "remark"),
    [
        (("--instance-type", "none", "--gpus-per-node", "8"), 8, None, ""),
        (("--instance-type", "none", "--gpus-per-node", "8", "--node-selector", "pool=a"), 8, {"pool": "a"}, ""),
        (
            ("--instance-type", "none", "--gpus-per-node", "4", "--node-selector", f"{LABEL}=g5.12xlarge"),
            4,
            {LABEL: "g5.12xlarge"},
            "",
        ),
        (("--gpus-per-node", "4"), 4, None, "no EFA, since 4 GPU(s) are no whole p5.48xlarge"),
        (
            ("--gpus-per-node", "8", "--node-selector", f"{LABEL}=a3-highgpu-8g"),
            8,
            {LABEL: "a3-highgpu-8g"},
            "no EFA, since a3-highgpu-8g is not in the table",
        ),
    ],
)
def test_nodes_without_efa(
    kind: str, arguments: tuple[str, ...], gpus: int, selector: dict[str, str] | None, remark: str
) -> None:
    """On machines of one's own, and in other clouds, nothing of AWS is asked for."""
    arguments = ("--kind", kind, "--mock-data", *arguments)
    documents = k8s("/fsx", *arguments)
    (pod,) = (pod for document in documents for pod in training_pods(document))
    assert pod.get("nodeSelector") == selector
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    assert not any(word in str(documents) for word in ("vpc.amazonaws", "FI_", "EFA"))
    said = remarks("k8s", *BASE, "--save", "/fsx/run", *arguments)
    assert remark in said and ("EFA" in said) is bool(remark)


def test_a_layout_is_checked_for_nodes_of_any_kind() -> None:
    with pytest.raises(BadConfig, match="4 ranks do not divide into tensor parallel 3"):
        k8s("/fsx", "--mock-data", "--gpus-per-node", "4", "--tensor-model-parallel-size", "3")


@pytest.mark.parametrize(
    ("code", "status"), [(0, 0), (75, 203), (76, 204), (74, 202), (70, 198), (69, 197), (78, 78), (66, 66), (137, 137)]
)
def test_the_operator_restarts_what_can_continue(tmp_path: Path, code: int, status: int) -> None:
    """It restarts a pod for codes from 128 on."""
    cluster = Cluster(tmp_path)
    cluster.add("lt-train", f"exit {code}")
    assert cluster.run(training_script(k8s(tmp_path, "--mock-data")), PET_NODE_RANK="0").returncode == status


def test_the_end_of_a_pod_lets_the_run_save(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.add(
        "lt-train",
        f"trap 'sleep 0.5; touch {tmp_path}/saved; exit 75' TERM; touch {tmp_path}/ready; while true; do sleep 0.1; done",
    )
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PET_NODE_RANK": "1"}
    shell = subprocess.Popen(["bash", "-c", training_script(k8s(tmp_path, "--mock-data"))], env=environment)
    deadline = time.monotonic() + 240
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    shell.send_signal(signal.SIGTERM)
    assert shell.wait(timeout=240) == 203
    assert (tmp_path / "saved").exists()


def test_the_stages(tmp_path: Path) -> None:
    """The containers of the Job in their order, then the training; the conversion waits for its end."""
    cluster = Cluster(tmp_path)
    for tool in ("lt-preprocess", "lt-train", "lt-convert"):
        cluster.add(tool, END)
    cluster.add("curl", 'while [ "$1" != --output ]; do shift; done; touch "$2"')
    cluster.add("sleep", "exec /bin/sleep 0.1")
    documents = k8s(
        tmp_path,
        *("--download", "https://host/a.jsonl", "--download", "https://host/b.jsonl?x=1"),
        *("--preprocess", f"{tmp_path}/download -o {tmp_path}/web --tokenizer t", "--convert", f"--to hf -o {tmp_path}/hf"),
    )
    download, preprocess, _ = scripts(documents[3])
    wait, convert = scripts(documents[5])
    waiting = subprocess.Popen(["bash", "-c", wait], env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    for script in (download, preprocess, training_script(documents)):
        done = cluster.run(script, PET_NODE_RANK="0")
        assert done.returncode == 0, done.stderr
    assert any(call.startswith(f"lt-train @{tmp_path}/run/data.manifest") for call in cluster.calls)
    assert waiting.wait(timeout=240) == 0
    assert cluster.run(convert).returncode == 0
    assert {file.name for file in (tmp_path / "download").iterdir()} == {"a.jsonl", "b.jsonl"}


@pytest.mark.parametrize(("code", "ends_at_once"), [(78, True), (74, False)])
def test_a_conversion_does_not_wait_for_a_run_that_has_failed(tmp_path: Path, code: int, ends_at_once: bool) -> None:
    cluster = Cluster(tmp_path)
    cluster.add("lt-train", f"exit {code}")
    documents = k8s(tmp_path, "--mock-data", "--convert", f"--to hf -o {tmp_path}/hf")
    wait, _ = scripts(documents[1])
    cluster.run(training_script(documents), PET_NODE_RANK="0")
    # Later the run fails for good.
    cluster.add("sleep", f"echo 'it has ended' > {tmp_path}/run/checkpoints.manifest.failed")
    done = cluster.run(wait)
    assert done.returncode == 1
    said = "lt-train has ended with exit code 78" if ends_at_once else "it has ended"
    assert done.stderr == f"no checkpoint to convert: {said}\n"


def test_no_secret_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "do-not-print")
    assert "do-not-print" not in render("k8s", *BASE, "--save", "/fsx/run", "--mock-data")
    (container,) = k8s("/fsx", "--mock-data")[0]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "lt-secrets", "optional": True}}]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--save", "/home/run", "--mock-data"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--job-name", "My_Run"), "small letters"),
        (("--save", "/fsx/run", "--mock-data", "--job-name", "a" * 45), "44"),
        (("--save", "/fsx/run", "--mock-data", "--claim", "My_Claim"), "--claim"),
        (("--save", "/fsx/run", "--mock-data", "--mount", "fsx"), "below /"),
        (("--save", "/fsx/run", "--mock-data", "--namespace", "My Team"), "--namespace"),
        (("--save", "/fsx/run", "--mock-data", "--service-account", "a/b"), "--service-account"),
        (("--save", "/fsx/run", "--mock-data", "--priority-class", ""), "--priority-class"),
        (("--save", "/fsx/run", "--mock-data", "--queue", "a b"), "--queue"),
        (("--save", "/fsx/run", "--mock-data", "--toleration", "gpu:Never"), "--toleration"),
        (("--save", "/fsx/run", "--mock-data", "--node-selector", "pool"), "--node-selector"),
        (("--save", "/fsx/run", "--mock-data", "--cpus", "many"), "--cpus"),
        (("--save", "/fsx/run", "--mock-data", "--memory", "1500GiB"), "--memory"),
        (("--save", "/fsx/run", "--mock-data", "--shared-memory", "half"), "--shared-memory"),
        (("--save", "/fsx/run", "--mock-data", "--mount", "/"), "below /"),
        (("--save", "/fsx/../home/run", "--mock-data"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--tensorboard-dir", "/home/curves"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--load", "base"), "not on the volume"),
        (("--save", "/fsx/run", "@web.manifest"), "DATA web.manifest is not on the volume"),
        (("--save", "/fsx/run", "0.5", "/fsx/a", "0.5", "/home/b"), "DATA /home/b is not on the volume"),
        (("--save", "/fsx/run", "--preprocess", "/fsx/a --tokenizer t -o /tmp/web"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--convert", "--to hf --output hf"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://h/a", "--download-to", "/data"), "not on the volume"),
        (("--save", "/fsx/run", "--mock-data", "--download", "file:///etc/passwd"), "no address"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://host/a b"), "no address"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://host/.."), "no file name"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://a/x", "--download", "https://b/x?y"), "two files"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://me:secret@host/x"), "password"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://me:secret@host/x y"), "no address"),
        (("--save", "/fsx/run", "--mock-data", "--download", "https://host/"), "no file name"),
        (("--save", "/fsx/run", "--mock-data", "--instance-type", "trn1.32xlarge"), "no GPUs"),
        (("--save", "/fsx/run", "--mock-data", "--node-selector", f"{LABEL}=trn1.32xlarge"), "no GPUs"),
        (("--save", "/fsx/run", "--mock-data", "--instance-type", ""), "no instance type ''"),
        (("--save", "/fsx/run", "--mock-data", "--instance-type", "none"), "how many GPUs"),
        (("--save", "/fsx/run", "--mock-data", "--node-selector", f"{LABEL}=a3-highgpu-8g"), "how many GPUs"),
        (
            ("--save", "/fsx/run", "--mock-data", "--node-selector", f"{LABEL}=g5.xlarge", "--gpus-per-node", "8"),
            "g5.xlarge has 1",
        ),
        (("--save", "/fsx/run", "--mock-data", "--instance-type", "p5.48xlarge", "--gpus-per-node", "16"), "p5.48xlarge has 8"),
        (
            ("--save", "/fsx/run", "--mock-data", "--node-selector", f"{OLD_LABEL}=g5.xlarge", "--instance-type", "p5.48xlarge"),
            "--instance-type p5.48xlarge, and a --node-selector for g5.xlarge",
        ),
        (
            ("--save", "/fsx/run", "--mock-data", "--node-selector", f"{LABEL}=a", "--node-selector", f"{OLD_LABEL}=b"),
            "a node is of one type",
        ),
        (("--save", "/fsx/run", "--mock-data", "--memory", "1Ti", "--shared-memory", "2Ti"), "2Ti is more than --memory 1Ti"),
        (("--save", "/fsx/run", "--mock-data", "--memory", "1000G", "--shared-memory", "1Ti"), "1Ti is more than --memory"),
    ],
)
def test_what_cannot_work(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        render("k8s", *BASE, *arguments)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_the_longest_name_is_one_that_kubernetes_takes() -> None:
    names = [
        document["metadata"]["name"]
        for document in k8s("/fsx", "--mock-data", "--job-name", "a" * 44, "--tensorboard-dir", "/fsx/run/curves")
    ]
    limits = {"monitor": 52, "tensorboard": 63}
    assert all(len(name) <= limits.get(name.rpartition("-")[2], 63) for name in names)


def test_the_variables_of_the_manifests_around_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        *("NUM_NODES=2", "INSTANCE_TYPE=p4d.24xlarge", "IMAGE_URI=registry/theirs:1", "GPU_PER_NODE=4", "TENSOR_PARALLEL=2"),
        *("NUM_LAYERS=4", "HIDDEN_SIZE=64", "NUM_ATTENTION_HEADS=4", "SEQ_LENGTH=32", "GLOBAL_BATCH_SIZE=8"),
    }
    for variable in variables:
        monkeypatch.setenv(*variable.split("=", 1))
    arguments = ("k8s", "--save", "/fsx/run", "--mock-data", "--num-layers", "2")
    job = manifests(*arguments)[0]
    assert set(job["spec"]["pytorchReplicaSpecs"]) == {"Master", "Worker"}
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert pod["containers"][0]["image"] == "registry/theirs:1"
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    words = training_script([job]).partition("train=(")[2].partition("\n)")[0].split()
    for option in ("--num-layers 4", "--hidden-size 64", "--tensor-model-parallel-size 2", "--global-batch-size 8"):
        assert option in " ".join(words)
    with pytest.raises(UsageError, match="cannot change the model tiny"):
        render(*arguments, "--model", "tiny")


def test_pods_need_an_image() -> None:
    with pytest.raises(UsageError, match="no --image"):
        render("k8s", "--model", "tiny", "--mock-data", "--save", "/fsx/run")
