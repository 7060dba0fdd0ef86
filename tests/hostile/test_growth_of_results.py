"""The cost of readers of results grows with their input: merges, orders of data, evaluations, records."""

import dataclasses
import json
import pickle
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy
import nursery
import pytest
from convert_models import TINY, write_model
from growth import Reader, check, of_log, step

from lt_shared.data import indexed_dataset
from lt_shared.data.sample_order import run_order, sample_losses
from lt_shared.data.sample_order.run_order import AttemptOrder, OrderedDataset

TOKENIZER = Path(__file__).parents[1] / "demo" / "tokenizer"
RESULTS = "results_2026-11-28T00-00-00.json"
TRAINING = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64"
    " --max-position-embeddings 64 --micro-batch-size 1 --train-iters 5"
)


def merged(*, with_file: bool) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        names = [f"model{number}" for number in range(size)]
        for name in names:
            write_model(directory / name)
        if not with_file:
            return f"lt-convert merge {' '.join(names)} --to hf -o out"
        models = "".join(f"  - model: {name}\n    parameters:\n      weight: 0.5\n" for name in names)
        (directory / "merge.yaml").write_text(f"merge_method: linear\ndtype: float32\nmodels:\n{models}")
        return "lt-convert merge --config merge.yaml --to hf -o out"

    return write


def filters(directory: Path, size: int) -> str:
    values = "".join(f"        - filter: f{number}\n          value: 0.5\n" for number in range(size))
    models = ""
    for name in ("a", "b"):
        write_model(directory / name)
        models += f"  - model: {name}\n    parameters:\n      weight:\n{values}        - value: 1\n"
    (directory / "merge.yaml").write_text(f"merge_method: linear\ndtype: float32\nmodels:\n{models}")
    return "lt-convert merge --config merge.yaml --to hf -o out"


def layers(directory: Path, size: int) -> str:
    write_model(directory / "hf", architecture=dataclasses.replace(TINY, num_layers=size))
    return "lt-convert hf --to torchtitan -o out"


def files_of_a_conversion(directory: Path, size: int) -> str:
    """The record of a conversion that has made one file more often than it has."""
    write_model(directory / "hf")
    words = ["-m", "lt_convert", "hf", "--to", "torchtitan", "-o", "out"]
    subprocess.run([nursery.light_python(), *words], cwd=directory, check=True, capture_output=True)
    record = json.loads((directory / "out/lt-convert.json").read_text())
    entry = next(iter(record["files"].values()))
    for number in range(size):
        record["files"][f"file{number}"] = entry
        (directory / f"out/file{number}").touch()
    (directory / "out/lt-convert.json").write_text(json.dumps(record))
    return "lt-convert verify out"


def dataset(prefix: Path) -> str:
    with indexed_dataset.Writer(str(prefix), numpy.uint16) as writer:
        writer.append_document(numpy.arange(400))
        writer.publish((f"{prefix}.json", json.dumps({"v": 2, "dataset": {"prefix": str(prefix)}}).encode()))
    return str(prefix)


def parts(directory: Path, size: int) -> str:
    prefixes = [dataset(directory / f"part{number}_text_document") for number in range(size)]
    return f"lt-preprocess merge {' '.join(prefixes)} -o out"


def order(directory: Path, steps: int) -> AttemptOrder:
    """Of a run in `directory`/run, whose log has `steps` steps."""
    (directory / "run").mkdir()
    (directory / "run/train.log").write_text("".join(step(number) for number in range(1, steps + 1)))
    datasets = (OrderedDataset(dataset(directory / "data")),)
    return AttemptOrder(0, 0, 4 * steps, 7, 16, 4, steps, datasets, "1,0,0", None, None, ("--save", "run", "-"))


def attempts(directory: Path, size: int) -> str:
    first = order(directory, 60)
    later = [dataclasses.replace(first, step=number % 60, consumed_samples=number % 60 * 4) for number in range(1, size)]
    (directory / "run" / run_order.FILE).write_text("".join(f"{run_order.line(attempt)}\n" for attempt in (first, *later)))
    return "lt-monitor blame run --step 3"


def losses_of_samples(directory: Path, size: int) -> str:
    attempt = order(directory, size)
    (directory / "run" / run_order.FILE).write_text(f"{run_order.line(attempt)}\n")
    lines = [sample_losses.line(number, 4 * number - 4, [4.0, 4.1, 4.2, 4.3]) for number in range(1, size + 1)]
    (directory / "run" / sample_losses.FILE).write_text("".join(lines))
    return "lt-monitor blame run --spike"


