"""Configurations of other trainers, as in the guides to them, invented keys included: what comes over, and what is listed."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import assembled
from running import train

from lt_shared.console import BadData, NoInput
from lt_train.commands.importing import command
from lt_train.config.checks import problems
from lt_train.config.run_config import RunConfig
from lt_train.importers import hyperpod, megatron_lm, nemo, source, torchtitan
from lt_train.importers.ledger import IS_OFF, LARGEST, NOT_SET, Translation, accepted, expected, flatten, options

PLACE = Path(__file__).parents[1] / "importers" / "samples"
FILES = ("guide.toml", "llama3_70b.toml", "recipe.yaml", "nemo.yaml", "pretrain_gpt.sbatch")


def translation(name: str) -> Translation:
    return source.translate_file(str(PLACE / name))


def dropped(name: str) -> dict[str, str]:
    return {entry.key: entry.reason for entry in translation(name).dropped}


def plan(name: str, tmp_path: Path, *more: str, without: tuple[str, ...] = ()) -> RunConfig:
    """The plan of a run with the written file; `without` are lines that need what this machine does not have."""
    lines = translation(name).toml().splitlines()
    file = tmp_path / "run.toml"
    file.write_text("\n".join(line for line in lines if not line.startswith(without or ("#",))))
    return assembled(["--config", str(file), "--device", "cpu", *more])


def test_a_guide_with_keys_that_torchtitan_never_had(tmp_path: Path) -> None:
    options = translation("guide.toml").options
    expected = {
        "model": "llama3.1-8b",
        "tensor_model_parallel_size": 2,
        "context_parallel_size": 2,
        "micro_batch_size": 1,
        "global_batch_size": 512,
        "train_iters": 10000,
        "seq_length": 8192,
        "recompute_granularity": "selective",
        "fp8_format": "hybrid",
        "lr": 3e-4,
        "save": "./checkpoints",
        "save_interval": 1000,
        "async_save": True,
        "wandb_project": "torchtitan-training",
        "profile": True,
        "use_torch_fsdp2": True,
        "bf16": True,
    }
    assert {name: options[name] for name in expected} == expected
    reasons = dropped("guide.toml")
    assert set(reasons) == {
        *("model.norm_type", "model.tokenizer_path", "training.data_parallel_degree", "training.compile"),
        *("training.compile_mode", "checkpoint.resume_from_checkpoint", "metrics.wandb_entity", "profiling.profile_freq"),
        *("optimizer.name", "optimizer.weight_decay"),
        "model.name",
    }
    assert "lt-convert" in reasons["checkpoint.resume_from_checkpoint"]
    run_config = plan("guide.toml", tmp_path, "--mock-data", "--ranks", "8", without=("fp8", "wandb"))
    assert not list(problems(run_config))
    assert run_config.parallelism.described == "tensor 2 x pipeline 1 x context 2 x data 2"


def test_torchtitans_own_keys(tmp_path: Path) -> None:
    options = translation("llama3_70b.toml").options
    expected = {
        "model": "llama3.1-70b",
        "lr_decay_style": "WSD",
        "lr_wsd_decay_style": "cosine",
        "lr_wsd_decay_iters": 800,
        "num_distributed_optimizer_instances": 2,
        "keep_last": 3,
        "save": "./outputs/checkpoint",
        "async_save": True,
        "recompute_granularity": "full",
        "fp8_recipe": "tensorwise",
        "eval_interval": 500,
        "eval_iters": 1200,
        "sequence_parallel": True,
    }
    assert {name: options[name] for name in expected} == expected
    assert options["min_lr"] == pytest.approx(1.5e-5)
    reasons = dropped("llama3_70b.toml")
    assert all(key in reasons for key in ("job.description", "training.dataset", "compile.components", "validation.dataset"))
    assert not any("not a key" in reason for reason in reasons.values())
    run_config = plan("llama3_70b.toml", tmp_path, "--mock-data", "--ranks", "64", without=("fp8", "tensorboard"))
    assert not list(problems(run_config))


def test_a_hyperpod_recipe(tmp_path: Path) -> None:
    options = translation("recipe.yaml").options
    assert options["norm_epsilon"] == 1e-5
    assert options["max_position_embeddings"] == options["seq_length"] == 8192
    assert options["save"] == "/fsx/ubuntu/sagemaker-hyperpod-recipes/checkpoints/checkpoints"
    assert (options["save_interval"], options["keep_last"], options["num_distributed_optimizer_instances"]) == (20, 1, 2)
    reasons = dropped("recipe.yaml")
    assert not any("not a key" in reason for reason in reasons.values())
    assert all("start as many ranks" in reasons[f"trainer.{key}"] for key in ("devices", "num_nodes"))
    run_config = plan("recipe.yaml", tmp_path, "--ranks", "32", without=("tensorboard",))
    assert not list(problems(run_config))
    model = run_config.architecture
    assert (model.parameters(), model.tie_embeddings, model.rope_scaling and model.rope_scaling.factor) == (1235814400, True, 32)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"run": {"model_type": "amazon.nova-2-lite-v1:0:256k"}}, "its shape is not public"),
        (
            {"run": {"model_type": "hyperpod_checkpointless_nemo"}, "strategy": {"tensor_model_parallel_size": 8}},
            "container's code",
        ),
        ({"distributed_strategy": {"pipeline_model_parallel_size": 8}, "run": {"compile": 0}}, "a recipe for Trainium"),
        ({"model": {"model_type": "falcon", "num_hidden_layers": 2}}, "model.model_type"),
        (
            {"model": {"model_type": "mixtral", "moe": True, "num_local_experts": 8, "moe_load_balancing": "sinkhorn"}},
            "model.moe_load_balancing",
        ),
        ({"model": {"model_type": "llama_v3", "multi_modal": True, "num_hidden_layers": 2}}, "models of text alone"),
    ],
)
def test_a_hyperpod_recipe_that_cannot_be_trained_says_why(recipe: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """As recipes_collection/recipes/training of versions 1 and 2 has them, reduced."""
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    outcome = CliRunner().invoke(command, [str(path)])
    assert isinstance(outcome.exception, BadData)
    assert reason in f"{outcome.exception} {outcome.output}"


def test_the_launchers_file_has_nothing_to_carry() -> None:
    translated = translation("launcher.yaml")
    assert translated.source == "HyperPod recipes"
    assert not translated.options
    assert {entry.reason for entry in translated.dropped} == {hyperpod.LAUNCHER, NOT_SET}


def test_a_nemo_model(tmp_path: Path) -> None:
    options = translation("nemo.yaml").options
    assert options["data_path"] == ["1.0", "/shared/data/redpajama_sample_text_document"]
    assert options["use_distributed_optimizer"] is True
    assert "not a key" not in " ".join(dropped("nemo.yaml").values())
    run_config = plan("nemo.yaml", tmp_path, "--mock-data", "--ranks", "128", without=("data-path", "split", "tensorboard"))
    assert not list(problems(run_config))
    # Without a tokenizer's data the vocabulary is GPT-2's.
    assert run_config.architecture.parameters(32000) == 6738415616
    assert run_config.memory.recompute is not None


def test_a_script_that_starts_megatron(tmp_path: Path) -> None:
    translated = translation("pretrain_gpt.sbatch")
    assert translated.options["data_path"] == ["/fsx/gpt2/my-gpt2_text_document"]
    assert {"hidden_dropout", "attention_dropout"} <= translated.defaults
    assert "adam_beta2" not in translated.defaults
    reasons = dropped("pretrain_gpt.sbatch")
    assert "quietly takes selective" in reasons["recompute_granularity"]
    assert "it needs the shell" in reasons["$EXTRA"]
    assert {entry.key: entry.value for entry in translated.dropped if entry.key.startswith("launcher ")} == {
        "launcher -l": True,
        "launcher -m": "torch.distributed.run",
        "launcher --nproc_per_node": "8",
        "launcher --nnodes": "2",
        "launcher --rdzv_backend": "c10d",
    }
    run_config = plan("pretrain_gpt.sbatch", tmp_path, "--mock-data", "--ranks", "16", without=("data-path", "split"))
    assert not list(problems(run_config))
    assert run_config.architecture.parameters(51200) == pytest.approx(7.5e9, rel=0.02)
    assert run_config.layers.hidden_dropout == 0.1


SCRIPT = """\
#!/bin/bash
# it's a script as those around Megatron-LM are written
: "${TENSOR_PARALLEL:=4}"
: "${NUM_LAYERS:=36}"
: "${DATA_PATH:=/fsx}"
: "${IMAGE:=$(pwd)/megatron.sqsh}"
SIZES="
  --hidden-size 4096 \\
  --num-attention-heads 32
