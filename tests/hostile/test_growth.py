"""Each reader's cost grows with its input and not with the square: n, 2n and 4n of the worst ordinary input of a stranger."""

import base64
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from growth import Reader, check, of_log, step
from pyarrow import parquet

TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"
DOCUMENT = b'{"text": "a"}\n'
TRACEBACK = (
    "Traceback (most recent call last):\n  File \"/a/train.py\", line 3, in <module>\n    main()\n"
    "RuntimeError: CUDA error: an illegal memory access was encountered\n"
)  # fmt: skip


def attempts(size: int) -> str:
    return "".join("".join(map(step, range(3 * attempt, 3 * attempt + 3))) + TRACEBACK for attempt in range(size))


def fault_of_addresses(size: int) -> str:
    record = {"v": 1, "kind": "fault", "fault": "traceback", "severity": "critical", "cause": "root", "message": "://a:" * size}
    return json.dumps(record) + "\n"


def faults_of_ranks(size: int) -> str:
    return "".join(
        f"[rank{n}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n} MiB. GPU 0\n" for n in range(size)
    )


def chained_tracebacks(size: int) -> str:
    return f"{TRACEBACK}\nDuring handling of the above exception, another exception occurred:\n\n" * size + TRACEBACK


def long_numbers(size: int) -> str:
    return f" iteration {'1' * size}/ 5 | lm loss: {'9' * size} |\n"


def variables(size: int) -> str:
    return "".join(f"A{n + 1}=${{A{n}}}x\n" for n in range(size))


def keys_of_a_line(size: int) -> str:
    return json.dumps({f"k{n}": n for n in range(size)} | {"text": "a"}) + "\n"


def labels(size: int) -> str:
    return "".join(label * size + "x\n" for label in ("[rank0]: ", "0: ", "node1 | ", "[", "(a:"))


def flight_recordings(directory: Path, size: int) -> str:
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}}
    for rank in range(size):
        entries = [
            {
                "record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": n, "p2p_seq_id": 0,
                "op_id": n,
                "profiling_name": "nccl:all_reduce", "time_created_ns": n, "input_sizes": [[4]], "output_sizes": [[4]],
                "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled" if n == 9 else "completed",
                "time_discovered_started_ns": 1, "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000,
                "is_p2p": False, "frames": [],
            }
            for n in range(10 - (rank == 5))
        ]  # fmt: skip
        content = pickle.dumps({"version": "2.4", "pg_config": group, "pg_status": {}, "entries": entries})
        (directory / f"nccl_trace_rank_{rank}").write_bytes(content)
    return "lt-monitor stuck ."


def many_tensors(directory: Path, size: int) -> str:
    header = {f"layers.{n}.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(size)}
    encoded = json.dumps(header).encode()
    (directory / "hf").mkdir()
    (directory / "hf/model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(4 * size))
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config |= {"vocab_size": 10, "rms_norm_eps": 1e-6, "max_position_embeddings": 8, "tie_word_embeddings": False}
    (directory / "hf/config.json").write_text(json.dumps(config))
    return "lt-convert hf --to megatron-dist -o out"


def large_pickle(directory: Path, size: int) -> str:
    place = directory / "legacy/release/mp_rank_00"
    place.mkdir(parents=True)
    (directory / "legacy/latest_checkpointed_iteration.txt").write_text("release")
    with zipfile.ZipFile(place / "model_optim_rng.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({f"k{n}": [n, {"a": (n,)}] for n in range(size)}, 2))
        archive.writestr("archive/version", "3")
    return "lt-convert legacy --to hf -o out"


def of_corpus(content: Callable[[int], str], options: str = "") -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / "a.jsonl").write_text(content(size))
        return f"lt-preprocess a.jsonl --tokenizer {TOKENIZER} --workers 1 -o out {options}"

    return write


def many_files(directory: Path, size: int) -> str:
    (directory / "texts").mkdir()
    for number in range(size):
        (directory / f"texts/{number}.jsonl").write_text('{"text": "a"}\n')
    return f"lt-preprocess texts --tokenizer {TOKENIZER} --workers 1 -o out"


def large_vocabulary(directory: Path, size: int) -> str:
    (directory / "tokenizer").mkdir()
    vocabulary = json.loads((TOKENIZER / "vocab.json").read_text())
    vocabulary |= {f"zz{n}": len(vocabulary) + n for n in range(size)}
    (directory / "tokenizer/vocab.json").write_text(json.dumps(vocabulary))
    (directory / "tokenizer/merges.txt").write_bytes((TOKENIZER / "merges.txt").read_bytes())
    (directory / "a.jsonl").write_text('{"text": "abc"}\n')
    return "lt-preprocess a.jsonl --tokenizer tokenizer --workers 1 -o out"


def of_configuration(name: str, content: Callable[[int], str]) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / name).write_text(content(size))
        return f"lt-train import {name}"

    return write


def of_saved(name: str, command: str, content: Callable[[int], str]) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / name).write_text(content(size))
        return f"lt-monitor {command} {name}"

    return write


