"""The cost of readers of streams, archives, queues and settings grows with their input."""

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
import zstandard
from convert_models import write_model
from growth import Reader, check, of_log, step
from pyarrow import parquet

TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"
TOKENIZE = f"--tokenizer {TOKENIZER} --workers 1 -o out"
DOCUMENT = b'{"text": "a"}\n'


def of_bytes(name: str, content: Callable[[int], bytes], options: str = "") -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / name).write_bytes(content(size))
        return f"lt-preprocess {name} {TOKENIZE} {options}"

    return write


def nested_brackets(directory: Path, size: int) -> str:
    line = b'{"text": "a", "b": ' + b"[" * size + b"\n"
    return of_bytes("a.jsonl", lambda _: DOCUMENT + line, "--on-error skip")(directory, size)


def of_queue(content: Callable[[int], str]) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / "jobs.txt").write_text(content(size))
        return "lt-monitor slurm jobs.txt"

    return write


def squeue(size: int) -> str:
    header = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
    return header + "".join(
        f"{number:18d}     debug    train    user  R       0:01      1 n[1-{number}]\n" for number in range(size)
    )


def scontrol(size: int) -> str:
    fields = "JobName=train UserId=a(0) JobState=RUNNING NodeList=n1 NumNodes=1 StdOut=/a/%j.out TRES=" + "cpu=1," * 50
    return "".join(f"JobId={number} {fields}\n" for number in range(1, size + 1))


def sacct(size: int) -> str:
    header = "JobIDRaw|JobID|JobName|State|ExitCode|Submit|Start|End|NNodes|NodeList|User|Partition|WorkDir\n"
    row = "train|RUNNING|0:0|2026-11-28T10:00:00|2026-11-28T10:00:00|Unknown|1|n1|a|debug|/a\n"
    return header + "".join(f"{number}|{number}|{row}" for number in range(1, size + 1))


def reasons(size: int) -> str:
    """A job whose fields have many equals signs."""
    return "JobId=7 JobName=" + "a= " * size + "JobState=RUNNING\n"


def parts_of_a_line(size: int) -> str:
    part = "2026-11-28T10:00:00.000000000Z stderr P " + "x" * 100 + "\n"
    return part * size + "2026-11-28T10:00:00.000000000Z stderr F RuntimeError: x\n"


def lines_of_containers(size: int) -> str:
    return "".join(f"2026-11-28T10:00:00.000000000Z stderr F {step(number)}" for number in range(size))


def user_patterns(directory: Path, size: int) -> str:
    (directory / "patterns.toml").write_text(
        "[[step]]\npattern = 'update (?P<step>\\d+) of (?P<total_steps>\\d+), loss (?P<loss>\\S+)'\n"
        + "[[fault]]\npattern = 'loader (?:\\w+ )*ran out'\n"
    )
    lines = "".join(f"update {number} of 100, loss 2.5\nloader a b c d\n" for number in range(size))
    return of_log("scrape --patterns patterns.toml", lambda _: lines)(directory, size)


def many_logs(command: str) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / "logs").mkdir()
        for number in range(size):
            (directory / f"logs/rank{number}.log").write_text(step(1) + step(2))
        return f"lt-monitor {command} logs"

    return write


def columns_of_parquet(directory: Path, size: int) -> str:
    columns = {"text": ["a"]} | {f"c{number}": [number] for number in range(size)}
    parquet.write_table(pyarrow.table(columns), directory / "a.parquet")
    return f"lt-preprocess a.parquet {TOKENIZE}"