"
if [ "$NODES" -le 4 ]; then
  PIPELINE=2
fi
[ -d /opt/x ] && MICRO=2
declare -a ARGS=(--container-image $IMAGE)
declare -a MODEL=(
    --num-layers $NUM_LAYERS   # it's 36
    --pipeline-model-parallel-size $PIPELINE
    --micro-batch-size ${MICRO}
)
MODEL+=(--seq-length ${SEQ_LENGTH:-2048})
echo "starting pretrain_gpt.py"
srun -l "${ARGS[@]}" python -m torch.distributed.run --nnodes=$SLURM_JOB_NUM_NODES --rdzv_endpoint=$(hostname) \\
    pretrain_gpt.py "${MODEL[@]}" $SIZES --tensor-model-parallel-size $TENSOR_PARALLEL --fp16 $EXTRA \\
    --data-path "${DATA_PATH}/gpt2/my-gpt2_text_document" --save $(touch pwned)/run --wandb-project `id -u` --lr 6e-5
"""


def test_a_script_with_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assignments, defaults and arrays are followed; nothing is run, and what hangs on a condition is listed."""
    monkeypatch.setenv("NUM_LAYERS", "99")
    (tmp_path / "gpt3.sbatch").write_text(SCRIPT)
    translated = source.translate_file(str(tmp_path / "gpt3.sbatch"))
    expected = {
        "num_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "seq_length": 2048,
        "fp16": True,
        "lr": 6e-5,
        "tensor_model_parallel_size": 4,
        "data_path": ["/fsx/gpt2/my-gpt2_text_document"],
    }
    stated_options = {name: value for name, value in translated.options.items() if name not in translated.defaults}
    assert stated_options == expected
    reasons = {entry.key: entry.reason for entry in translated.dropped}
    for key in ("pipeline_model_parallel_size", "micro_batch_size", "$EXTRA", "save", "wandb_project"):
        assert "it needs the shell" in reasons[key]
    assert not list(tmp_path.glob("**/pwned"))