def jobs(size: int) -> str:
    job = {"name": "train", "job_state": ["RUNNING"], "nodes": "n[1-4]"}
    return json.dumps({"jobs": [{"job_id": number} | job for number in range(size)]})


def gpus(size: int) -> str:
    return "index, uuid, clocks.sm [MHz]\n" + "".join(f"{number}, GPU-{number}, 1000 MHz\n" for number in range(size))


def threads(size: int) -> str:
    stack = '  File "/a/b.py", line 3 in f\n' * 3
    return "".join(f"Thread 0x{number:x} (most recent call first):\n{stack}" for number in range(size))


def manifest(directory: Path, size: int) -> str:
    lines = [json.dumps({"v": 1, "kind": "dataset", "prefix": f"/data/{n}_text_document", "weight": 1.0}) for n in range(size)]
    (directory / "shards.list").write_text("\n".join([*lines, "{"]) + "\n")
    return "lt-train --model tiny --train-iters 1 --device cpu --dry-run @shards.list"


def metrics(directory: Path, size: int) -> str:
    (directory / "run").mkdir()
    steps = [json.dumps({"v": 1, "kind": "step", "step": number, "loss": 2.0}) for number in range(size)]
    (directory / "run/metrics.jsonl").write_text("\n".join(steps) + "\n")
    return "lt-monitor summarize run"


def of_table(directory: Path, size: int) -> str:
    (directory / "a.csv").write_text("text\n" + 'a""\n' * size)
    return f"lt-preprocess a.csv --tokenizer {TOKENIZER} --workers 1 -o out"


def members_of_tar(directory: Path, size: int) -> str:
    with tarfile.open(directory / "a.tar", "w") as archive:
        for number in range(size):
            member = tarfile.TarInfo(f"{number}.json")
            member.size = len(DOCUMENT)
            archive.addfile(member, io.BytesIO(DOCUMENT))
    return f"lt-preprocess a.tar --tokenizer {TOKENIZER} --workers 1 -o out"


def headers_of_warc(directory: Path, size: int) -> str:
    headers = "".join(f"X-{number}: a\r\n" for number in range(size))
    record = f"WARC/1.0\r\nWARC-Type: conversion\r\n{headers}Content-Length: 1\r\n\r\na\r\n\r\n"
    (directory / "a.warc").write_text(record + record.replace(headers, "") * size)
    return f"lt-preprocess a.warc --tokenizer {TOKENIZER} --workers 1 -o out"


def row_groups(directory: Path, size: int) -> str:
    parquet.write_table(pyarrow.table({"text": ["a"] * size}), directory / "a.parquet", row_group_size=1)
    return f"lt-preprocess a.parquet --tokenizer {TOKENIZER} --workers 1 -o out"


