"""Model families: the same results as transformers, the same losses in every layout, and sizes changed by Megatron's flags."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from families import ONE_BY_ONE, compare
from flag_sets import FLAG_SETS
from layouts import Outcome, plan_of, sampled, train_all
from reserved_ports import free_port
from running import BRIEF, BRIEF_LOSSES, environment
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lt_shared.console import BadConfig, BadData, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, RopeScaling
from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION
from lt_shared.models.presets import PRESETS, preset
from lt_shared.models.rope_scaling import LinearScaling, YarnScaling
from lt_train.cli import command as train
from lt_train.config.settings import layers
from lt_train.config.settings.model.description import describe
from lt_train.models.mixers import rope

HERE = Path(__file__).parents[1]
SHORT = ("--num-layers", "2", "--seq-length", "64", "--device", "cpu")
TRAINING = (*BRIEF, "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128")
# As many rotated channels as LongRoPE has numbers for.
HEADS = ("--kv-channels", "32")
WINDOW = ("--window-size", "15,0")
TENSOR = ("--tensor-model-parallel-size", "2")
SEQUENCE = (*TENSOR, "--sequence-parallel")
PIPELINE = ("--pipeline-model-parallel-size", "2")
CONTEXT = ("--context-parallel-size", "2")
EXPERT = ("--ranks", "2", "--expert-model-parallel-size", "2")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3-moe", "phi3", "gpt-oss", "glm4-moe")
DEEPSEEKS = ("deepseek-v3", "deepseek-v2")
UNUSUAL_SCALING = RopeScaling(8.0, low_freq_factor=2.0, high_freq_factor=8.0, original_max_position_embeddings=128)


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that no preset and no flag describes."""
    architecture = dataclasses.replace(preset("tiny"), rope_scaling=UNUSUAL_SCALING, num_layers=2)
    file = tmp_path_factory.mktemp("scaled") / "config.json"
    file.write_text(json.dumps(huggingface.to_config(architecture, "float32")))
    for scaling in (YarnScaling(4.0, 32), LinearScaling(4.0)):
        other = dataclasses.replace(architecture, rope_scaling=scaling)
        file.with_name(f"{scaling.rope_type}.json").write_text(json.dumps(huggingface.to_config(other, "float32")))
    return file


@pytest.fixture(scope="module")
def deepseek_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a DeepSeek-V3 that scales positions within the test's sequence, with another epsilon than its latents."""
    scaling = YarnScaling(8.0, 16, mscale=1.0, mscale_all_dim=0.7)
    architecture = dataclasses.replace(preset("tiny-deepseek-v3"), rope_scaling=scaling, norm_epsilon=1e-3, mtp_num_layers=0)
    file = tmp_path_factory.mktemp("deepseek") / "config.json"
    file.write_text(json.dumps(huggingface.to_config(architecture, "float32")))
    return file


@pytest.fixture(scope="module")
def differences(dataset: Dataset, config_file: Path, deepseek_file: Path) -> dict[str, dict[str, float]]:
    commands = {
        "llama": ("--model", "tiny"),
        "mistral": ("--model", "tiny-mistral", *WINDOW),
        "mup": ("--model", "tiny", "--use-mup", "--mup-base-hidden-size", "64", "--mup-embedding-mult", "3"),
        "qwen2": ("--model", "tiny-qwen2"),
        "qwen3": ("--model", "tiny-qwen3"),
        "mixtral": ("--model", "tiny-mixtral"),
        "qwen3-moe": ("--model", "tiny-qwen3-moe"),
        "phi3": ("--model", "tiny-phi3"),
        "yarn": ("--model", str(config_file.parent / "yarn.json")),
        "linear": ("--model", str(config_file.parent / "linear.json")),
        "gpt-oss": ("--model", "tiny-gpt-oss"),
        "glm4-moe": ("--model", "tiny-glm4-moe", "--mtp-num-layers", "0"),
        "deepseek-v3": ("--model", str(deepseek_file), "--num-layers", "3"),
        "deepseek-v2": ("--model", "tiny-deepseek-v2"),
        "llama3.2": ("--model", "llama3.2-1b", *TRAINING, "--num-attention-heads", "4", "--num-query-groups", "2"),
        "another scaling": ("--model", str(config_file)),
    }
    for name, architecture in FLAG_SETS.items():
        file = config_file.with_name(f"{name}.json")
        file.write_text(json.dumps(huggingface.to_config(architecture, "float32")))
        commands[name] = ("--model", str(file), "--num-layers", str(architecture.num_layers))
    commands[ONE_BY_ONE] = (*commands["v2 in groups, like V2 itself"], ONE_BY_ONE)
    return compare({name: [*SHORT, *arguments, dataset.prefix] for name, arguments in commands.items()})