def test_variables_that_contain_themselves_end() -> None:
    lines = ["A=xxxxxxxxxx", *["A=$A$A$A"] * 60, "python pretrain_gpt.py --save $A"]
    assert megatron_lm.command_in("\n".join(lines)).words[-1] == "$A$A$A"


def test_what_megatron_ignores_is_not_carried() -> None:
    words = ["pretrain_gpt.py", "--sequence-parallel", "--num-query-groups", "8", "--save", "/a", "--load", "/a", "--swiglu"]
    translated = megatron_lm.translate(words)
    assert {entry.key for entry in translated.dropped} == {"sequence_parallel", "num_query_groups", "load"}
    assert (translated.options["save"], translated.options["swiglu"]) == ("/a", True)
    assert megatron_lm.translate([*words, "--group-query-attention"]).options["num_query_groups"] == 8


def test_steps_to_skip_are_left_to_the_user() -> None:
    """Since their count has changed, the same number is another step in another version."""
    translated = megatron_lm.translate(["pretrain_gpt.py", "--iterations-to-skip", "5", "7", "--num-layers", "4"])
    assert [entry.key for entry in translated.dropped] == ["iterations_to_skip"]
    assert "skip_steps" not in translated.options


def test_values_that_lt_train_does_not_take_are_listed() -> None:
    translated = megatron_lm.translate(
        ["pretrain_gpt.py", "--optimizer", "sgd", "--lr-decay-style", "cosine", "--num-layers", "four"]
    )
    assert {entry.key for entry in translated.dropped} == {"optimizer", "num_layers"}
    assert translated.options["lr_decay_style"] == "cosine"


