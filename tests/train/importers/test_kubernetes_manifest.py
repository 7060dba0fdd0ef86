"""Manifests and templates of Kubernetes whose containers start pretrain_gpt.py."""

import json
import os
import textwrap
from pathlib import Path

import pytest
from running import train

# Of Table 1 in "Efficient Large-Scale Language Model Training on GPU Clusters": 7.5 billion.
SIZES = {"NUM_LAYERS": "36", "HIDDEN_SIZE": "4096", "NUM_ATTENTION_HEADS": "32", "TENSOR_PARALLEL": "8"}
WORDS = [
    "--tensor-model-parallel-size={0}TENSOR_PARALLEL{1}",
    "--num-layers={0}NUM_LAYERS{1}",
    "--hidden-size={0}HIDDEN_SIZE{1}",
    "--num-attention-heads={0}NUM_ATTENTION_HEADS{1}",
    "--seq-length=2048",
    "--max-position-embeddings=2048",
    "--micro-batch-size=1",
    "--global-batch-size=288",
    "--train-iters=10",
    "--fp16",
    "--data-path=/fsx/gpt2/my-gpt2_text_document",
]
TEMPLATE = """\
apiVersion: v1
kind: Service
metadata: {name: etcd}
spec: {ports: [{port: 2379}]}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: megatron}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: ${NUM_NODES}
      template:
        spec:
          initContainers:
            - {name: wait, command: [sh, -c, "until nslookup etcd; do sleep 1; done"]}
          containers:
            - name: pytorch
              image: ${REPO_URI}
              env: [{name: NCCL_DEBUG, value: INFO}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
              command: ["/usr/local/bin/torchrun", "--nproc_per_node=${GPU_PER_NODE}", "--nnodes=${NUM_NODES}"]
              args: [/workspace/Megatron-LM/pretrain_gpt.py, WORDS]
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
    - template:
        spec:
          template:
            spec:
              containers:
                - name: logger
                  command: [tail, -F, /logs/out]
                - name: megatron
                  env:
                    - {name: NUM_LAYERS, value: "36"}
                    - {name: HIDDEN_SIZE, value: "4096"}
                    - {name: NUM_ATTENTION_HEADS, value: "32"}
                    - {name: TENSOR_PARALLEL, value: "8"}
"""


def template(place: Path) -> Path:
    file = place / "pytorchjob.yaml-template"
    file.write_text(TEMPLATE.replace("WORDS", ", ".join(f'"{word.format("${", "}")}"' for word in WORDS)))
    return file


def options(*words: str) -> dict[str, object]:
    done = train("import", "--json", *words)
    assert done.code == 0, done.err
    found: dict[str, object] = json.loads(done.out)["options"]
    return found


def given() -> list[str]:
    return [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]


def test_a_template_asks_for_what_envsubst_fills_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = template(tmp_path)
    asked = train("import", str(file))
    assert (asked.code, asked.out) == (65, "")
    assert "hint: give it: --set TENSOR_PARALLEL=VALUE --set NUM_LAYERS=VALUE --set HIDDEN_SIZE=VALUE" in asked.err
    for name, value in SIZES.items():
        monkeypatch.setenv(name, value)
    filled = tmp_path / "pytorchjob.yaml"
    filled.write_text(os.path.expandvars(file.read_text()))
    assert options(str(filled)) == options(*given(), str(file))
    assert "the model has 7,463,923,712 parameters" in train("import", str(filled)).err


OF_SHELL = " ".join(word.format("${", "}") for word in WORDS)
COMMANDS = {
    "words": f"command: [torchrun, pretrain_gpt.py]\nargs: {json.dumps([word.format('$(', ')') for word in WORDS])}\n",
    "shell": "command: [/bin/bash, -x, -c]\nargs:\n  - |\n    cd /workspace/Megatron-LM && mkdir -p logs\n"
    f"    torchrun pretrain_gpt.py {OF_SHELL} | tee logs/out\n",
    "one line": "command: [/bin/bash, -x, -c]\nargs:\n  - cd /workspace/Megatron-LM; NUM_LAYERS=36; export HIDDEN_SIZE=4096 &&\n"
    f"    nvidia-smi && torchrun pretrain_gpt.py {OF_SHELL}\n",
}


@pytest.mark.parametrize("lines", COMMANDS.values(), ids=COMMANDS)
def test_variables_of_the_container_are_known(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "jobset.yaml"
    file.write_text(JOBSET + textwrap.indent(lines, 18 * " "))
    assert options(str(file)) == options(*given(), str(template(tmp_path)))
    assert options(str(file), "--set", "NUM_LAYERS=30")["num-layers"] == 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n", "no container with a command"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{args: [python, train.py]}]}\n", "the script starts train.py"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{args: [sh]}]}\n", "no command with pretrain_gpt.py"),
        ("apiVersion: v1\nkind: Pod\nspec: [\n", "not YAML: "),
        ("apiVersion: v1\nkind: Pod\nspec: {a: 1, a: 2}\n", "not YAML: 'a' twice in one mapping"),
    ],
    ids=["no container", "another program", "a shell alone", "cut off", "a key twice"],
)
def test_manifests_without_such_a_run(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    done = train("import", str(file))
    assert (done.code, done.out) == (65, "")
    assert f"lt-train: error: {file}: {message}" in done.err
