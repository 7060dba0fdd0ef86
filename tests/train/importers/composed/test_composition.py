"""YAML that other programs compose: each file is written here in their form, and the options are counted by hand."""

import os
from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import ToolError
from lt_train.commands import importing
from lt_train.importers import source
from lt_train.importers.effects import Effect


def options(path: Path, **values: str) -> dict[str, Any]:
    """The options of a configuration, as the command would write them. Raises ToolError as the command."""
    translation = source.translate_file(str(path), {key.replace("__", "."): value for key, value in values.items()})
    problem = importing._model_problem(translation, str(path))
    if problem:
        raise problem
    record: dict[str, Any] = translation.record()["options"]
    return record


def refusal(path: Path, **values: str) -> str:
    try:
        options(path, **values)
    except ToolError as error:
        return f"{error}\n{error.hint}"
    return ""


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


PRIMUS = {
    "primus/configs/modules/megatron/base.yaml": "micro_batch_size: 2\nbf16: true\nstderr_sink_level: INFO\nlr: 2.0e-5\n"
    "frob_level: 3\n"
    "min_lr: 0.0\nlr_decay_style: cosine\neval_iters: 0\nmasked_softmax_fusion: true\nadd_bias_linear: true\n",
    "primus/configs/modules/megatron/pre_trainer.yaml": "extends:\n  - base.yaml\ntrain_iters: 1000\nglobal_batch_size: 16\n"
    "use_distributed_optimizer: true\n",
    "primus/configs/models/megatron/llama_base.yaml": "swiglu: true\nadd_bias_linear: false\nnormalization: RMSNorm\n"
    "position_embedding_type: rope\nhidden_dropout: 0.0\nattention_dropout: 0.0\nuntie_embeddings_and_output_weights: true\n",
    "primus/configs/models/megatron/small.yaml": "extends: [llama_base.yaml]\nnum_layers: 4\nhidden_size: 128\n"
    "ffn_hidden_size: 384\n"
    "num_attention_heads: 4\nvocab_size: 512\nmax_position_embeddings: 256\nrotary_scaling_factor: 40\n",
    "primus/configs/modules/torchtitan/pre_trainer.yaml": "training: {local_batch_size: 8, seq_len: 2048, steps: 10000}\n"
    "optimizer: {name: AdamW, lr: 0.0008}\nprimus_turbo: {enable_primus_turbo: true}\n",
    "primus/configs/models/torchtitan/llama3_8B.yaml": "model: {name: llama3, flavor: 8B, converters: [primus_turbo]}\n"
    "job: {dump_folder: ./out}\n",
    "examples/one.yaml": "work_group: ${TEAM:amd}\nmodules:\n  pre_trainer:\n"
    "    framework: megatron\n    config: pre_trainer.yaml\n"
    "    model: ${MODEL:small}.yaml\n    overrides:\n"
    "      train_iters: 50\n      seq_length: 256\n      lr: ${LR:1.0e-4}\n"
    "      stderr_sink_level: DEBUG\n",
    "examples/titan.yaml": "modules:\n  pre_trainer:\n    framework: torchtitan\n"
    "    config: pre_trainer.yaml\n    model: llama3_8B.yaml\n"
    "    overrides:\n"
    "      training: {steps: 50, seq_len: 8192, mock_data: true, global_batch_size: 64}\n"
    "      debug: {seed: 3}\n",
}


