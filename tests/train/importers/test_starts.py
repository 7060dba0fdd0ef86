"""Where an imported run begins: first weights that are drawn otherwise, and checkpoints that mean something else.

Read against megatron/training/arguments.py, checkpointing.py and initialize.py of core_v0.19.
"""

from collections.abc import Callable
from typing import Any

import pytest
from running import train

from lt_train.importers import megatron_bridge, megatron_lm, nemo
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation

SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
COMMAND = ["pretrain_gpt.py", *f"{SHAPE} --micro-batch-size 1 --global-batch-size 8 --train-iters 10".split()]
WITH_CHECKPOINT = (
    "--load /c",
    "--pretrained-checkpoint /c",
    "--load /c --save /s",
    "--pretrained-checkpoint /c --load /s --save /s",
)
FROM_SCRATCH = ("", "--save /s", "--load /s --save /s")


def flags(words: str) -> Translation:
    return megatron_lm.translate([*COMMAND, *words.split()])


def bridge(**values: Any) -> Translation:
    return megatron_bridge.translate(
        {"model._target_": "megatron.bridge.models.llama.llama_provider.LlamaModelProvider", "model.num_layers": 4, **values}
    )


def nemo_file(**values: Any) -> Translation:
    return nemo.translate({"model.num_layers": 4, "trainer.max_steps": 100, "model.optim.name": "fused_adam", **values})


def dropped_option(translation: Translation, key: str) -> Dropped:
    (dropped,) = (entry for entry in translation.dropped if entry.key == key)
    return dropped


@pytest.mark.parametrize("switch", ["apply_layernorm_1p", "layernorm_zero_centered_gamma"])
def test_norms_stored_less_one_are_another_start(switch: str) -> None:
    """Beside 1 the weights of such a checkpoint are near 0; from first weights 1 + d is rounded otherwise."""
    option = f"--{switch.replace('_', '-')}"
    loaded = [dropped_option(flags(f"{option} {words}"), switch) for words in WITH_CHECKPOINT]
    dropped = [dropped_option(flags(f"{option} {words}"), switch) for words in FROM_SCRATCH]
    assert {entry.effect for entry in loaded} == {Effect.RUN}
    assert {entry.effect for entry in dropped} == {Effect.RESULT}
    assert all("less one" in entry.reason for entry in (*loaded, *dropped))
    assert all("rounding" in entry.reason for entry in dropped)


def test_norms_stored_less_one_in_files() -> None:
    key = "model.layernorm_zero_centered_gamma"
    assert dropped_option(bridge(**{key: True}), key).effect is Effect.RESULT
    assert dropped_option(bridge(**{key: True, "checkpoint.load": "/c"}), key).effect is Effect.RUN
    assert dropped_option(bridge(**{key: True, "checkpoint.pretrained_checkpoint": "/c"}), key).effect is Effect.RUN
    assert dropped_option(bridge(**{key: False, "checkpoint.load": "/c"}), key).effect is Effect.NONE
    assert dropped_option(nemo_file(**{key: True}), key).effect is Effect.RESULT
    assert dropped_option(nemo_file(**{"model.normalization": "layernorm1p"}), "model.normalization").effect is Effect.RESULT


def test_gates_stored_in_blocks_are_another_start() -> None:
    """megatron/core/transformer/moe/experts.py stores the rows of linear_fc1 in that order."""
    key = "moe_mlp_glu_interleave_size"
    assert dropped_option(flags(f"--num-experts 4 --swiglu --{key} 32 --load /c"), key).effect is Effect.RUN
    assert dropped_option(flags(f"--num-experts 4 --swiglu --{key} 32"), key).effect is Effect.RESULT
    assert dropped_option(flags(f"--{key} 32 --load /c"), key).effect is Effect.NONE


