"""Configurations in Python as Megatron-Bridge, TorchTitan and NeMo have them: read, changed by --set, and refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import train

from lt_shared.console import ToolError
from lt_train.commands import importing
from lt_train.importers import source

BRIDGE = """
from megatron.bridge.training.config import (
    CheckpointConfig, ConfigContainer, GPTDatasetConfig, LoggerConfig, OptimizerConfig, RNGConfig, SchedulerConfig,
    TokenizerConfig, TrainingConfig, ValidationConfig,
)
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.core.distributed import DistributedDataParallelConfig
import torch.nn.functional as F
import os

LAYERS = {"small": 4, "large": 32}
COMMON = dict(hidden_dropout=0.0, attention_dropout=0.0)


def model(size: str, hidden: int = 64, **changes):
    return GPTModelProvider(
        num_layers=LAYERS[size], hidden_size=hidden, ffn_hidden_size=hidden * 3, num_attention_heads=4, num_query_groups=2,
        gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False, normalization="RMSNorm",
        position_embedding_type="rope", share_embeddings_and_output_weights=False, bias_activation_fusion=True,
        vocab_size=512, **COMMON, **changes,
    )


def small_pretrain_config(steps: int = 100) -> ConfigContainer:
    cfg = ConfigContainer(
        train=TrainingConfig(train_iters=steps, global_batch_size=8, micro_batch_size=1),
        validation=ValidationConfig(eval_iters=2, eval_interval=50),
        model=model("small", init_method_std=0.01),
        optimizer=OptimizerConfig(optimizer="adam", lr=3e-4, min_lr=0.1 * 3e-4, weight_decay=0.1, adam_beta2=0.95, bf16=True),
        scheduler=SchedulerConfig(
            lr_decay_style="cosine", lr_warmup_iters=steps // 10, start_weight_decay=0.033, end_weight_decay=0.033
        ),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True),
        dataset=GPTDatasetConfig(
            seq_length=64, random_seed=1234, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
            split="9,1,0", blend=[["a_text_document", "b_text_document"], [0.3, 0.7]], dataloader_type="single",
        ),
        logger=LoggerConfig(log_interval=10),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=512),
        checkpoint=CheckpointConfig(save=os.path.join(os.getcwd(), "run"), save_interval=50),
        rng=RNGConfig(seed=1234),
        mixed_precision="bf16_mixed",
    )
    cfg.model.seq_length = cfg.dataset.seq_length
    if cfg.model.num_layers > 2:
        cfg.train.train_iters *= 2
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        setattr(cfg.ddp, name, True)
    return cfg
"""
# What the recipe says, by hand: 100 steps, doubled because the model has more than two layers.
BRIDGE_OPTIONS: dict[str, Any] = {
    "train-iters": 200,
    "num-layers": 4,
    "hidden-size": 64,
    "ffn-hidden-size": 192,
    "num-attention-heads": 4,
    "num-query-groups": 2,
    "init-method-std": 0.01,
    "swiglu": True,
    "normalization": "RMSNorm",
    "disable-bias-linear": True,
    "untie-embeddings-and-output-weights": True,
    "position-embedding-type": "rope",
    "hidden-dropout": 0.0,
    "attention-dropout": 0.0,
    "vocab-size": 512,
    "seq-length": 64,
    "max-position-embeddings": 64,
    "global-batch-size": 8,
    "micro-batch-size": 1,
    "lr": 3e-4,
    "min-lr": 0.1 * 3e-4,
    "adam-beta2": 0.95,
    "lr-decay-style": "cosine",
    "lr-warmup-iters": 10,
    # OptimizerParamScheduler writes the scheduler's decay into the optimizer.
    "weight-decay": 0.033,
    "data-path": ["0.3", "a_text_document", "0.7", "b_text_document"],
    "split": "9,1,0",
    "save": "./run",
    "save-interval": 50,
    "eval-iters": 2,
    "eval-interval": 50,
    "bf16": True,
    "use-distributed-optimizer": True,
    "overlap-grad-reduce": True,
    "overlap-param-gather": True,
    "seed": 1234,
    "clip-grad": 1.0,
}

TITAN = """
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.common import FeedForward, GQAttention, Linear, RMSNorm, RoPE
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer


def _layers(count, dim):
    return [
        Llama3TransformerBlock.Config(
            attention=GQAttention.Config(
                n_heads=4, n_kv_heads=2, head_dim=None, qk_norm=None, param_init=i,
                rope=RoPE.Config(dim=dim // 4, max_context_length=4096, theta=500000, scaling="none"),
            ),
            feed_forward=FeedForward.Config(w1=Linear.Config(in_features=dim, out_features=3 * dim)),
        )
        for i in range(count)
    ]


def model_registry(flavor):
    dim, count = {"tiny": (64, 2), "small": (128, 4)}[flavor]
    model = Llama3Model.Config(
        dim=dim, layers=_layers(count, dim), norm=RMSNorm.Config(eps=1e-5), lm_head=Linear.Config(out_features=512)
    )
    return ModelSpec(name="llama3", flavor=flavor, model=model)


def small() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("small"),
        optimizer=OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 3e-4, "betas": (0.9, 0.95)})
            ]
        ),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2, decay_ratio=0.8, decay_type="cosine", min_lr_factor=0.1),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=4 * 256, num_tokens_per_train_step=64 * 256, max_context_length=256, steps=100
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        checkpoint=CheckpointManager.Config(enable=True, interval=50),
        activation_checkpoint=FullAC.Config(),
    )


def longer() -> Trainer.Config:
    config = small()
    config.training.steps = config.training.steps * 2
    return config
"""
TITAN_OPTIONS: dict[str, Any] = {
    "num-layers": 4,
    "hidden-size": 128,
    "ffn-hidden-size": 384,
    "num-attention-heads": 4,
    "num-query-groups": 2,
    "kv-channels": 32,
    "vocab-size": 512,
    "rotary-base": 500000,
    "untie-embeddings-and-output-weights": True,
    "seq-length": 256,
    "micro-batch-size": 4,
    "global-batch-size": 64,
    "train-iters": 200,
    "lr": 3e-4,
    "min-lr": 0.1 * 3e-4,
    "adam-beta2": 0.95,
    # torch.optim.AdamW's own.
    "weight-decay": 0.01,
    "lr-warmup-iters": 2,
    "lr-decay-style": "WSD",
    "lr-wsd-decay-style": "cosine",
    "lr-wsd-decay-iters": 160,
    "tensor-model-parallel-size": 2,
    "recompute-granularity": "full",
    "save": "./outputs/checkpoint",
    "save-interval": 50,
    "eval-iters": 0,
}
NEMO = """
import nemo_run as run
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections.llm.api import finetune, pretrain
from nemo.collections.llm.gpt.data.mock import MockDataModule
from nemo.collections.llm.gpt.model.llama import Llama3Config8B, LlamaModel
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler, MegatronOptimizerModule
from nemo.lightning.pytorch.plugins.mixed_precision import MegatronMixedPrecision
from nemo.utils.exp_manager import TimingCallback


@run.cli.factory(name="small")
def model():
    return run.Config(LlamaModel, config=run.Config(Llama3Config8B, num_layers=4))


@run.cli.factory(target=pretrain, name="small")
def pretrain_recipe(dir=None, name="default", num_nodes: int = 1, fn=pretrain) -> run.Partial:
    recipe = run.Partial(
        fn,
        model=model(),
        trainer=run.Config(
            nl.Trainer, max_steps=1000, limit_val_batches=32, val_check_interval=100, log_every_n_steps=5, num_nodes=num_nodes,
            callbacks=[run.Config(TimingCallback)], accumulate_grad_batches=1,
            plugins=run.Config(MegatronMixedPrecision, precision="bf16-mixed", grad_reduce_in_fp32=True),
            strategy=run.Config(
                nl.MegatronStrategy, tensor_model_parallel_size=2, sequence_parallel=True,
                ddp=run.Config(DistributedDataParallelConfig, overlap_grad_reduce=True),
            ),
        ),
        data=run.Config(MockDataModule, seq_length=2048, global_batch_size=64, micro_batch_size=2),
        optim=run.Config(
            MegatronOptimizerModule,
            config=run.Config(OptimizerConfig, optimizer="adam", lr=3e-4, weight_decay=0.1, adam_beta2=0.95, bf16=True,
                              use_distributed_optimizer=True, clip_grad=1.0),
            lr_scheduler=run.Config(CosineAnnealingScheduler, warmup_steps=50, constant_steps=100, min_lr=3e-5),
        ),
        log=run.Config(nl.NeMoLogger, name=name, log_dir=dir),
        resume=run.Config(nl.AutoResume, resume_if_exists=True),
    )
    recipe.model.config.hidden_size = 256
    recipe.model.config.ffn_hidden_size = 512
    recipe.model.config.num_attention_heads = recipe.model.config.num_query_groups = 8
    return recipe


def finetune_recipe():
    return pretrain_recipe(fn=finetune)


def from_weights():
    recipe = pretrain_recipe()
    recipe.resume.restore_config = run.Config(nl.RestoreConfig, path="nemo://llama")
    return recipe