def test_primus_extends_presets(tmp_path: Path) -> None:
    write(tmp_path, PRIMUS)
    found = options(tmp_path / "examples/one.yaml", global_batch_size="32")
    expected = {
        "num-layers": 4,
        "hidden-size": 128,
        "ffn-hidden-size": 384,
        "vocab-size": 512,
        "train-iters": 50,
        "seq-length": 256,
        "lr": 1e-4,
        "min-lr": 0.0,
        "global-batch-size": 32,
        "micro-batch-size": 2,
        "swiglu": True,
        "disable-bias-linear": True,
        "lr-decay-style": "cosine",
        "eval-iters": 0,
        "use-distributed-optimizer": True,
        "bf16": True,
        "hidden-dropout": 0.0,
    }
    assert {name: found.get(name) for name in expected} == expected
    titan = options(tmp_path / "examples/titan.yaml")
    wanted = {"train-iters": 50, "seq-length": 8192, "micro-batch-size": 8, "global-batch-size": 64, "lr": 8e-4, "seed": 3}
    assert {name: titan.get(name) for name in wanted} == wanted and titan["model"] == "llama3.1-8b"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("framework: megatron", "framework: maxtext", "framework maxtext: lt-train reads those of megatron and torchtitan"),
        ("${MODEL:small}", "none", "none.yaml, which is not there"),
        ("${MODEL:small}", "../../../../../etc/x", "outside of"),
        ("train_iters: 50", "frob_level: 4", "without frob_level"),
        ("pre_trainer:", "post_trainer:", "lt-train pretrains, with one module pre_trainer"),
        ("train_iters: 50", "dataloader_type: cyclic", "without dataloader_type"),
    ],
)
def test_primus_refusals(old: str, new: str, error: str, tmp_path: Path) -> None:
    write(tmp_path, PRIMUS | {"examples/one.yaml": PRIMUS["examples/one.yaml"].replace(old, new)})
    assert error in refusal(tmp_path / "examples/one.yaml")


def test_a_preset_that_blocks_or_is_huge_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PRIMUS)
    preset = tmp_path / "primus/configs/models/megatron/llama_base.yaml"
    preset.unlink()
    os.mkfifo(preset)
    assert "no regular file" in refusal(tmp_path / "examples/one.yaml")
    preset.unlink()
    preset.write_text("a: 1\n" * 1_000_000)
    assert "no regular file of up to 2,000,000 bytes" in refusal(tmp_path / "examples/one.yaml")


def test_presets_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, PRIMUS | {"primus/configs/models/megatron/llama_base.yaml": "extends: [small.yaml]\n"})
    assert "extend each other too deeply" in refusal(tmp_path / "examples/one.yaml")


AUTOEXP = {
    "config/autoexp.yaml": "defaults: [{backend: megatron}, _self_]\n",
    "config/backend/megatron.yaml": "defaults: [{megatron: base}, _self_]\n"
    "launcher_script: ./submodules/Megatron-LM/pretrain_gpt.py\n",
    "config/backend/megatron/defaults.yaml": "add_bias_linear: true\nlr_warmup_samples: 0\nswiglu: false\n"
    "bert_binary_head: true\n"
    "micro_batch_size: null\nhidden_dropout: 0.1\n",
    "config/backend/megatron/base.yaml": "defaults: [defaults, _self_]\nmicro_batch_size: 4\nglobal_batch_size: 64\nlr: 0.001\n"
    "train_iters: 500\nlr_warmup_iters: ${oc.divi:${.train_iters},10}\nlr_decay_style: WSD\nlr_wsd_decay_iters: 50\nbf16: true\n",
    "config/backend/megatron/small.yaml": "num_layers: 4\nhidden_size: 128\nffn_hidden_size: 384\n"
    "num_attention_heads: 4\nswiglu: true\n"
    "add_bias_linear: false\nnormalization: RMSNorm\nposition_embedding_type: rope\nseq_length: 256\n"
    "max_position_embeddings: ${backend.megatron.seq_length}\nhidden_dropout: 0.0\nattention_dropout: 0.0\n",
    "config/experiments/base.yaml": "# @package _global_\njob: {name: base}\n",
    "config/experiments/one.yaml": "defaults:\n  - base\n  - /backend: megatron\n  - /slurm: somewhere\n"
    "  - /backend/megatron: [small]\n"
    "  - _self_\nbackend:\n  megatron: {train_iters: 200, seq_length: 512, data_path: ['${oc.env:DATA}/a']}\n",
}