def many_tensor_files(directory: Path, size: int) -> str:
    many_tensors(directory, 1)
    names = {f"layers.{number}.weight": f"model-{number}.safetensors" for number in range(size)}
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name in names.values():
        (directory / "hf" / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (directory / "hf/model.safetensors").unlink()
    (directory / "hf/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return "lt-convert hf --to megatron-dist -o out"


def ranks_of_tiktoken(directory: Path, size: int) -> str:
    tokens = [bytes([byte]) for byte in range(256)] + [f"zz{number}".encode() for number in range(size)]
    lines = [f"{base64.b64encode(token).decode()} {number}\n" for number, token in enumerate(tokens)]
    (directory / "a.tiktoken").write_text("".join(lines))
    (directory / "a.jsonl").write_bytes(DOCUMENT)
    return "lt-preprocess a.jsonl --tokenizer a.tiktoken --workers 1 -o out"


def lines_of_docker(size: int) -> str:
    return "".join(json.dumps({"log": step(n), "stream": "stderr", "time": "2026-11-28T00:00:00Z"}) + "\n" for n in range(size))


READERS = (
    Reader("steps", 8_000, of_log("scrape", lambda size: "".join(map(step, range(size))))),
    Reader("attempts in a summary", 1_000, of_log("summarize", attempts)),
    Reader("attempts in alerts", 1_000, of_log("alert --state state", attempts)),
    Reader("attempts in metrics", 1_000, of_log("prom -o out.prom", attempts)),
    Reader("secrets of addresses", 40_000, of_log("scrape", fault_of_addresses)),
    Reader("secrets of names", 40_000, of_log("scrape", lambda size: "RuntimeError: " + "password=a " * size + "\n")),
    Reader("a line", 2_000_000, of_log("tail-cause", lambda size: "ValueError: " + "x y " * size + "\n")),
    Reader("chained tracebacks", 2_000, of_log("tail-cause", chained_tracebacks)),
    Reader("faults of ranks", 2_000, of_log("scrape", faults_of_ranks)),
    Reader("labels", 30_000, of_log("scrape", labels)),
    Reader("a number", 500_000, of_log("scrape", long_numbers)),
    Reader("flight recordings", 100, flight_recordings),
    Reader("threads of a dump", 20_000, of_saved("stacks_rank_0.txt", "stuck", threads)),
    Reader("jobs of squeue", 6_000, of_saved("jobs.json", "slurm", jobs)),
    Reader("GPUs of a table", 10_000, of_saved("gpus.csv", "gpu", gpus)),
    Reader("names of tensors", 10_000, many_tensors),
    Reader("objects of a pickle", 15_000, large_pickle),
    Reader("words of a document", 400_000, of_corpus(lambda size: json.dumps({"text": "ab " * size}) + "\n")),
    Reader("a word", 1_000_000, of_corpus(lambda size: json.dumps({"text": "a" * size}) + "\n")),
    Reader("spaces", 250_000, of_corpus(lambda size: json.dumps({"text": " " * size}) + "\n")),
    Reader("bad lines", 10_000, of_corpus(lambda size: "bad\n" * size + '{"text": "a"}\n', "--on-error skip")),
    Reader("keys of a line", 50_000, of_corpus(keys_of_a_line)),
    Reader("files", 250, many_files),
    Reader("a vocabulary", 50_000, large_vocabulary),
    Reader("a number of YAML", 200_000, of_configuration("a.yaml", lambda size: f"num_layers: {'1' * size}\n")),
    Reader("keys of YAML", 1_000, of_configuration("a.yaml", lambda size: "".join(f"key{n}: {n}\n" for n in range(size)))),
    Reader("variables of a script", 500, of_configuration("a.sh", variables)),
    Reader("keys of TOML", 500, of_configuration("a.toml", lambda size: "".join(f"a.b.k{n} = {n}\n" for n in range(size)))),
    Reader("tables of TOML", 500, of_configuration("a.toml", lambda size: "".join(f"[t{n}]\na = 1\n" for n in range(size)))),
    Reader("assignments of Python", 1_000, of_configuration("a.py", lambda size: "a = 'x'\n" + "a = a + 'x'\n" * size)),
    Reader("anchors of YAML", 150, of_configuration("a.yaml", lambda size: "".join(f"k{n}: &k{n} [1]\n" for n in range(size)))),
    Reader("lines of a manifest", 3_000, manifest),
    Reader("metrics of a run", 5_000, metrics),
    Reader("lines of docker", 5_000, of_log("scrape", lines_of_docker)),
    Reader("rows of a table", 10_000, of_table),
    Reader("members of tar", 2_000, members_of_tar),
    Reader("headers of WARC", 5_000, headers_of_warc),
    Reader("row groups", 300, row_groups),
    Reader("files of tensors", 300, many_tensor_files),
    Reader("ranks of tiktoken", 20_000, ranks_of_tiktoken),
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_cost_grows_with_the_input(reader: Reader, tmp_path: Path) -> None:
    check(reader, tmp_path)