def quantized(content: Callable[[int], dict[str, object]]) -> Callable[[Path, int], str]:
    """A model with this quantization_config."""

    def write(directory: Path, size: int) -> str:
        header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (directory / "hf").mkdir()
        (directory / "hf/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        config |= {"intermediate_size": 8, "vocab_size": 10, "rms_norm_eps": 1e-6, "max_position_embeddings": 8}
        (directory / "hf/config.json").write_text(json.dumps(config | {"quantization_config": content(size)}))
        return "lt-convert hf --to megatron-dist -o out"

    return write


def compressed_tensors(size: int) -> dict[str, object]:
    groups = {f"group_{number}": {"targets": [f"re:.*{number}.*"], "weights": {"num_bits": 8}} for number in range(size)}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": [f"re:.*{number}" for number in range(size)]}


def fp8(size: int) -> dict[str, object]:
    ignored = [f"model.layers.{number}.mlp.gate" for number in range(size)]
    return {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ignored}


def adapted(directory: Path, size: int) -> str:
    """An adapter with a key of alpha_pattern for each module, for a model without these modules: it is read and refused."""
    write_model(directory / "hf")
    names = [f"model.layers.{number}.self_attn.q_proj" for number in range(size)]
    header = {}
    for place, name in enumerate(names):
        for letter, shape in (("A", [1, 4]), ("B", [4, 1])):
            offset = 32 * place + 16 * (letter == "B")
            header[f"base_model.model.{name}.lora_{letter}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 16],
            }  # fmt: skip
    encoded = json.dumps(header).encode()
    (directory / "adapter").mkdir()
    (directory / "adapter/adapter_model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(32 * size))
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "alpha_pattern": dict.fromkeys(names, 2)}
    (directory / "adapter/adapter_config.json").write_text(json.dumps(config))
    return "lt-convert merge hf --adapter adapter --to hf -o out"


def phases(directory: Path, size: int) -> str:
    entries = [{"name": f"p{number}", "samples": 4, "weights": {"a_text_document": 1.0}} for number in range(size)]
    (directory / "phases.json").write_text(json.dumps({"phases": entries}))
    words = "--model tiny --device cpu --ranks 1 --global-batch-size 4 --data-schedule phases.json --dry-run"
    return f"lt-train {words} {directory}/a_text_document"


READERS = (
    Reader("members of gzip", 3_000, of_bytes("a.jsonl.gz", lambda size: gzip.compress(DOCUMENT) * size)),
    Reader("frames of zstd", 3_000, of_bytes("a.jsonl.zst", lambda size: zstandard.compress(DOCUMENT) * size)),
    Reader("streams of xz", 2_000, of_bytes("a.jsonl.xz", lambda size: lzma.compress(DOCUMENT) * size)),
    Reader("streams of bzip2", 2_000, of_bytes("a.jsonl.bz2", lambda size: bz2.compress(DOCUMENT) * size)),
    Reader("nested brackets", 50_000, nested_brackets),
    Reader("escapes", 300_000, of_bytes("a.jsonl", lambda size: b'{"text": "' + b"\\u0061" * size + b'"}\n')),
    Reader("a quoted field", 500_000, of_bytes("a.csv", lambda size: b'text\n"' + b"a,\n" * size, "--on-error skip")),
    Reader("columns of a table", 3_000, of_bytes("a.csv", lambda size: b"text" + b",c" * size + b"\na" + b",1" * size + b"\n")),
    Reader("columns of Parquet", 1_000, columns_of_parquet),
    Reader("empty lines", 2_000_000, of_bytes("a.jsonl", lambda size: DOCUMENT + b"\n" * size)),
    Reader("marks of special tokens", 300_000, of_bytes("a.jsonl", lambda size: b'{"text": "' + b"<|endof" * size + b'"}\n')),
    Reader("letters with marks", 200_000, of_bytes("a.jsonl", lambda size: b'{"text": "e' + b"\\u0301\\u0323" * size + b'"}\n')),
    Reader("squeue", 8_000, of_queue(squeue)),
    Reader("scontrol", 4_000, of_queue(scontrol)),
    Reader("sacct", 8_000, of_queue(sacct)),
    Reader("fields of a job", 50_000, of_queue(reasons)),
    Reader("parts of a line", 20_000, of_log("tail-cause", parts_of_a_line)),
    Reader("lines of containers", 8_000, of_log("scrape", lines_of_containers)),
    Reader("a user's patterns", 10_000, user_patterns),
    Reader("logs of ranks", 300, many_logs("summarize")),
    Reader("logs of a job", 300, many_logs("tail-cause")),
    Reader("compressed-tensors", 20_000, quantized(compressed_tensors)),
    Reader("fp8", 20_000, quantized(fp8)),
    Reader("keys of an adapter", 1_500, adapted),
    Reader("phases", 500, phases),
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_cost_grows_with_the_input(reader: Reader, tmp_path: Path) -> None:
    check(reader, tmp_path)
