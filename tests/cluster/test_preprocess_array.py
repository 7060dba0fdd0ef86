"""lt-preprocess as an array job of a real Slurm: a shard of the input per task, then one dataset of them."""

from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[2] / "tests/demo"
TOKENIZE = f"lt-preprocess {DEMO}/corpus.jsonl.zst --tokenizer {DEMO}/tokenizer --append-eod"


def test_an_array_and_a_merge_make_the_dataset_of_one_run(slurm: Any, tmp_path: Path) -> None:
    shards = slurm.submit(tmp_path, f"{TOKENIZE} --shard auto -o shard", "--array=0-2", "-o", "shard-%a.out")
    merge = "lt-preprocess merge 'shard-*-of-00003_text_document' -o merged_text_document"
    merged = slurm.submit(tmp_path, merge, f"--dependency=afterok:{shards}", "-o", "merge.out")
    whole = slurm.submit(tmp_path, f"{TOKENIZE} -o whole", "-o", "whole.out")
    slurm.finish(whole, tmp_path / "whole.out")
    slurm.finish(merged, tmp_path / "merge.out")
    for suffix in ("bin", "idx"):
        one, other = (tmp_path / f"{name}_text_document.{suffix}" for name in ("merged", "whole"))
        assert one.read_bytes() == other.read_bytes()
    assert all((tmp_path / f"shard-{task}.out").read_text().count('"kind":"dataset"') == 1 for task in range(3))