def test_hydra_defaults_are_merged_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, AUTOEXP)
    found = options(tmp_path / "config/experiments/one.yaml", backend__megatron__lr="0.002")
    expected = {
        "num-layers": 4,
        "hidden-size": 128,
        "micro-batch-size": 4,
        "global-batch-size": 64,
        "train-iters": 200,
        "lr": 0.002,
        "seq-length": 512,
        "max-position-embeddings": 512,
        "lr-warmup-iters": 20,
        "lr-wsd-decay-iters": 50,
        "swiglu": True,
        "disable-bias-linear": True,
        "hidden-dropout": 0.0,
        "lr-decay-style": "WSD",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_a_sweep_is_refused(tmp_path: Path) -> None:
    text = AUTOEXP["config/experiments/one.yaml"] + "sweep: {type: grid, grids: [{lr: [1, 2]}]}\n"
    write(tmp_path, AUTOEXP | {"config/experiments/one.yaml": text})
    assert "a sweep trains several models" in refusal(tmp_path / "config/experiments/one.yaml")


FUNCTIONAL = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --max-position-embeddings: 1024
  --train-iters: 50
  --lr: 0.00015
  --min-lr: 1.0e-5
  --weight-decay: 1e-2
  --lr-warmup-fraction: .01
  --save: ${CHECKPOINT_SAVE_PATH}
  --data-path: ${DATA_PATH}/my_text_document
  --split: 949,50,1
  --bf16: true
  --sequence-parallel: true
TEST_TYPE: regular
"""


def test_a_functional_test_of_megatron_lm(tmp_path: Path) -> None:
    file = tmp_path / "model_config.yaml"
    file.write_text(FUNCTIONAL)
    found = options(file, CHECKPOINT_SAVE_PATH="/c", DATA_PATH="/d")
    expected = {
        "num-layers": 12,
        "lr": 0.00015,
        "min-lr": 1e-5,
        "weight-decay": 0.01,
        "lr-warmup-fraction": 0.01,
        "save": "/c",
        "data-path": ["/d/my_text_document"],
        "split": "949,50,1",
        "bf16": True,
    }
    assert {name: found.get(name) for name in expected} == expected
    file.write_text(FUNCTIONAL.replace("--save:", "--load:"))
    assert "CHECKPOINT_SAVE_PATH: only a run of the script" in refusal(file)
    file.write_text(f"{FUNCTIONAL}MODE: inference\n")
    assert "MODE: inference: lt-train pretrains" in refusal(file)
    file.write_text(f"{FUNCTIONAL}MODEL_ARGS_2: {{--lr: 1}}\n")
    assert "the test trains several times" in refusal(file)


NANOTRON = """
checkpoints: {checkpoint_interval: 100, checkpoints_path: run, resume_checkpoint_path: null}
general: {project: x, run: y, seed: 7, step: null}
data_stages: [{data: {dataset: null, seed: 7}, name: one, start_training_step: 1}]
logging: {iteration_step_info_interval: 1, log_level: info}
model:
  dtype: bfloat16
  init_method: {std: 0.025}
  model_config:
    {is_llama_config: true, hidden_act: silu, hidden_size: 128, intermediate_size: 384, max_position_embeddings: 256,
     num_attention_heads: 4, num_hidden_layers: 4, num_key_value_heads: 2, rms_norm_eps: 1.0e-05, rope_scaling: null,
     rope_theta: 10000.0, tie_word_embeddings: true, vocab_size: 512, use_cache: true}
optimizer:
  clip_grad: 1.0
  weight_decay: 0.01
  zero_stage: 1
  accumulate_grad_in_fp32: true
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08, torch_adam_is_fused: true}
  learning_rate_scheduler:
    {learning_rate: 0.0003, lr_decay_starting_step: 80, lr_decay_steps: 20, lr_decay_style: linear, lr_warmup_steps: 10,
     lr_warmup_style: linear, min_decay_lr: 1.0e-05}