def evaluations(checkpoints: Callable[[int], int], tasks: Callable[[int], int]) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        results = json.dumps({"results": {f"task{number}": {"acc,none": 0.5} for number in range(tasks(size))}, "date": 1.0})
        for number in range(checkpoints(size)):
            (directory / f"evals/step-{number}").mkdir(parents=True)
            (directory / f"evals/step-{number}" / RESULTS).write_text(results)
        return of_log("plot --evals evals", lambda _: "".join(map(step, range(100))))(directory, size)

    return write


def runs(directory: Path, size: int) -> str:
    names = [f"run{number}.log" for number in range(size)]
    for name in names:
        (directory / name).write_text("".join(map(step, range(3))))
    return f"lt-monitor runs {' '.join(names)}"


def collectives(directory: Path, size: int) -> str:
    entry = {
        "pg_id": 0, "process_group": ("0", "default_pg"), "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1, "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "completed", "time_discovered_started_ns": 1, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 600000, "is_p2p": False, "frames": [],
    }  # fmt: skip
    entries = [entry | {"record_id": number, "collective_seq_id": number, "op_id": number} for number in range(size)]
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    content = pickle.dumps({"version": "2.4", "pg_config": group, "pg_status": {}, "entries": entries})
    for rank in range(2):
        (directory / f"nccl_trace_rank_{rank}").write_bytes(content)
    return "lt-monitor stuck ."


def added_tokens(directory: Path, size: int) -> str:
    vocabulary = json.loads((TOKENIZER / "vocab.json").read_text())
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    merges = (TOKENIZER / "merges.txt").read_text().splitlines()[1:]
    document = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [token | {"id": len(vocabulary) + n, "content": f"<|x{n}|>"} for n in range(size)],
        "pre_tokenizer": byte_level, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }  # fmt: skip
    (directory / "tokenizer").mkdir()
    (directory / "tokenizer/tokenizer.json").write_text(json.dumps(document))
    (directory / "a.jsonl").write_text(json.dumps({"text": "<|x1|> abc " * 50}) + "\n")
    return "lt-preprocess a.jsonl --tokenizer tokenizer --workers 1 -o out"


def shards_of_mds(directory: Path, size: int) -> str:
    (directory / "texts").mkdir()
    sample = struct.pack("<I", 1) + b"a"
    content = struct.pack("<III", 1, 12, 12 + len(sample)) + sample
    shard = {"version": 2, "format": "mds", "samples": 1, "column_names": ["text"], "column_encodings": ["str"]}
    shard |= {"column_sizes": [None], "compression": None, "hashes": [], "size_limit": 100, "zip_data": None}
    names = [f"shard.{number}.mds" for number in range(size)]
    for name in names:
        (directory / "texts" / name).write_bytes(content)
    shards = [shard | {"raw_data": {"basename": name, "bytes": len(content), "hashes": {}}} for name in names]
    (directory / "texts/index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return f"lt-preprocess texts --tokenizer {TOKENIZER} --workers 1 -o out"


def of_script(content: Callable[[int], str], option: str) -> Callable[[Path, int], str]:
    def write(directory: Path, size: int) -> str:
        (directory / "a.sh").write_text(f"{content(size)}\n{TRAINING} {option}\n")
        return "lt-train import a.sh --partial"

    return write


READERS = (
    Reader("models of a merge", 10, merged(with_file=False)),
    Reader("models of mergekit", 40, merged(with_file=True)),
    Reader("filters of mergekit", 800, filters),
    Reader("layers", 40, layers),
    Reader("files of a conversion", 500, files_of_a_conversion),
    Reader("parts of a dataset", 150, parts),
    Reader("attempts of an order", 3_000, attempts),
    Reader("losses of samples", 2_000, losses_of_samples),
    Reader("evaluations", 200, evaluations(lambda size: size, lambda _: 1)),
    Reader("tasks of an evaluation", 3_000, evaluations(lambda _: 1, lambda size: size)),
    Reader("runs", 100, runs),
    Reader("collectives of a flight recording", 2_000, collectives),
    Reader("added tokens", 3_000, added_tokens),
    Reader("shards of MDS", 300, shards_of_mds),
    # 2 to the power of the size, if they were followed.
    Reader("doubled variables", 12, of_script(lambda size: "A=x\n" + "A=$A$A\n" * size, "--tensorboard-dir $A")),
    Reader("doubled arrays", 12, of_script(lambda size: "A=(x)\n" + "A=(${A[@]} ${A[@]})\n" * size, "${A[@]}")),
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_cost_grows_with_the_input(reader: Reader, tmp_path: Path) -> None:
    check(reader, tmp_path)