"""
NEMO_OPTIONS: dict[str, Any] = {
    "num-layers": 4,
    "hidden-size": 256,
    "ffn-hidden-size": 512,
    "num-attention-heads": 8,
    "num-query-groups": 8,
    # Llama3Config's own.
    "rotary-base": 500000,
    "normalization": "RMSNorm",
    "swiglu": True,
    "hidden-dropout": 0.0,
    "seq-length": 2048,
    "global-batch-size": 64,
    "micro-batch-size": 2,
    "train-iters": 1000,
    "eval-iters": 32,
    "eval-interval": 100,
    "log-interval": 5,
    "lr": 3e-4,
    "min-lr": 3e-5,
    "weight-decay": 0.1,
    "lr-decay-style": "cosine",
    "lr-warmup-iters": 50,
    # The rate stays at its minimum for the last hundred steps.
    "lr-decay-iters": 900,
    "tensor-model-parallel-size": 2,
    "sequence-parallel": True,
    "use-distributed-optimizer": True,
    "overlap-grad-reduce": True,
    "bf16": True,
    "clip-grad": 1.0,
}


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.py"
    file.write_text(BRIDGE)
    return file


def options(path: Path | str, **values: str) -> dict[str, Any]:
    """The options of a configuration, as the command would write them. Raises ToolError as the command."""
    translation = source.translate_file(str(path), {key.replace("__", "."): value for key, value in values.items()})
    problem = importing._model_problem(translation, str(path))
    if problem:
        raise problem
    record: dict[str, Any] = translation.record()["options"]
    return record


def refusal(path: Path | str, **values: str) -> str:
    """The error and the hint of a configuration that is refused, or an empty text."""
    try:
        options(path, **values)
    except ToolError as error:
        return f"{error}\n{error.hint}"
    return ""


def test_a_recipe_of_megatron_bridge(bridge: Path) -> None:
    found = options(f"{bridge}:small_pretrain_config")
    assert {name: found.get(name) for name in BRIDGE_OPTIONS} == BRIDGE_OPTIONS


@pytest.mark.parametrize(
    ("text", "name", "expected"), [(TITAN, "longer", TITAN_OPTIONS), (NEMO, "pretrain_recipe", NEMO_OPTIONS)]
)
def test_recipes_of_torchtitan_and_nemo(text: str, name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(text)
    found = options(f"{file}:{name}")
    assert {option: found.get(option) for option in expected} == expected


@pytest.mark.parametrize(
    ("text", "name", "values", "error"),
    [
        (TITAN, "small", {"training__max_context_length": "300"}, "training.local_batch_size: only a run"),
        (TITAN, "small", {"optimizer__param_groups": "[{}, {}]"}, "without optimizer.name"),
        (TITAN.replace('name="llama3"', 'name="flux"').replace("Llama3Model", "Flux"), "small", {}, "no model: neither its name"),
        (NEMO, "finetune_recipe", {}, "finetune: lt-train pretrains"),
        (NEMO, "from_weights", {}, ""),
        (NEMO.replace("TimingCallback", "MegatronTokenDropCallback"), "pretrain_recipe", {}, "without peft.callbacks"),
        (NEMO.replace("CosineAnnealing", "Noam"), "pretrain_recipe", {}, "without scheduler.lr_decay_style"),
        (NEMO, "pretrain_recipe", {"trainer__limit_val_batches": "0.5"}, "validation.eval_iters: only a run"),
    ],
)
def test_what_lt_train_has_not_is_refused(text: str, name: str, values: dict[str, str], error: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(text)
    refused = refusal(f"{file}:{name}", **values)
    assert error in refused if error else not refused


def test_what_a_recipe_of_nemo_leaves_out_has_nemos_defaults(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(
        NEMO.replace("warmup_steps=50, constant_steps=100, min_lr=3e-5", "constant_steps=0")
        .replace("MockDataModule, seq_length=2048, global_batch_size=64, micro_batch_size=2", "MockDataModule")
        .replace("max_steps=1000", "max_steps=2000")
    )
    found = options(f"{file}:pretrain_recipe")
    names = ("seq-length", "micro-batch-size", "global-batch-size", "lr-warmup-iters", "min-lr")
    assert [found[name] for name in names] == [2048, 4, 8, 750, 6e-5]
    file.write_text(NEMO.replace("max_steps=1000, ", ""))
    assert "train.train_iters: only a run" in refusal(f"{file}:pretrain_recipe")
    file.write_text(NEMO.replace("limit_val_batches=32, ", ""))
    assert "validation.eval_iters: only a run" in refusal(f"{file}:pretrain_recipe")


def test_weights_that_nemo_restores_become_those_to_load(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(NEMO)
    found = options(f"{file}:from_weights")
    assert (found["load"], found["finetune"]) == ("nemo://llama", True)


def test_set_changes_keys_and_parameters(bridge: Path) -> None:
    changes = {"steps": "40", "train__global_batch_size": "16", "optimizer__lr": "1.0e-3", "model__num_layers": "2"}
    found = options(f"{bridge}:small_pretrain_config", **changes)
    assert (found["train-iters"], found["global-batch-size"], found["lr"], found["num-layers"]) == (80, 16, 1e-3, 2)


def test_scaled_rotary_positions(bridge: Path) -> None:
    bridge.write_text(BRIDGE.replace("vocab_size=512, **COMMON", "rope_scaling=True, rope_scaling_factor=32.0, **COMMON"))
    found = options(f"{bridge}:small_pretrain_config")
    assert (found["use-rope-scaling"], found["rope-scaling-factor"]) == (True, 32.0)


def test_a_variable_may_hold_the_configuration(bridge: Path) -> None:
    bridge.write_text(f"{BRIDGE}\nlonger = small_pretrain_config(300)\n")
    assert options(f"{bridge}:longer")["train-iters"] == 600


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "cfg.train.train_iters = asked()",
            "train.train_iters: only a run of the configuration knows the value: recipe.py:LINE: ",
        ),
        ("cfg.optimizer.lr = float(os.environ['LR'])", "optimizer.lr: only a run"),
        ("if asked():\n        cfg.model.num_layers = 8", "model.num_layers: only a run"),
        ("change(cfg)", "only a run of the configuration knows the value: recipe.py:LINE: strange.change()"),
        ("raise ValueError('too small')", "recipe.py:LINE: the configuration raises ValueError: too small"),
        ("cfg.model.layers = 3", "another run would result, without model.layers"),
        ("cfg.logger.log_dir = asked()", None),
        ("cfg.checkpoint.load = '/other'", None),
    ],
)
def test_what_only_a_run_shows_is_refused_if_it_decides_the_run(bridge: Path, text: str, error: str | None) -> None:
    change = f"from strange import asked, change\n{BRIDGE}".replace("    return cfg\n", f"    {text}\n    return cfg\n")
    bridge.write_text(change)
    line = change[: change.index(text)].count("\n") + 1
    error = error.replace("LINE", str(line)) if error else None
    refused = refusal(f"{bridge}:small_pretrain_config")
    assert error in refused if error else not refused


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("", {}, "append :NAME, one of small_pretrain_config"),
        (":smal_pretrain_config", {}, "did you mean small_pretrain_config?"),
        (":LAYERS", {}, "LAYERS is dict, not a configuration"),
        (":model", {}, "model() needs the argument size"),
        (":small_pretrain_config", {"train__train_itres": "3"}, "did you mean train_iters?"),
        (":small_pretrain_config", {"trane__train_iters": "3"}, "the configuration has no trane"),
    ],
)
def test_the_name_and_the_keys_are_checked(bridge: Path, name: str, values: dict[str, str], error: str) -> None:
    assert error in refusal(f"{bridge}{name}", **values)


def test_the_command_reads_a_function(bridge: Path) -> None:
    result = train("import", "--json", f"{bridge}:small_pretrain_config", "--set", "train.train_iters=70")
    assert json.loads(result.out)["options"]["train-iters"] == 70


HOSTILE = """
import os, subprocess, sys, ctypes
os.system("touch executed")
subprocess.run(["touch", "executed"])
open("executed", "w").write("x")
eval("__import__('os').system('touch executed')")
().__class__.__bases__[0].__subclasses__()
[].append.__self__.__class__
"{0.__class__}".format(1)
def config():
    os.system("touch executed")
    exec("open('executed', 'w')")
    getattr(os, "sys" + "tem")("touch executed")
    return type("X", (), {"__init__": lambda self: os.system("touch executed")})()