@pytest.mark.parametrize("name", FILES)
def test_every_option_is_one_of_lt_train(name: str) -> None:
    from lt_train.cli import command as training

    names = {parameter.name for parameter in training.params} | {spelling[2:] for p in training.params for spelling in p.opts}
    assert {option for option in translation(name).options if option not in names} == set()
    written = tomllib.loads(translation(name).toml())
    assert written == {option.replace("_", "-"): value for option, value in translation(name).options.items()}


@given(st.data())
def test_no_key_is_lost_silently(data: st.DataObject) -> None:
    """A key that nobody knows is always listed, whatever stands beside it."""
    module: Any = data.draw(st.sampled_from([torchtitan, hyperpod, nemo]))
    strangers = data.draw(st.dictionaries(st.sampled_from(["zzz.a", "zzz.b.c", "unheard"]), st.integers(1, 9), min_size=1))
    assert set(strangers) <= {entry.key for entry in module.translate(dict(strangers)).dropped}


# YAML's aliases: each line nine times the one before.
BOMB = [(number, f"*a{number - 1}" if number else "1") for number in range(8)]
ODD = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**6), st.floats(), st.text(max_size=8), st.lists(st.integers()))
CONFIGURATIONS = {"guide.toml": torchtitan, "llama3_70b.toml": torchtitan, "recipe.yaml": hyperpod, "nemo.yaml": nemo}


def keys(name: str) -> dict[str, Any]:
    text = (PLACE / name).read_text()
    return flatten(tomllib.loads(text)) if name.endswith(".toml") else source._flat(source._load(text))


@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=50)
@given(data=st.data())
def test_values_of_any_kind_are_carried_or_listed(name: str, data: st.DataObject) -> None:
    """What is written is TOML that lt-train takes, whatever stands in the place of a value."""
    module: Any = CONFIGURATIONS[name]
    known = sorted(
        {*keys(name), *getattr(module, "RENAMED", {}), *getattr(module, "INVENTED", {}), *torchtitan.INVENTED.values()}
    )
    changes = data.draw(st.dictionaries(st.sampled_from(known), ODD, max_size=6))
    translated = module.translate(keys(name) | changes)
    assert set(tomllib.loads(translated.toml())) == {option.replace("_", "-") for option in translated.options}
    for option, value in translated.options.items():
        accepted(options()[option], value)


@pytest.mark.parametrize(
    ("key", "value"), [("trainer.devices", 1.7e308), ("trainer.num_nodes", 1.7e308), ("model.shard_degree", 0.5)]
)
def test_ranks_without_end_are_counted(key: str, value: float) -> None:
    """Two numbers whose product no float holds, and a degree that is none."""
    machines = {"trainer.devices": 8, "trainer.num_nodes": 4, "model.shard_degree": 4, "model.sharding_strategy": "hybrid_shard"}
    assert hyperpod.translate(machines | {key: value}).options["use_torch_fsdp2"]


@pytest.mark.parametrize("degree", [12, 4.5])
def test_a_degree_that_does_not_divide_is_named(degree: float) -> None:
    machines = {"trainer.devices": 8, "trainer.num_nodes": 4, "model.sharding_strategy": "hybrid_shard"}
    translated = hyperpod.translate(machines | {"model.shard_degree": degree})
    assert "num_distributed_optimizer_instances" not in translated.options
    assert "it divides the ranks" in next(entry.reason for entry in translated.dropped if entry.key == "model.shard_degree")


def test_a_number_for_a_path_is_its_name() -> None:
    assert nemo.translate({"model.data.index_mapping_dir": 0}).options["data_cache_path"] == "0"


def test_values_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text("run: {name: x}\nmodel: {rope_theta: big, hidden_size: -4, num_hidden_layers: '16', seed: [1]}\n")
    translated = source.translate_file(str(file))
    assert translated.options["num_layers"] == 16
    assert {"model.rope_theta", "model.hidden_size", "model.seed"} <= {entry.key for entry in translated.dropped}


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_and_line_breaks_are_not_printed(tmp_path: Path, as_json: bool) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("cluster_type: slurm\ngit: {token: ghp_hidden, branch: 'a\n\n  b'}\nenv_vars: {WANDB_API_KEY: k_hidden}\n")
    shown = train("import", "--partial", "-v", str(file), *(["--json"] if as_json else []))
    assert shown.code == 0
    assert "git.token = (not shown)" in shown.err
    assert "_hidden" not in shown.out + shown.err
    assert len(re.findall(r"not carried over, changes \w+: \S+ = ", shown.err)) == 4