@pytest.mark.parametrize(
    "family", [*FAMILIES, *DEEPSEEKS, "mup", "llama3.2", "another scaling", "yarn", "linear", *FLAG_SETS, ONE_BY_ONE]
)
def test_transformers_computes_the_same(family: str, differences: dict[str, dict[str, float]]) -> None:
    """In fp32. A window that is one token wider makes a difference of 1, another rope scaling one of 3e-3 and more."""
    assert differences[family]["logits"] < 1e-5
    assert differences[family]["gradient"] < 1e-5


def in_every_layout(family: str) -> dict[str, tuple[str, ...]]:
    """Runs of a family: on one rank, on two in each way, stopped and resumed."""
    layouts = {"tp2": SEQUENCE, "pp2": PIPELINE, "cp2": CONTEXT, "ep2": EXPERT, "stopped": ("--exit-interval", "1")}
    resumed = ("--load", f"{{place}}/{family}-stopped")
    return {family: ()} | {f"{family}-{name}": layout for name, layout in (layouts | {"resumed": resumed}).items()}


# The first two have what no other family has in layers, in checkpoints and at the ends of stages: biases that balance experts,
# and sinks. The others have the layers of Llama or of Mixtral, but for positions, windows, biases and norms of heads.
BY_FAMILY = sampled(
    {
        "glm4-moe": in_every_layout("glm4-moe"),
        "phi3": {"phi3": HEADS, "phi3-tp2": (*HEADS, *SEQUENCE), "phi3-cp2": (*HEADS, *CONTEXT)},
        "gpt-oss": in_every_layout("gpt-oss"),
        "qwen3-moe": {"qwen3-moe": (), "qwen3-moe-tp2": SEQUENCE, "qwen3-moe-ep2": EXPERT},
        "qwen3": {"qwen3": (), "qwen3-tp2": TENSOR},
        "qwen2": {"qwen2": (), "qwen2-tp2": SEQUENCE},
        "mistral": {"mistral": WINDOW, "mistral-cp2": (*WINDOW, *CONTEXT)},
    }
)
RUNS: dict[str, tuple[str, ...]] = {
    "mixtral": (),
    "mixtral-ep2": EXPERT,
    "mixtral-tp2": SEQUENCE,
    "mixtral-stopped": (*EXPERT, "--exit-interval", "1"),
    "mixtral-resumed": ("--load", "{place}/mixtral-stopped"),
    "mixtral-again": (*EXPERT, "--load", "{place}/mixtral-stopped"),
    "mixtral-unbalanced": ("--moe-aux-loss-coeff", "0"),
    **{name: run for runs in BY_FAMILY.values() for name, run in runs.items()},
    "gpt3-dropped": ("--hidden-dropout", "0.1", "--attention-dropout", "0.1"),
    "gpt3-again": ("--hidden-dropout", "0.1", "--attention-dropout", "0.1"),
    "gpt3": (),
}


