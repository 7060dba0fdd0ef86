"""What an import does not know or cannot carry over: it is asked for, refused or told, and never silently another run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from running import train

from lt_train.importers import megatron_bridge, nemo
from lt_train.importers.effects import Effect
from lt_train.importers.megatron_flags import effect_of_flag
from lt_train.importers.megatron_lm import translate

SHAPE = "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128"
BATCH = "--micro-batch-size 1 --global-batch-size 8 --train-iters 10"
LLAMA = "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
GPT = f"torchrun pretrain_gpt.py {SHAPE} {BATCH}"


def imported(tmp_path: Path, script: str, *more: str, name: str = "run.sh") -> Any:
    (tmp_path / name).write_text(script)
    return train("import", "--json", *more, str(tmp_path / name))


def options(tmp_path: Path, script: str, *more: str, name: str = "run.sh") -> dict[str, Any]:
    result = imported(tmp_path, script, *more, name=name)
    assert result.code == 0, result.err
    settings: dict[str, Any] = json.loads(result.out)["options"]
    return settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # LumiOpen/Megatron-DeepSpeed, pretrain_viking_7B.sh: 2,000,000,000,000 tokens of samples of 4,096.
        ("T=2_000_000_000_000; T=${T//_}; A='--train-samples '$((T/4096))", {"train-samples": 488281250}),
        # llm-jp/scripts, v3-172b-exp2-sakura/train.sh.
        ('W=2000; D=290812; A="--train-iters $((${W}+${D}))"', {"train-iters": 292812}),
        # awsome-distributed-training, 2.distributed-training.sbatch: a batch by the data parallel size.
        ("DP=4; A=(--train-iters 10 --global-batch-size $((DP * 576)))", {"global-batch-size": 2304}),
        ('A="--train-iters 10 --micro-batch-size `expr 1 + 1`"', {"micro-batch-size": 2}),
        ("A=\"--train-iters 10 --micro-batch-size $(echo '2 * 2' | bc)\"", {"micro-batch-size": 4}),
        ('F=7b-mbs4.json; M=${F##*mbs}; A="--train-iters 10 --micro-batch-size ${M%.json}"', {"micro-batch-size": 4}),
    ],
)
def test_computed_values_are_carried_over(tmp_path: Path, text: str, expected: dict[str, int]) -> None:
    settings = options(tmp_path, f"{text}\ntorchrun pretrain_gpt.py {SHAPE} ${{A[@]}}")
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ("B=$(nproc)\nGPT --global-batch-size $B", "B"),
        ("GPT --global-batch-size $((DP * 8))", "DP"),
        ("GPT --global-batch-size ${BATCHES[3]}", "BATCHES"),
        ("D=$(hostname); GPT --tensor-model-parallel-size $(( ${#D} ))", "D"),
        ("L=cosine; if [ $X ]; then L=linear; fi\nGPT --lr-decay-style $L", "L"),
        ('if [ "$GQA" = 1 ]; then A="--group-query-attention --num-query-groups 2"; else A=""; fi\nGPT $A', "GQA"),
        ('if [ -f x ]; then A="--num-experts 8"; fi\nGPT $A', "A"),
        ("A=(--bf16)\nif [ $GQA = 1 ]; then A+=(--num-experts 8); fi\nGPT ${A[@]}", "GQA"),
        ('[[ $ACT == swiglu ]] && A="--swiglu"\nGPT $A', "ACT"),
        ('B="--num-experts 8"; if [ $MOE ]; then A="$B"; fi\nGPT $A', "MOE"),
        ("source config.sh\nGPT $PARALLEL_ARGS", "PARALLEL_ARGS"),
    ],
)
def test_what_decides_the_run_is_asked_for_by_name(tmp_path: Path, script: str, asked: str) -> None:
    result = imported(tmp_path, script.replace("GPT", GPT))
    assert (result.code, result.out) == (65, "")
    assert f"{asked}: only a run of the script knows the value\nhint: give it: --set {asked}=VALUE\n" in result.err


def test_an_answer_decides(tmp_path: Path) -> None:
    script = f"A=(--bf16)\nif [ $GQA = 1 ]; then A+=(--group-query-attention --num-query-groups 2); fi\n{GPT} ${{A[@]}}"
    assert options(tmp_path, script, "--set", "GQA=1")["num-query-groups"] == 2
    assert "num-query-groups" not in options(tmp_path, script, "--set", "GQA=0")


def test_a_substitution_without_a_name_is_refused(tmp_path: Path) -> None:
    result = imported(tmp_path, f"{GPT} --tensor-model-parallel-size $(nproc)")
    assert (result.code, result.out) == (65, "")
    assert "$(nproc): only a run of the script knows the value\nhint: pass the command line with its value" in result.err


def test_both_branches_alike_decide_nothing(tmp_path: Path) -> None:
    script = f"if [ $X ]; then B=4; else B=4; fi\n{GPT} --tensor-model-parallel-size $B"
    assert options(tmp_path, script)["tensor-model-parallel-size"] == 4


def test_a_command_that_is_only_written_down_is_not_the_run(tmp_path: Path) -> None:
    job = f"cat <<EOF > job.sh\n{GPT.replace('--num-layers 4', '--num-layers 99')}\nEOF\n"
    assert options(tmp_path, job + GPT)["num-layers"] == 4
    alone = imported(tmp_path, job)
    assert (alone.code, alone.out) == (65, "")
    assert "the script writes the command into another file, on line 1" in alone.err


def test_two_commands_are_not_chosen_between(tmp_path: Path) -> None:
    other = GPT.replace("--num-layers 4", "--num-layers 8")
    result = imported(tmp_path, f"{GPT} --save /a\n{other} --save /b\n")
    assert (result.code, result.out) == (65, "")
    assert "lines 1 and 2 start pretrain_gpt.py with different options: --num-layers" in result.err
    assert options(tmp_path, f"{GPT} --save /a\n{GPT} --save /b")["save"] == "/a"
    either = f"if [ $BIG ]; then\n{other}\nelse\n{GPT}\nfi\n"
    assert "hint: what decides it: --set BIG=VALUE" in imported(tmp_path, either).err
    assert options(tmp_path, either, "--set", "BIG=")["num-layers"] == 4


SWITCHES = (
    *("openai-gelu", "quick-geglu", "rotary-interleaved", "qk-l2-norm"),
    *("apply-residual-connection-post-layernorm", "is-hybrid-model", "embed-layernorm"),
    *("experimental-attention-variant compressed", "heterogeneous-layers-config-path x"),
)


@pytest.mark.parametrize("switch", SWITCHES)
def test_an_option_of_the_model_is_not_lost(switch: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"{GPT} --{switch}")
    name = switch.split()[0].replace("-", "_")
    assert (result.code, result.out) == (65, "")
    assert f"another model would result, without {name}" in result.err
    assert imported(tmp_path, f"{GPT} --{switch}", "--partial").code == 0


def test_gated_delta_is_carried(tmp_path: Path) -> None:
    style = f"{GPT} --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --attention-output-gate"
    carried = options(tmp_path, f"{style} --experimental-attention-variant gated_delta_net --linear-attention-freq 2")
    assert carried["attention-output-gate"] is True
    assert carried["experimental-attention-variant"] == "gated_delta_net"
    assert carried["linear-attention-freq"] in (2, "2")


def test_squared_relu_is_carried_or_refused_by_name(tmp_path: Path) -> None:
    result = imported(tmp_path, f"{GPT} --squared-relu")
    assert (result.code, result.out) == (65, "")
    assert "lt-train refuses the result: --squared-relu for a model with learned positions" in result.err
    rotary = f"{GPT} --squared-relu --position-embedding-type rope --disable-bias-linear"
    assert options(tmp_path, rotary)["squared-relu"] is True
    assert options(tmp_path, rotary)["normalization"] == "LayerNorm"


@pytest.mark.parametrize("switch", ["never-heard-of", "never-heard-of 0", "fp32-residual-connection", "random-ltd"])
def test_an_option_that_nobody_knows_is_refused(switch: str, tmp_path: Path) -> None:
    result = imported(tmp_path, f"{GPT} --{switch}")
    name = switch.split()[0].replace("-", "_")
    assert (result.code, result.out) == (65, "")
    assert f"not carried over, changes the run: {name} = " in result.err
    assert imported(tmp_path, f"{GPT} --{switch}", "--partial").code == 0


@pytest.mark.parametrize(
    ("words", "effect"),
    [
        ("DDP_impl local", "NONE"),
        ("data_impl mmap", "NONE"),
        ("zero_stage 0", "NONE"),
        ("zero_stage 2", "SPEED"),
        ("moe_layer_freq 1", "NONE"),
        ("moe_layer_freq 2", "MODEL"),
        ("moe_router_score_function softmax", "NONE"),
        ("log_timers_to_tensorboard", "NONE"),
        ("deepspeed_config x.json", "RESULT"),
        ("decoupled_lr 1e-4", "RUN"),
    ],
)
def test_effects_of_options_that_lt_train_does_not_have(words: str, effect: str) -> None:
    key, *values = words.split()
    assert effect_of_flag(key, values).name == effect


def test_the_padding_of_the_vocabulary_is_told(tmp_path: Path) -> None:
    change = "changes the result: make_vocab_size_divisible_by = 256"
    assert change in imported(tmp_path, f"{GPT} --make-vocab-size-divisible-by 256").err
    assert "make_vocab_size" not in imported(tmp_path, f"{GPT} --make-vocab-size-divisible-by 128").err


def test_grouped_queries_without_a_number_are_one_group() -> None:
    """megatron/training/arguments.py has 1 as the default of --num-query-groups."""
    assert translate(["pretrain_gpt.py", "--group-query-attention"]).options["num_query_groups"] == 1


@pytest.mark.parametrize(
    ("recipe", "carried", "effect"),
    [
        ("blockwise", "blockwise", None),
        ("tensorwise", "tensorwise", None),
        ("mxfp8", None, Effect.RUN),
        ("delayed", "tensorwise", Effect.RESULT),
        # Megatron-LM's default is `delayed`.
        (None, "tensorwise", Effect.RESULT),
        ("$RECIPE", None, Effect.RESULT),
    ],
)
def test_a_recipe_of_fp8_is_carried_over_or_told(recipe: str | None, carried: str | None, effect: Effect | None) -> None:
    words = ("--fp8-recipe", recipe) if recipe else ()
    translation = translate([*GPT.split(), "--bf16", "--fp8-format", "e4m3", *words])
    assert (translation.options["fp8_format"], translation.options.get("fp8_recipe")) == ("e4m3", carried)
    assert [(entry.key, entry.effect) for entry in translation.dropped if "fp8" in entry.key] == (
        [("fp8_recipe", effect)] if effect else []
    )


def test_delayed_scaling_of_megatron_bridge_is_told() -> None:
    base = {"_target_": "megatron.bridge.training.config.ConfigContainer", "model.num_layers": 4, "mixed_precision.fp8": "hybrid"}
    for recipe, is_told in (("delayed", True), ("tensorwise", False)):
        translation = megatron_bridge.translate({**base, "model.fp8_recipe": recipe, "mixed_precision.fp8_recipe": recipe})
        assert (translation.options["fp8_format"], translation.options["fp8_recipe"]) == ("hybrid", "tensorwise")
        changes = [(entry.key, entry.value) for entry in translation.lost(Effect.RESULT) if "fp8" in entry.key]
        assert changes == ([("mixed_precision.fp8_recipe", "delayed")] if is_told else [])


def test_transformer_engines_layers_are_dropped_as_speed() -> None:
    """Beside them offloading, and recomputed norms; nothing of it is refused, or changes a result."""
    words = "--transformer-impl local --cpu-offloading-num-layers 2 --recompute-granularity selective --recompute-modules"
    translation = translate([*GPT.split(), *words.split(), "layernorm", "core_attn"])
    assert not {"transformer_impl", "cpu_offloading_num_layers"} & translation.options.keys()
    assert translation.options["recompute_modules"] == "core_attn"
    lost = {"transformer_impl", "cpu_offloading_num_layers", "recompute_modules"}
    assert {entry.key for entry in translation.lost(Effect.SPEED)} == lost
    engine = nemo.translate({"model.num_layers": 4, "model.transformer_engine": True, "model.fp8": True, "model.fp8_e4m3": True})
    assert engine.options["fp8_format"] == "e4m3"
    assert "transformer_impl" not in engine.options
    assert "model.transformer_engine" in {entry.key for entry in engine.lost(Effect.SPEED)}


def test_earlier_names_of_options() -> None:
    words = "pretrain_gpt.py --batch-size 4 --model-parallel-size 2 --checkpoint-activations --checkpoint-num-layers 3"
    translation = translate(words.split()).options
    expected = {
        "micro_batch_size": 4,
        "tensor_model_parallel_size": 2,
        "recompute_granularity": "full",
        "recompute_num_layers": 3,
    }
    assert {name: translation[name] for name in expected} == expected


def test_biases_that_are_lost_change_the_model(tmp_path: Path) -> None:
    """Guides to Llama forget the switch, so the import ends well, and says so."""
    result = imported(tmp_path, f"{GPT} {LLAMA.replace('--disable-bias-linear', '')}")
    assert result.code == 0
    assert "not carried over, changes the model: disable_bias_linear" in result.err


NEMO = """
trainer: {max_steps: %d, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 8
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 4
  encoder_seq_length: 128
  max_position_embeddings: 128
  use_scaled_init_method: true
  optim:
    name: distributed_fused_adam
    lr: 6e-4
    sched: {name: CosineAnnealing, warmup_steps: %d, constant_steps: %d, min_lr: 6e-5}
"""


def nemo_rate(step: int, length: int, warmup: int, constant: int) -> float:
    """nemo/core/optim/lr_scheduler.py, _linear_warmup_with_cosine_annealing, of a peak of 1 and a least rate of a tenth."""
    import math

    decay = length - (constant + warmup)
    if step <= warmup:
        return step / warmup
    if step > warmup + decay:
        return 0.1
    return 0.1 + 0.9 * 0.5 * (math.cos(math.pi * (step - warmup) / decay) + 1)


def megatron_rate(step: int, warmup: int, decay_iters: int) -> float:
    """megatron/core/optimizer_param_scheduler.py, of the same rates."""
    import math

    if step <= warmup:
        return step / warmup
    if step > decay_iters:
        return 0.1
    return 0.1 + 0.9 * 0.5 * (math.cos(math.pi * (step - warmup) / (decay_iters - warmup)) + 1)


# NeMo-Framework-Launcher: auto_configurator/base_configs/gpt3.yaml, and launcher_scripts/conf/training/gpt3/175b.yaml.
@pytest.mark.parametrize(("length", "warmup", "constant"), [(600_000, 636, 100_000), (75_000, 115, 12_500)])
def test_constant_steps_end_the_decay(length: int, warmup: int, constant: int, tmp_path: Path) -> None:
    result = imported(tmp_path, NEMO % (length, warmup, constant), name="gpt3.yaml")
    settings = json.loads(result.out)["options"]
    assert settings["lr-decay-iters"] == length - constant
    for step in (1, warmup, warmup + 1, length // 2, length - constant, length - constant + 1, length):
        expected = nemo_rate(step, length, warmup, constant)
        assert megatron_rate(step, settings["lr-warmup-iters"], settings["lr-decay-iters"]) == pytest.approx(expected)
    assert "use_scaled_init_method" not in result.err


def test_constant_steps_that_leave_no_decay_end_it_after_the_warmup(tmp_path: Path) -> None:
    """nemo/core/optim/lr_scheduler.py: WarmupAnnealHoldPolicy.get_lr returns `min_lr` beyond warmup_steps + decay_steps."""
    assert options(tmp_path, NEMO % (100, 10, 90), name="a.yaml")["lr-decay-iters"] == 11
    assert "lr-decay-iters" not in options(tmp_path, NEMO % (100, 10, 0), name="a.yaml")


def test_a_name_of_experts_without_any_is_another_model(tmp_path: Path) -> None:
    """NeMo-Framework-Launcher, conversion_hf2nemo/hf_mixtral/convert_mixtral_nemo.yaml leaves the experts to the checkpoint."""
    result = imported(tmp_path, "name: megatron_mixtral\n" + NEMO % (100, 10, 0), name="a.yaml")
    assert (result.code, result.out) == (65, "")
    assert "another model would result, without name" in result.err


TITAN = '[model]\nname = "llama3"\nflavor = "%s"\n%s\n[training]\nseq_len = 8192\n%s\n'


@pytest.mark.parametrize(
    ("flavor", "of_model", "more", "model", "is_told"),
    [
        ("8B", "", "batch_size = 1", "llama3-8b", False),
        ("70B", "", "compile = false", "llama3-70b", False),
        ("8B", 'tokenizer_path = "x"', "", "llama3-8b", False),
        ("8B", "", "[float8]\nenable_fsdp_float8_all_gather = false", "llama3-8b", False),
        ("8B", "", "[debug]\nseed = 1", "llama3.1-8b", False),
        ("70B", "", "local_batch_size = 1", "llama3.1-70b", True),
        ("405B", "", "local_batch_size = 1", "llama3.1-405b", True),
    ],
)
def test_rotary_positions_by_the_version(
    flavor: str, of_model: str, more: str, model: str, is_told: bool, tmp_path: Path
) -> None:
    result = imported(tmp_path, TITAN % (flavor, of_model, more), name="a.toml")
    assert json.loads(result.out)["options"]["model"] == model
    assert ("changes the result: model.name = llama3: since 2025-10-08" in result.err) is is_told


def test_the_largest_llama_3_before_scaling(tmp_path: Path) -> None:
    result = imported(tmp_path, TITAN % ("405B", "", "batch_size = 1"), name="a.toml")
    assert "the model has 405,853,388,800 parameters" in result.err
    settings = json.loads(result.out)["options"]
    assert not {"model", "use-rope-scaling"} & settings.keys()


def test_a_file_of_flagscale(tmp_path: Path) -> None:
    """FlagOpen/FlagScale, examples/llama3/conf/train/8b.yaml, shortened."""
    text = (
        "system:\n  tensor_model_parallel_size: 4\n  disable_bias_linear: True\n  precision: {bf16: True}\n"
        "model:\n  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 14336\n  num_attention_heads: 32\n  seq_length: 4096\n"
        "  group_query_attention: True\n  num_query_groups: 8\n  max_position_embeddings: 8192\n  swiglu: True\n"
        "  normalization: RMSNorm\n  position_embedding_type: rope\n  untie_embeddings_and_output_weights: True\n"
        "  micro_batch_size: 1\n  global_batch_size: 2048\n  train_samples: 200000\n"
        "  optimizer:\n    weight_decay: 1e-2\n    lr_scheduler: {lr: 1.0e-5, lr_warmup_fraction: .1}\n"
        "data:\n  split: 1\n  tokenizer: {vocab_size: 128256}\n"
    )
    result = imported(tmp_path, text, name="8b.yaml")
    assert "the model has 8,030,261,248 parameters" in result.err
    settings = json.loads(result.out)["options"]
    assert (settings["lr"], settings["weight-decay"], settings["bf16"], settings["tensor-model-parallel-size"]) == (
        1e-5,
        0.01,
        True,
        4,
    )


def test_lines_that_end_as_on_windows(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(f"L=4 \r\n{GPT} \\\r\n  --bf16\r\n".encode())
    assert json.loads(train("import", "--json", str(tmp_path / "run.sh")).out)["options"]["bf16"] is True


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    result = train("import", str(tmp_path / "pipe.sh"))
    assert result.code == 65
    assert "not a file but a named pipe" in result.err


def test_plan_reads_what_import_writes(tmp_path: Path) -> None:
    script = f"{GPT} {LLAMA} --data-path a_text_document --log-interval 5 --eval-iters 2 --bf16"
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "run.toml").write_text(train("import", str(tmp_path / "run.sh")).out)
    assert train("plan", "--config", str(tmp_path / "run.toml"), "--gpu", "h100-80gb").code == 0
    (tmp_path / "run.toml").write_text("layer = 4\n")
    assert "unknown options: layer" in train("plan", "--config", str(tmp_path / "run.toml"), "--gpu", "h100-80gb").err


def test_what_is_not_known_is_one_piece_in_a_text_that_another_shell_reads(tmp_path: Path) -> None:
    """As in swiss-ai/Megatron-LM, submit-llama3-8b.sh: the variable with the command is one that a condition adds to."""
    script = f'C="{GPT}"\nif [ -n "$WANDB" ]; then C="$C --wandb-project a"; fi\nsrun -l bash -c "RANK=\\$RANK $C --bf16"'
    settings = options(tmp_path, script)
    assert (settings["bf16"], settings["num-layers"]) == (True, 4)
    assert "num_layers" not in json.dumps(json.loads(imported(tmp_path, script).out)["not_carried"])
    more = script.replace("--wandb-project a", "--num-experts 8")
    assert "hint: give it: --set WANDB=VALUE" in imported(tmp_path, more).err