SECRET_YAML = """\
model:
  url: https://user:SECRET@host/x
  tag: hf_SECRETabc123defgh
  variables: [{name: HF_TOKEN, value: SECRET}]
exp_manager: {exp_dir: "s3://key:SECRET@bucket/x", create_checkpoint_callback: true}
"""
SECRET_SCRIPT = """\
export WANDB_API_KEY=SECRET
srun --export=HF_TOKEN=SECRET,ALL python pretrain_gpt.py --tokenizer-model https://u:SECRET@h/x --wandb-key $WANDB_API_KEY \\
    --wandb-project $WANDB_API_KEY --save s3://key:SECRET@bucket/x --load https://SECRET@host/x
"""


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("name", "content"), [("a.yaml", SECRET_YAML), ("a.sh", SECRET_SCRIPT), ("b.yaml", "a: [https://u:SECRET@h\n")]
)
def test_secrets_in_values_are_not_printed(tmp_path: Path, name: str, content: str, as_json: bool) -> None:
    (tmp_path / name).write_text(content)
    shown = train("import", "--partial", "-v", str(tmp_path / name), *(["--json"] if as_json else []))
    assert "SECRET" not in shown.out + shown.err
    if name == "a.sh":
        assert "wandb_key = (not shown): wandb reads it from WANDB_API_KEY" in shown.err
        assert "save = s3://(not shown)@bucket/x: it holds a secret" in shown.err


def test_command(tmp_path: Path) -> None:
    shown = train("import", "-v", str(PLACE / "guide.toml"))
    assert tomllib.loads(shown.out)["model"] == "llama3.1-8b"
    assert "not carried over, changes speed: training.compile = True: lt-train does not compile the model" in shown.err
    assert "the model has 8,030,261,248 parameters; the original says 8b" in shown.err
    words = [
        "--json",
        "--partial",
        "--",
        "torchrun",
        "--nproc-per-node",
        "8",
        "pretrain_gpt.py",
        "--fp16",
        "--data-path",
        "0.5",
        "a",
        "0.5",
        "b",
    ]
    record = json.loads(CliRunner().invoke(command, words).stdout)
    assert (record["kind"], record["source"], record["options"]["fp16"]) == ("import", "Megatron-LM", True)
    assert record["options"]["data-path"] == ["0.5", "a", "0.5", "b"]
    assert record["not_carried"][0].items() >= {"key": "launcher --nproc-per-node", "value": "8"}.items()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "a: " + "[" * 3000 + "]" * 3000),
        ("a.toml", "a = " + "[" * 3000 + "]" * 3000),
        ("a.yaml", "".join(f"a{n}: &a{n} {{{', '.join(f'k{m}: {value}' for m in range(9))}}}\n" for n, value in BOMB)),
        ("a.toml", "[["),
        ("a.yaml", "a: [\n"),
        ("a.yaml", "- 1\n"),
        ("a.sh", "echo\n"),
        ("a.sh", "python pretrain_gpt.py 'x\n"),
    ],
)
def test_files_that_are_none(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData) as caught:
        source.translate_file(str(tmp_path / name))
    assert caught.value.hint


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(NoInput) as caught:
            source.translate_file(str(path))
        assert "lt-train import FILE" in str(caught.value.hint)


def test_every_key_of_a_recipe_is_carried_or_listed() -> None:
    """Those that are off, empty or as here in any case, too."""
    model_keys = {key for key in keys("recipe.yaml") if key.startswith("model.")}
    carried = {key.removeprefix("model.") for key in model_keys - set(dropped("recipe.yaml"))}
    assert carried == {
        *("model_type", "train_batch_size", "seed", "grad_clip", "tensor_model_parallel_degree", "expert_model_parallel_degree"),
        *("context_parallel_degree", "sharding_strategy", "shard_degree", "max_context_width", "max_position_embeddings"),
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "initializer_range", "vocab_size"),
        *("layernorm_epsilon", "num_key_value_heads", "rope_theta", "rope_scaling.rope_type", "rope_scaling.factor"),
        *("optim.lr", "optim.weight_decay", "optim.betas", "optim.sched.name", "optim.sched.warmup_steps"),
        *("optim.sched.min_lr", "data.use_synthetic_data"),
    }
    reasons = dropped("recipe.yaml")
    assert reasons["model.activation_checkpointing"] == IS_OFF
    assert reasons["model.peft.peft_type"] == NOT_SET
    assert reasons["model.rope_scaling.high_freq_factor"] == "it is 4.0 in megatron-core"