def test_another_start_is_refused() -> None:
    result = train("import", "--", *COMMAND, "--apply-layernorm-1p", "--load", "/c")
    assert (result.code, result.out) == (65, "")
    assert "another run would result, without apply_layernorm_1p" in result.err
    result = train("import", "--", *COMMAND, "--init-method-xavier-uniform")
    assert (result.code, result.out) == (65, "")
    assert "another run would result, without init_method_xavier_uniform" in result.err
    result = train("import", "--", *COMMAND, "--init-method-xavier-uniform", "--load", "/c")
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("words", "effect"),
    [
        ("--init-method-xavier-uniform", Effect.RUN),
        ("--no-initialization", Effect.RUN),
        ("--embedding-init-method-std 1.0", Effect.RUN),
        ("--embedding-init-method-std 0.02 --init-method-std 0.01", Effect.RUN),
        ("--embedding-init-method-std 0.02", Effect.NONE),
        ("--embedding-init-method-std 1e-2 --init-method-std 0.01", Effect.NONE),
        # Other numbers of the same distribution, as of another seed.
        ("--use-cpu-initialization", Effect.RESULT),
        ("--data-parallel-random-init", Effect.RESULT),
    ],
)
def test_first_weights_matter_where_no_checkpoint_is_loaded(words: str, effect: Effect) -> None:
    key = words.split()[0].removeprefix("--").replace("-", "_")
    assert {dropped_option(flags(f"{words} {start}"), key).effect for start in FROM_SCRATCH} == {effect}
    assert {dropped_option(flags(f"{words} {start}"), key).effect for start in WITH_CHECKPOINT} == {Effect.NONE}


XAVIER = {"model.init_method._target_": "torch.nn.init.xavier_uniform_", "model.init_method._partial_": True}


@pytest.mark.parametrize(
    ("translate", "values", "key", "effect"),
    [
        (bridge, {"model.perform_initialization": False}, "model.perform_initialization", Effect.RUN),
        (bridge, {"model.embedding_init_method_std": 1.0}, "model.embedding_init_method_std", Effect.RUN),
        (bridge, {"model.embedding_init_method_std": 0.02}, "model.embedding_init_method_std", Effect.NONE),
        (bridge, {"model.use_cpu_initialization": True}, "model.use_cpu_initialization", Effect.RESULT),
        (bridge, {**XAVIER, "checkpoint.load": "/c"}, "model.init_method._target_", Effect.NONE),
        (bridge, {"model.perform_initialization": False, "checkpoint.load": "/c"}, "model.perform_initialization", Effect.NONE),
        (nemo_file, {"model.use_scaled_init_method": False}, "model.use_scaled_init_method", Effect.RUN),
        (nemo_file, {"model.use_scaled_init_method": True}, "model.use_scaled_init_method", Effect.NONE),
    ],
)
def test_first_weights_of_files(translate: Callable[..., Translation], values: dict[str, Any], key: str, effect: Effect) -> None:
    assert dropped_option(translate(**values), key).effect is effect


@pytest.mark.parametrize(
    ("words", "key", "effect", "reason"),
    [
        ("", "override_opt_param_scheduler", Effect.NONE, "without --load nothing reads it"),
        ("--save /c", "override_opt_param_scheduler", Effect.NONE, "without --load nothing reads it"),
        ("--load /c", "override_opt_param_scheduler", Effect.NONE, "takes the schedule from the command line"),
        ("--load /c --save /c", "override_opt_param_scheduler", Effect.NONE, "takes the schedule from the command line"),
        ("--pretrained-checkpoint /c", "override_opt_param_scheduler", Effect.NONE, "takes the schedule from the command line"),
        ("--load /c --save /c", "use_mp_args_from_checkpoint_args", Effect.NONE, "load at any parallel sizes"),
        ("--load /c --save /c", "load_main_params_from_ckpt", Effect.NONE, "its own --save"),
        ("--load /c --save /c", "load_tag", Effect.RUN, "its own --save"),
        # Weights of that checkpoint are read, its step and schedule are not.
        ("--pretrained-checkpoint /c", "reset_iteration", Effect.NONE, "the weights alone"),
        ("--pretrained-checkpoint /c", "use_checkpoint_opt_param_scheduler", Effect.NONE, "the weights alone"),
        ("--pretrained-checkpoint /c", "use_checkpoint_args", Effect.RUN, "compares the model"),
    ],
)
def test_options_that_a_checkpoint_is_read_with(words: str, key: str, effect: Effect, reason: str) -> None:
    dropped = dropped_option(flags(f"{words} --{key.replace('_', '-')}"), key)
    assert (dropped.effect, reason in dropped.reason) == (effect, True), dropped