parallelism: {dp: 2, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b, tp_linear_async_communication: true}
tokenizer: {tokenizer_name_or_path: x}
tokens: {batch_accumulation_per_replica: 3, micro_batch_size: 4, sequence_length: 256, train_steps: 100, val_check_interval: -1,
         limit_val_batches: 0, limit_test_batches: 0}
"""


def test_nanotron(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(NANOTRON)
    found = options(file, optimizer__weight_decay="0.1")
    expected = {
        # 4 sequences x 3 accumulated x 2 replicas.
        "micro-batch-size": 4,
        "global-batch-size": 24,
        "seq-length": 256,
        "train-iters": 100,
        "eval-iters": 0,
        "seed": 7,
        "num-layers": 4,
        "hidden-size": 128,
        "ffn-hidden-size": 384,
        "num-query-groups": 2,
        "vocab-size": 512,
        "swiglu": True,
        "lr": 3e-4,
        "min-lr": 1e-5,
        "lr-warmup-iters": 10,
        "lr-decay-style": "WSD",
        "lr-wsd-decay-style": "linear",
        "lr-wsd-decay-iters": 20,
        "lr-decay-iters": 100,
        "weight-decay": 0.1,
        "adam-beta2": 0.95,
        "save": "run",
        "tensor-model-parallel-size": 2,
        "sequence-parallel": True,
        "use-distributed-optimizer": True,
        "bf16": True,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "untie-embeddings-and-output-weights" not in found


def test_nanotron_reads_no_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        NANOTRON.replace("val_check_interval: -1", "val_check_interval: 5").replace(
            "limit_val_batches: 0", "limit_val_batches: 2"
        )
    )
    translation = source.translate_file(str(file), {})
    found = translation.record()["options"]
    assert (found["eval-iters"], "eval-interval" in found) == (0, False)
    assert [entry.key for entry in translation.lost(Effect.RESULT) if "val" in entry.key] == ["tokens.limit_val_batches"]
    # Without a length, 100 steps less 10 of warm-up and the 80 before the decay: the last 10 steps are at the lowest rate.
    file.write_text(NANOTRON.replace("lr_decay_steps: 20", "lr_decay_steps: null"))
    found = options(file)
    assert (found["lr-wsd-decay-iters"], found["lr-decay-iters"]) == (10, 90)
    # Without a lowest rate the decay ends where it begins.
    file.write_text(NANOTRON.replace("min_decay_lr: 1.0e-05", "min_decay_lr: null"))
    assert options(file)["min-lr"] == 3e-4


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("is_llama_config: true", "is_mamba_config: true", "no model like Llama"),
        ("rope_scaling: null", "rope_scaling: {factor: 8}", "without"),
        ("resume_checkpoint_path: null", "resume_checkpoint_path: other", "without checkpoints.resume_checkpoint_path"),
        ("name: adamW", "name: sgd", "without optimizer.optimizer_factory.name"),
        ("std: 0.025", "path: weights", "without model.init_method.path"),
        ("micro_batch_size: 4", "micro_batch_size: many", "tokens.micro_batch_size: 'many' is no number"),
        ("lr_warmup_style: linear", "lr_warmup_style: constant", "without"),
    ],
)
def test_nanotron_refusals(old: str, new: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(NANOTRON.replace(old, new))
    assert error in refusal(file)


def test_a_job_of_hyp_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    job = "template: hyp-pytorch-job\nversion: 1.0\njob_name: x\nimage: y\nnode_count: 2\nmodel: {name: gpt}\n"
    file.write_text(job)
    assert "a job of HyperPod's hyp (hyp-pytorch-job)" in refusal(file)
    shape = "--num-layers, 4, --hidden-size, 64, --num-attention-heads, 4, --seq-length, 64, --max-position-embeddings, 64"
    file.write_text(
        f"{job}command: [torchrun]\nargs: [pretrain_gpt.py, {shape}, --micro-batch-size, 1, --train-iters, 5, --lr, 1e-4]\n"
    )
    assert options(file)["num-layers"] == 4