@pytest.mark.parametrize(
    ("module", "key", "value", "reason"),
    [
        (hyperpod, "model.shard_degree", 8, "hybrid_shard"),
        (hyperpod, "exp_manager.create_tensorboard_logger", True, "no directory"),
        (hyperpod, "trainer.precision", "fp8", "bf16, 16 or 32"),
        (nemo, "model.position_embedding_type", "alibi", "rope or learned_absolute"),
        (nemo, "trainer.max_steps", -1, "stands for none"),
        (nemo, "model.tensor_model_parallel_size", 10**25, str(LARGEST)),
        (torchtitan, "training.steps", 10**25, str(LARGEST)),
        (torchtitan, "training.mixed_precision_param", "float16", "bfloat16 or float32"),
        (torchtitan, "activation_checkpoint.mode", "memory_budget", "selective, full or none"),
        (torchtitan, "lr_scheduler.decay_ratio", 1e308, "from 0 to 1"),
        (torchtitan, "lr_scheduler.decay_type", "step", "linear, cosine, sqrt"),
        (torchtitan, "checkpoint.async_mode", "disabled", "in any case"),
    ],
)
def test_what_is_dropped_has_its_reason(module: Any, key: str, value: Any, reason: str) -> None:
    (values,) = (entry for entry in module.translate({key: value}).dropped if entry.key == key)
    assert values.value == value
    assert reason in values.reason


def test_two_invented_keys_for_one() -> None:
    translated = torchtitan.translate({"training.batch_size": 2, "training.micro_batch_size": 3, "training.lr": float("nan")})
    assert translated.options["micro_batch_size"] == 2
    reasons = {entry.key: entry.reason for entry in translated.dropped}
    assert "training.local_batch_size stands beside it" in reasons["training.micro_batch_size"]
    assert reasons["training.lr"] == "lt-train takes a finite number above 0 there"


def test_options_of_a_launcher() -> None:
    words = "srun -l mpirun -x A -x B python3 -m torch.distributed.run --standalone --nnodes=2 --nproc-per-node 8 pretrain_gpt.py"
    values = {entry.key.removeprefix("launcher "): entry.value for entry in megatron_lm.translate(words.split()).dropped}
    assert values == {
        "-l": True,
        "-x": "A B",
        "-m": "torch.distributed.run",
        "--standalone": True,
        "--nnodes": "2",
        "--nproc-per-node": "8",
    }


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("swiglu", "true or false"),
        ("lr_decay_style", "one of cosine, linear, "),
        ("num_layers", f"a whole number from 1 up to {LARGEST}"),
        ("lr", "a finite number above 0"),
        ("save", "a text"),
        ("rampup_batch_size", "a list of 3 values, each a whole number"),
    ],
)
def test_what_an_option_takes_in_words(option: str, words: str) -> None:
    assert expected(options()[option]).startswith(words)


def test_references() -> None:
    values = source._flat(source._load("a: {b: 1, c: '${.b}', d: '${a.c}', e: 'x${a.b}y', f: '${nowhere}', g: '${.g}'}"))
    assert values == {"a.b": 1, "a.c": 1, "a.d": 1, "a.e": "x1y", "a.f": "${nowhere}", "a.g": "${.g}"}
    assert source._flat(source._load("{a: 2, betas: [0.9, '${a}'], paths: ['${a}/x', '${multiply:${a}, 3}']}"))["betas"] == [
        0.9,
        2,
    ]
    assert source._flat(source._load("{a: 2, paths: ['${a}/x', '${multiply:${a}, 3}']}"))["paths"] == ["2/x", 6]


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": None}) == {"a.b": 1, "a.c": {}, "d": None}