def test_options_that_a_checkpoint_of_a_file_is_read_with() -> None:
    key = "scheduler.override_opt_param_scheduler"
    translation = bridge(**{key: True, "checkpoint.load": "/s", "checkpoint.save": "/s"})
    assert "takes the schedule from the command line" in dropped_option(translation, key).reason
    assert "without --load" in dropped_option(bridge(**{key: True}), key).reason


def test_the_step_of_a_pretrained_checkpoint() -> None:
    translation = flags("--pretrained-checkpoint /c --ckpt-step 5")
    assert translation.options["load"] == "/c/iter_0000005"
    assert not [entry for entry in translation.dropped if entry.key == "ckpt_step"]


@pytest.mark.parametrize(
    ("words", "carried"),
    [
        ("--layernorm-epsilon 1e-6", {"norm_epsilon": 1e-6}),
        ("--warmup 0.01", {"lr_warmup_fraction": 0.01, "lr_warmup_iters": None}),
        ("--encoder-seq-length 32", {"seq_length": 32}),
        ("--encoder-num-layers 8", {"num_layers": 8}),
        ("--fp16 --min-scale 2", {"min_loss_scale": 2.0}),
        ("--fp32-allreduce", {"accumulate_allreduce_grads_in_fp32": True}),
        ("--model-parallel-size 2", {"tensor_model_parallel_size": 2}),
        ("--batch-size 2", {"micro_batch_size": 2}),
        ("--recompute-activations", {"recompute_activations": True}),
        ("--checkpoint-activations", {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
        (
            "--activations-checkpoint-method block --activations-checkpoint-num-layers 2",
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
        ),
    ],
)
def test_earlier_names_of_megatron_lm(words: str, carried: dict[str, Any]) -> None:
    options = flags(words).options
    assert {name: options.get(name) for name in carried} == carried


def test_an_earlier_name_is_told_as_it_was_written() -> None:
    assert "a finite number" in dropped_option(flags("--layernorm-epsilon small"), "layernorm_epsilon").reason


@pytest.mark.parametrize(
    ("words", "effect"),
    [
        ("--data-impl mmap", Effect.NONE),
        ("--DDP-impl torch", Effect.NONE),
        ("--no-contiguous-buffers-in-local-ddp", Effect.SPEED),
        ("--use-contiguous-buffers-in-local-ddp", Effect.SPEED),
        ("--scaled-upper-triang-masked-softmax-fusion", Effect.SPEED),
        ("--scaled-masked-softmax-fusion", Effect.SPEED),
        ("--bias-dropout-fusion", Effect.SPEED),
        ("--bias-gelu-fusion", Effect.SPEED),
        ("--delay-grad-reduce", Effect.SPEED),
        ("--ub-tp-comm-overlap", Effect.SPEED),
        ("--num-unique-layers 2", Effect.MODEL),
    ],
)
def test_earlier_options_of_megatron_lm(words: str, effect: Effect) -> None:
    key = words.split()[0].removeprefix("--").replace("-", "_")
    assert dropped_option(flags(words), key).effect is effect


@pytest.mark.parametrize("key", ["load", "save", "pretrained_checkpoint"])
def test_a_second_word_behind_a_path_is_refused(key: str) -> None:
    """argparse of Megatron-LM stops there: unrecognized arguments."""
    translation = flags(f"--{key.replace('_', '-')} /a /b")
    entry = dropped_option(translation, key)
    assert (entry.value, entry.effect, "second word" in entry.reason) == ("/a /b", Effect.RUN, True)
    assert key not in translation.options
