"""Labels that shippers, launchers and loggers put around lines, for tests and benchmarks."""

import json
from collections.abc import Callable
from typing import Any

Lines = list[str]
Wrapping = Callable[[Lines], Lines]
TIME = "2026-03-03T10:00:{:02d}.123456789Z"

LABELS = {
    "logging": "2026-03-03 10:00:#,123 - train - INFO - ",
    "basic logging": "INFO:train:",
    "brackets": "[2026-03-03 10:00:#,123][INFO][train.py:12] ",
    "lines of code": "[2026-03-03 10:00:#] [INFO] [train.py:##:main] ",
    "loguru": "2026-03-03 10:00:#.123 | INFO     | train:main:12 - ",
    "rich": "[10:00:#] INFO     ",
    "a date in English": "03/03/2026 10:00:# - INFO - __main__ - ",
    "absl": "I0303 10:00:#.123456 140123456789 train.py:12] ",
    "glog": "I20260303 10:00:#.123456 4242 train.cc:12] ",
    "syslog": "Mar  3 10:00:# gpu-12 train: ",
    "journalctl -o short-unix": "17725320#.123456 gpu-12 bash[4242]: ",
    "journalctl -o short-monotonic": "[ 10#.123456] gpu-12 bash[4242]: ",
    "Determined": "[2026-03-03T10:00:#.123456Z] 1b2c3d4e [rank=3] || ",
    "logcli": '2026-03-03T10:00:#Z {container="trainer", pod="gpt-0"} ',
    "gcloud": "ERROR\t2026-03-03 10:00:# +0000\tworkerpool0-0\t",
    "aws": "17725320#000\t",
    "Lightning": "[rank: 3] ",
    "NeMo": "[NeMo I 2026-03-03 10:00:# nemo_logging:393] ",
    "Horovod": "[3]<stderr>:",
    "mpirun with hosts": "[prterun-gpu-12-4711@1,3][gpu-12:5123]<stdout>: ",
    "a Ray task with arguments": "(TaskRunner(global_step=3) pid=4242) ",
    "colours that lost their escape": "[36m(WorkerDict pid=4242)[0m ",
    "grep": "logs/rank_3/stderr.log:##:",
    "ts -s": "00:00:# ",
    "tee with ts": "[2026-03-03 10:00:#] ",
    "GitLab": "2026-03-03T10:00:#.123456Z 01E ",
    "foreman": "10:00:# trainer.1  | ",
    "a node": "<<gpu-12>> ",
    "fabric": "[gpu-12] out: ",
    "a pod": "[gpt-slice-job-0-0-abc12] ",
}


def behind(label: str) -> Wrapping:
    """`#` becomes the seconds of the line, `##` the number of the line."""
    return lambda lines: [
        label.replace("##", str(number)).replace("#", f"{number % 60:02d}") + line for number, line in enumerate(lines, 1)
    ]