result = config()
"""
WATCHED = """
import sys
from pathlib import Path
from lt_train.importers import source
file, quiet = sys.argv[1:]
try:
    source.translate_file(quiet)
except Exception:
    pass
seen = []
def watch(event, arguments):
    running = ("exec", "os.system", "subprocess.Popen", "import", "os.posix_spawn", "os.exec", "socket.connect", "ctypes.dlopen")
    if event in running:
        seen.append((event, str(arguments)[:200]))
    elif event == "open" and not isinstance(arguments[0], int) and set(str(arguments[1] or "")) & set("wax+"):
        seen.append((event, str(arguments)[:200]))
sys.addaudithook(watch)
try:
    source.translate_file(file)
except Exception as error:
    print("refused", error)
print("seen", seen)
"""


def test_nothing_of_a_configuration_is_executed(tmp_path: Path) -> None:
    hostile, quiet = tmp_path / "hostile.py", tmp_path / "quiet.py"
    hostile.write_text(HOSTILE)
    quiet.write_text("import torch\ndef config():\n    return torch.nn.Linear(bias=f'{1:>3}')\n")
    words = [sys.executable, "-c", WATCHED, f"{hostile}:config", f"{quiet}:config"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[-1] == "seen []"
    assert "refused" in done.stdout
    assert not (tmp_path / "executed").exists()
