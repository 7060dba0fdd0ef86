"""Flag before environment before config file before preset."""

import json
from pathlib import Path
from typing import Any

from running import train

from lt_shared.contracts.manifest import Dataset


def plan(dataset: Dataset, *options: str, **variables: str) -> dict[str, Any]:
    result = train("--device", "cpu", "--dry-run", *options, dataset.prefix, **variables)
    # 78: a large model does not fit into this machine, but the plan is printed.
    assert result.code in (0, 78), result.err
    record: dict[str, Any] = json.loads(result.out)
    return record


def test_order_of_precedence(tmp_path: Path, dataset: Dataset) -> None:
    config = tmp_path / "run.toml"
    config.write_text('model = "tiny"\nseq-length = 96\nlr = 0.5\nmicro_batch_size = 3\n')
    from_file = plan(dataset, "--config", str(config))
    assert (from_file["batches"]["seq_length"], from_file["batches"]["micro_batch_size"]) == (96, 3)
    assert from_file["optimization"]["lr"] == 0.5
    assert from_file["architecture"]["hidden_size"] == 128
    from_environment = plan(dataset, "--config", str(config), LT_TRAIN_SEQ_LENGTH="64", LT_TRAIN_HIDDEN_SIZE="256")
    assert (from_environment["batches"]["seq_length"], from_environment["architecture"]["hidden_size"]) == (64, 256)
    from_flag = plan(dataset, "--config", str(config), "--seq-length", "32", LT_TRAIN_SEQ_LENGTH="64")
    assert from_flag["batches"]["seq_length"] == 32


def test_unknown_key_in_a_config_file(tmp_path: Path, dataset: Dataset) -> None:
    config = tmp_path / "run.toml"
    config.write_text("max-steps = 5\n")
    result = train("--config", str(config), dataset.prefix)
    assert (result.code, "max-steps" in result.err) == (78, True)
    config.write_text("global-batch-size = [4, 8]\n")
    result = train("--config", str(config), dataset.prefix)
    assert (result.code, "expected one value" in result.err) == (78, True)
    config.write_text("num-layers = 2.7\n")
    assert train("--config", str(config), dataset.prefix).code == 2
    config.write_text("= 5\n")
    assert train("--config", str(config), dataset.prefix).code == 78


def test_vocabulary_follows_the_data(dataset: Dataset) -> None:
    record = plan(dataset, "--model", "llama3.2-1b")
    assert record["architecture"]["vocab_size"] == 2048
    assert record["padded_vocab_size"] == 2048
    assert plan(dataset, "--model", "llama3.2-1b", "--vocab-size", "128256")["architecture"]["vocab_size"] == 128256


def test_derived_defaults(dataset: Dataset) -> None:
    record = plan(dataset, "--model", "llama3.1-8b", "--lr", "1e-3", "--train-iters", "500", "--ranks", "4")
    assert record["batches"]["seq_length"] == 8192
    assert record["batches"]["global_batch_size"] == 4
    assert record["optimization"]["min_lr"] == 1e-4
    assert (record["optimization"]["lr_warmup_samples"], record["optimization"]["lr_decay_samples"]) == (20, 2000)


def test_model_from_megatron_flags_alone(dataset: Dataset) -> None:
    llama = ("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear")
    sizes = ("--num-layers", "2", "--hidden-size", "96", "--num-attention-heads", "4", "--seq-length", "64")
    shape = plan(dataset, *llama, *sizes, "--untie-embeddings-and-output-weights", "--num-query-groups", "2")["architecture"]
    assert (shape["family"], shape["ffn_hidden_size"], shape["num_query_groups"]) == ("llama", 256, 2)
    assert not shape["tie_embeddings"]
    gpt = plan(dataset, *sizes)["architecture"]
    assert (gpt["family"], gpt["ffn_hidden_size"], gpt["tie_embeddings"]) == ("gpt", 384, True)


def test_heads_and_groups_of_a_preset_change_together(dataset: Dataset) -> None:
    shape = plan(dataset, "--model", "llama2-7b", "--num-attention-heads", "64")["architecture"]
    assert (shape["num_query_groups"], shape["kv_channels"]) == (64, 64)