def family(name: str) -> str:
    """Of a run: the longest beginning of its name that a tiny preset has."""
    parts = name.split("-")
    return next(found for end in range(len(parts), 0, -1) if (found := "-".join(parts[:end])) and f"tiny-{found}" in PRESETS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def outcomes(place: Path, dataset: Dataset) -> dict[str, Outcome]:
    commands = {
        name: (
            *("--model", f"tiny-{family(name)}", *TRAINING),
            *(option.format(place=place) for option in options),
            dataset.prefix,
        )
        for name, options in RUNS.items()
    }
    return train_all(commands, place, 2, saving=[name for name in commands if name.endswith("-stopped")])


@pytest.mark.parametrize("name", [name for name in RUNS if name.split("-")[-1] in ("ep2", "tp2", "pp2", "cp2")])
def test_layouts_of_a_family_equal_one_rank(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].error is None
    alone = outcomes[family(name)].losses
    assert alone.keys() == BRIEF_LOSSES
    assert outcomes[name].losses == pytest.approx(alone, abs=5e-6)


def test_experts_on_two_ranks_resume_on_one(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["mixtral-stopped"].losses.keys() < outcomes["mixtral"].losses.keys()
    both = outcomes["mixtral-stopped"].losses | outcomes["mixtral-resumed"].losses
    assert both == pytest.approx(outcomes["mixtral"].losses, abs=5e-6)


def test_experts_on_two_ranks_resume_with_the_same_bits(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["mixtral-stopped"].losses | outcomes["mixtral-again"].losses == outcomes["mixtral-ep2"].losses


@pytest.mark.parametrize("name", sorted({family(name) for name in RUNS if name.endswith("-resumed")} - {"mixtral"}))
def test_a_resumed_run_has_the_same_bits(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[f"{name}-stopped"].losses.keys() < outcomes[name].losses.keys()
    assert outcomes[f"{name}-stopped"].losses | outcomes[f"{name}-resumed"].losses == outcomes[name].losses


def test_the_auxiliary_loss_trains_and_is_not_reported(outcomes: dict[str, Outcome]) -> None:
    balanced, unbalanced = outcomes["mixtral"].losses, outcomes["mixtral-unbalanced"].losses
    assert unbalanced["step", 1] == balanced["step", 1]
    assert abs(unbalanced["eval", 2] - balanced["eval", 2]) > 1e-7


def test_the_log_says_what_is_trained(place: Path, outcomes: dict[str, Outcome]) -> None:
    assert outcomes["mixtral"].error is None
    log = (place / "mixtral/train.log").read_text()
    assert "2 layers of width 64, 4 experts of 128, 2 per token" in log
    assert "353,088 parameters, 254,784 of them active per token" in log


def test_dropout_changes_training_alike_each_time(outcomes: dict[str, Outcome]) -> None:
    without, dropped = outcomes["gpt3"].losses, outcomes["gpt3-dropped"].losses
    assert abs(dropped["step", 1] - without["step", 1]) > 1e-4
    assert dropped == outcomes["gpt3-again"].losses


def expected_frequencies(architecture: Architecture) -> torch.Tensor:
    written = huggingface.to_config(architecture, "float32")
    config = AutoConfig.for_model(**written | {"model_type": written["model_type"].replace("kimi_k2", "deepseek_v3")})
    if architecture.rope_scaling is None:
        channels = torch.arange(0, architecture.rotary_channels, 2) / architecture.rotary_channels
        return 1.0 / architecture.rotary_base**channels
    kind = architecture.rope_scaling.rope_type
    of_layers = {"layer_type": "full_attention"} if architecture.local_rotary_base else {}
    frequencies: torch.Tensor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **of_layers)[0]
    return frequencies


@pytest.mark.parametrize("name", [name for name, shape in PRESETS.items() if shape.family == "llama"])
def test_rotary_frequencies_of_the_presets(name: str) -> None:
    torch.testing.assert_close(rope.inverse_frequencies(preset(name)), expected_frequencies(preset(name)), rtol=1e-6, atol=0)


def test_rotary_frequencies_of_another_scaling_and_of_a_part_of_the_head() -> None:
    other = dataclasses.replace(preset("llama3.2-1b"), rope_scaling=UNUSUAL_SCALING)
    torch.testing.assert_close(rope.inverse_frequencies(other), expected_frequencies(other), rtol=1e-6, atol=0)
    part = dataclasses.replace(preset("llama2-7b"), rotary_percent=0.25)
    torch.testing.assert_close(rope.inverse_frequencies(part)[-1].item(), 10000 ** -(30 / 32))
    assert len(rope.inverse_frequencies(part)) == 16


@pytest.fixture
def architecture_of(dataset: Dataset) -> Callable[..., Architecture]:
    return lambda *options: plan_of(["--device", "cpu", *options, dataset.prefix]).architecture


def test_flags_change_single_sizes_of_a_preset(architecture_of: Callable[..., Architecture]) -> None:
    experts = architecture_of("--model", "tiny", "--num-experts", "8", "--moe-router-topk", "3", "--moe-ffn-hidden-size", "96")
    assert (experts.num_experts, experts.moe_router_topk, experts.ffn_hidden_size) == (8, 3, 96)
    changed = architecture_of("--model", "tiny", "--add-qkv-bias", "--qk-layernorm", "--rotary-percent", "0.5", *WINDOW)
    assert (changed.add_qkv_bias, changed.qk_layernorm, changed.rotary_percent, changed.sliding_window) == (True, True, 0.5, 16)
    assert architecture_of("--model", "mistral-7b", "--window-size", "none").sliding_window is None
    assert architecture_of("--model", "mixtral-8x7b", "--moe-aux-loss-coeff", "0.5").moe_aux_loss_coeff == 0.5
    assert architecture_of("--model", "tiny", "--use-rope-scaling").rope_scaling == RopeScaling(8.0)
    assert architecture_of("--model", "llama3.1-8b", "--rope-scaling-factor", "4").rope_scaling == RopeScaling(4.0)


def test_any_rope_scaling_as_in_config_json(architecture_of: Callable[..., Architecture]) -> None:
    yarn = '{"type": "yarn", "factor": 4, "original_max_position_embeddings": 256}'
    assert architecture_of("--model", "tiny", "--rope-scaling", yarn).rope_scaling == YarnScaling(4, 256)
    linear = '{"rope_type": "linear", "factor": 2.0}'
    assert architecture_of("--model", "llama3.1-8b", "--rope-scaling", linear).rope_scaling == LinearScaling(2.0)
    assert architecture_of("--model", "llama3.1-8b", "--rope-scaling", "none").rope_scaling is None
    own = architecture_of("--model", "tiny", "--rope-scaling", '{"rope_type": "yarn", "factor": 2.0}').rope_scaling
    assert own == YarnScaling(2.0, preset("tiny").max_position_embeddings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rope-scaling", "{"], "--rope-scaling '{': "),
        (["--rope-scaling", '{"rope_type": "dynamic", "factor": 2}'], "rope scaling type 'dynamic'"),
        (["--rope-scaling", '{"rope_type": "yarn", "factor": 0}'], "factor is 0, must be positive|factor"),
        (["--rope-scaling", "none", "--use-rope-scaling"], "beside an option for Llama 3.1's scaling"),
    ],
)
def test_a_rope_scaling_that_says_nothing(architecture_of: Callable[..., Architecture], options: list[str], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        architecture_of("--model", "tiny", *options)


def test_a_model_from_config_json(architecture_of: Callable[..., Architecture], config_file: Path) -> None:
    from_file = architecture_of("--model", str(config_file))
    assert from_file.rope_scaling == UNUSUAL_SCALING
    assert architecture_of("--model", str(config_file.parent)) == from_file
    assert architecture_of("--model", str(config_file), "--num-layers", "3").num_layers == 3


def test_a_file_that_is_no_configuration(architecture_of: Callable[..., Architecture], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    for place in (tmp_path, tmp_path / "config.json"):
        with pytest.raises((BadData, BadConfig), match=r"config\.json|model type"):
            architecture_of("--model", str(place))
    with pytest.raises(UsageError, match="no model preset"):
        architecture_of("--model", str(tmp_path / "nothing"))


SEED_FLAGS = (
    *("--num-layers", "80", "--hidden-size", "8192", "--num-attention-heads", "64", "--num-query-groups", "8"),
    *("--group-query-attention", "--ffn-hidden-size", "28672", "--untie-embeddings-and-output-weights", "--swiglu"),
    *("--position-embedding-type", "rope", "--no-position-embedding", "--normalization", "RMSNorm", "--disable-bias-linear"),
    *("--no-masked-softmax-fusion", "--no-rope-fusion", "--use-flash-attn", "--use-mcore-models", "--vocab-size", "32000"),
    *("--transformer-impl", "local", "--max-position-embeddings", "4096", "--tensor-model-parallel-size", "4"),
)


def test_megatrons_own_flags_make_llama2_70b(
    architecture_of: Callable[..., Architecture], capsys: pytest.CaptureFixture[str]
) -> None:
    assert architecture_of(*SEED_FLAGS) == dataclasses.replace(preset("llama2-70b"), name="custom")
    assert "without effect here: --use-mcore-models, --use-flash-attn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "tiny-mixtral", "--tensor-model-parallel-size", "2"), "need sequence parallelism"),
        (("--model", "tiny-mixtral", "--ranks", "3", "--expert-model-parallel-size", "3"), "4 experts not divisible"),
        (("--model", "tiny-mixtral", "--ranks", "3", "--expert-model-parallel-size", "2"), "does not divide the 3 ranks"),
        (("--model", "tiny-mixtral", "--ranks", "4", "--expert-model-parallel-size", "2", *SEQUENCE), "only equal parts"),
        (("--model", "tiny", "--expert-model-parallel-size", "2"), "without experts"),
        (("--model", "tiny", "--moe-router-topk", "2"), "--moe-router-topk for a model without experts"),
        (("--model", "tiny-gpt3", "--num-experts", "2"), "Llama style only"),
        (("--model", "tiny-gpt3", "--no-position-embedding"), "learned positions"),
        (("--model", "tiny", "--window-size", "128,128"), "'128,128' is not"),
        (("--model", "tiny-gpt-oss", "--tensor-model-parallel-size", "2"), "need sequence parallelism"),
        (("--model", "tiny", "--rope-scaling-factor", "2"), "tiny has no rope scaling"),
        (
            ("--model", "tiny-mixtral", "--moe-grouped-gemm", "--ranks", "2", *SEQUENCE),
            "--moe-grouped-gemm does not support tensor parallel size 2",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(
    options: tuple[str, ...], message: str, architecture_of: Callable[..., Architecture]
) -> None:
    with pytest.raises(BadConfig, match=message):
        architecture_of(*options)


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [("auto", False), ("torch", False), ("local", False), ("te", True), ("transformer_engine", True)],
)
def test_a_word_for_the_layers_changes_nothing(asked: str, is_told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for where in ("cuda", "cpu"):
        silent = layers.resolve_layers(train.make_context("lt-train", []).params, where)
        assert silent.triton == (where == "cuda")
        assert capsys.readouterr().err == ""
        words = train.make_context("lt-train", ["--transformer-impl", asked]).params
        assert layers.resolve_layers(words, where) == silent
        note = f"--transformer-impl {asked} has no effect: lt-train's layers compute the run, with the same weights\n"
        assert capsys.readouterr().err.endswith(f": {note}" if is_told else "")


def test_the_word_for_the_layers_is_not_in_the_help() -> None:
    page = CliRunner().invoke(train, ["--help"]).output
    assert "--kernels" in page
    assert "--transformer-impl" not in page and "TransformerEngine" not in page


def test_the_manual_names_every_preset() -> None:
    manual = (HERE.parents[1] / "docs/guides/models.md").read_text()
    assert [name for name in PRESETS if f"`{name}`" not in manual] == []


@pytest.mark.parametrize(
    "name", ["gpt3-1.7b", "llama3.2-1b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b", "gpt-oss-20b"]
)
def test_the_description_counts_exactly(name: str) -> None:
    lines = describe(preset(name))
    assert f"{preset(name).parameters():,} parameters" in lines[1]
    assert ("active" in lines[1]) == (name in ("mixtral-8x7b", "gpt-oss-20b"))
    assert math.prod(len(line) < 260 for line in lines)


def test_the_description_says_which_layers_differ() -> None:
    assert describe(preset("tiny"))[0].startswith("model tiny: 4 layers of width 128, feed-forward 352, ")
    mixed = dataclasses.replace(preset("tiny-deepseek-v2"))
    vars(mixed)["mixers"] = {ATTENTION: (0, 1, 3), LATENT_ATTENTION: (2,)}
    assert "4 layers of width 128, attention in 3 of them, 8 experts" in describe(mixed)[0]


def test_what_is_not_used_is_not_imported(tmp_path: Path) -> None:
    """megatron-core imports these wherever they are. TransformerEngine's kernels would read a CPU's memory as a GPU's; the others
    take half a second. As the one rank of a launcher, which is one process.
    """
    for package in ("transformer_engine", "wandb", "tensorboard"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise SystemExit('{package} is imported')")
    command = [sys.executable, "-m", "lt_train", "--mock-data", "--model", "tiny", "--seq-length", "32", "--train-iters", "1"]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [*command, "--eval-iters", "0", "--device", "cpu"],
        env=environment() | rank | {"MASTER_PORT": str(free_port()), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
