"""Resolve an imported configuration with lt-train's checks, and read the model size from its name.

The checks assume the smallest number of GPUs that the parallel sizes need, because a configuration does not state the number.
"""

import math
import re
import tempfile
from pathlib import Path

import click

from lt_shared.console import UsageError
from lt_train.config import cluster
from lt_train.config.draft import assemble
from lt_train.config.options import schema
from lt_train.config.run_config import RunConfig
from lt_train.importers.ledger import Translation

PARALLEL_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_distributed_optimizer_instances",
)
# Options that name files on the other machine, or a length that follows from data.
OF_MACHINES = ("data_path", "train_data_path", "valid_data_path", "test_data_path", "split")
STATED_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")


def resolve(translation: Translation) -> RunConfig:
    """Resolve the translation like `lt-train --config` resolves the written file. Raises ToolError if lt-train rejects it."""
    left_out = OF_MACHINES if not translation.options.get("mock_data") else (*OF_MACHINES, "mock_data")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "imported.toml")
        file.write_text(translation.without(left_out).toml())
        # Which directory a run saves to is often known on the machine alone.
        words = [] if translation.options.get("save") else ["--save", str(Path(directory, "run"))]
        try:
            options = schema().make_context("lt-train", ["--config", str(file), "--mock-data", *words]).params
        except click.UsageError as error:
            raise UsageError(error.format_message()) from None
    for name in ("data", "dry_run", "as_json"):
        options.pop(name, None)
    ranks = math.prod(int(translation.options.get(size) or 1) for size in PARALLEL_SIZES)
    return assemble(options, (), cluster.Cluster(None, 1, ranks))


def stated_size(*names: str) -> str | None:
    """Return the model size in the first name that has one: "8b" in "llama3_8b.yaml", "8x7b" in "mixtral_8x7b"."""
    for name in names:
        match = STATED_SIZE.search(re.sub(r"[_\-/ ]", " ", name.lower()))
        if match:
            return match[0]
    return None