def quoted(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\x1b", "\\u001b")
    return f'"{escaped}\\n"'


def each(template: str) -> Wrapping:
    return lambda lines: [template.replace("@@", line) for line in lines]


def json_objects(**fields: Any) -> Wrapping:
    def wrap(lines: Lines) -> Lines:
        return [json.dumps({key: line + "\n" if value == "@" else value for key, value in fields.items()}) for line in lines]

    return wrap


SHIPPERS: dict[str, Wrapping] = {
    "docker": json_objects(log="@", stream="stdout", time="2026-03-03T10:00:00.123456789Z"),
    "journald-json": json_objects(MESSAGE="@", _HOSTNAME="node07", __REALTIME_TIMESTAMP="1772532000123456", _PID="12"),
    "fluentbit": json_objects(date=1772532000.5, log="@", kubernetes={"pod_name": "train-0", "host": "node07"}),
    "stern-json": json_objects(message="@", nodeName="node07", namespace="a", podName="train-0", containerName="pytorch"),
    "cri": each("2026-03-03T10:00:00.123456789Z stdout F @@"),
    "kubectl": each("2026-03-03T10:00:00.123456789Z [pod/train-0/pytorch] @@"),
    "stern": each("train-worker-0 pytorch @@"),
    "journald": each("Mar 03 10:00:00 node07 train.sh[4242]: @@"),
    "journald-iso": each("2026-03-03T10:00:00+0000 node07 python3[4242]: @@"),
    "ts": each("Mar  3 10:00:00 @@"),
    "mpirun": each("[1,3]<stdout>:@@"),
    "prrte": each("[prterun-node07-123@1,3]<stderr>: @@"),
    "sagemaker": each("[1,mpirank:3,algo-1]<stdout>:@@"),
    "structlog": json_objects(event="@", level="info", timestamp="2026-03-03T10:00:00Z", logger="train"),
    "loguru": json_objects(text="@", record={"level": {"name": "INFO"}}),
    "bunyan": json_objects(name="t", hostname="n", pid=1, level=30, msg="@", time="2026-03-03T10:00:00Z", v=0),
    "datadog": json_objects(message="@", status="info", host="n7", date="2026-03-03T10:00:00Z"),
    "azure": json_objects(LogEntry="@", TimeGenerated="2026-03-03T10:00:00Z", ContainerName="a"),
    "azure-2": json_objects(LogMessage="@", TimeGenerated="2026-03-03T10:00:00Z", PodName="train-0"),
    "cloud-logging": lambda lines: [
        json.dumps({"jsonPayload": {"message": line}, "timestamp": TIME.format(0)}) for line in lines
    ],
    "python-json": json_objects(asctime="2026-03-03 10:00:00,123", levelname="INFO", message="@"),
    "compose": each("trainer-1  | @@"),
    "pdsh": each("node07: @@"),
    "torchx": each("trainer/0 @@"),
    "ray": each("(TrainWorker pid=4242, ip=10.0.0.7) @@"),
    "ray-colours": each("\x1b[36m(TrainWorker pid=4242)\x1b[0m @@"),
    "hydra": each("[3] @@"),
    "srun": each("3: @@"),
    "torchrun": each("[rank3]: @@"),
    "tee": each("[default3]:@@"),
    "arrow": each("2026-03-03 10:00:00.04396 master-0 >> @@"),
    "hpe": each("x1000c0s0b0n0 3: @@"),
    "aws": each("2026-03-03T10:00:00.123000+00:00 train/pytorch/0abc @@"),
    "stern-colours": each("\x1b[36mtrain-0\x1b[0m \x1b[36mpytorch\x1b[0m @@"),
    "parallel": each("node07\t@@"),
    "pm2": each("0|train    | @@"),
    "supervisor": each("2026-03-03 10:00:00,123 DEBG 'train' stderr output: @@"),
    "pueue": each("task-7 > @@"),
    "clush": each("gpu[12-13]: @@"),
    "cat-n": lambda lines: [f"{number:6d}\t{line}" for number, line in enumerate(lines, 1)],
    "bat": lambda lines: [f"{number:4d} │ {line}" for number, line in enumerate(lines, 1)],
}
LOGGERS: dict[str, Wrapping] = {
    "docker": lambda lines: [f'{{"log":{quoted(line)},"stream":"stderr","time":"2026-03-03T10:00:00.1Z"}}' for line in lines],
    "cri": behind("2026-03-03T10:00:#.123456789Z stdout F "),
    "kubectl": behind("[pod/gpt-worker-0/pytorch] "),
    "srun": behind("3: "),
    "torchrun": behind("[rank3]: "),
    "ray": behind("\x1b[36m(WorkerDict pid=4242, ip=10.0.0.7)\x1b[0m "),
    "logfmt": lambda lines: [f'time="2026-03-03T10:00:00Z" level=info msg={quoted(line)[:-3]}"' for line in lines],
    "fluentd": lambda lines: [f'2026-03-03 10:00:00.0 +0000 kube.train: {{"log":{quoted(line)},"stream":"a"}}' for line in lines],
    **{name: behind(label) for name, label in LABELS.items()},
}
