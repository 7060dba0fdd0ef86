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

SAMPLES = Path(__file__).parents[1] / "samples"

BRIDGE = (SAMPLES / "bridge_recipe.txt").read_text()
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

TITAN = (SAMPLES / "titan_registry.txt").read_text()
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
NEMO = (SAMPLES / "nemo_recipe.txt").read_text()
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


@pytest.mark.parametrize(
    ("resume", "start"),
    [
        # nemo/lightning/resume.py: a checkpoint to resume from is read with optimizer and step, one to restore without.
        ('resume_from_path="/z"', {"load": "/z"}),
        ('resume_from_path="/z", restore_config=run.Config(nl.RestoreConfig, path="/w")', {"load": "/z"}),
        ('resume_if_exists=True, resume_from_directory="/z"', {"load": "/z"}),
        ('resume_if_exists=False, resume_from_directory="/z"', {}),
        ('restore_config=run.Config(nl.RestoreConfig, path="/w")', {"load": "/w", "finetune": True}),
        ('restore_config=run.Config(nl.RestoreConfig, path="/w", load_optim_state=True)', "checkpoint.restore_load_optim_state"),
        ('restore_config=run.Config(nl.RestoreConfig, path="/w", load_model_state=False)', "checkpoint.restore_load_model_state"),
    ],
)
def test_the_start_of_a_recipe_of_nemo(resume: str, start: dict[str, Any] | str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(NEMO.replace("resume_if_exists=True", resume))
    if isinstance(start, str):
        assert f"without {start}" in refusal(f"{file}:pretrain_recipe")
    else:
        found = options(f"{file}:pretrain_recipe")
        assert {name: found[name] for name in ("load", "finetune", "no-load-optim") if name in found} == start


GEMMA = """

import dataclasses

@dataclasses.dataclass
class Gemma2Config9B:
    num_layers: int = 42
    normalization: str = "RMSNorm"
    hidden_dropout: float = 0.0
    window_size: tuple = (4096, 0)
    attn_logit_softcapping: float = 50.0
    seq_length: int = 8192
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("pass", {"model": "gemma2-9b", "num-layers": None, "hidden-dropout": 0.0, "sequence-parallel": True}),
        ("recipe.model.config.num_layers = 4", {"model": "gemma2-9b", "num-layers": 4}),
        ("recipe.model.config.attn_logit_softcapping = 10.0", "model.attn_logit_softcapping"),
        ("recipe.model.config.window_size = None", "model.window_size"),
        ('recipe.model.config.normalization = "LayerNorm"', "model.normalization"),
        # NeMo gives the window to other layers than the published model, which longer sequences show.
        ("recipe.data.seq_length = 4097", "model.window_attn_skip_freq"),
    ],
)
def test_gemma_of_nemo_is_the_published_model(change: str, expected: dict[str, Any] | str, tmp_path: Path) -> None:
    package = tmp_path / "nemo/collections/llm/gpt/model"
    package.mkdir(parents=True)
    (package / "gemma2.py").write_text(GEMMA)
    (tmp_path / "pyproject.toml").write_text("")
    file = tmp_path / "recipe.py"
    text = NEMO.replace("model.llama import Llama3Config8B, LlamaModel", "model.gemma2 import Gemma2Config9B")
    text = text.replace(
        "LlamaModel, config=run.Config(Llama3Config8B, num_layers=4)", "object, config=run.Config(Gemma2Config9B)"
    )
    head, sizes, tail = text.partition("    recipe.model.config.hidden_size")
    file.write_text(f"{head}    {change}\n    return recipe\n")
    assert sizes and tail
    if isinstance(expected, str):
        assert f"without {expected}" in refusal(f"{file}:pretrain_recipe")
    else:
        found = options(f"{file}:pretrain_recipe")
        assert {name: found.get(name) for name in expected} == expected


def test_a_strategy_that_loads_or_makes_no_optimizer(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    text = NEMO.replace("nl.MegatronStrategy, ", "nl.MegatronStrategy, ckpt_load_optimizer=False, ")
    file.write_text(text.replace("resume_if_exists=True", 'resume_from_path="/z"'))
    found = options(f"{file}:pretrain_recipe")
    assert (found["load"], found["no-load-optim"]) == ("/z", True)
    file.write_text(NEMO.replace("nl.MegatronStrategy, ", "nl.MegatronStrategy, setup_optimizers=False, "))
    assert "without trainer.setup_optimizers" in refusal(f"{file}:pretrain_recipe")


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
