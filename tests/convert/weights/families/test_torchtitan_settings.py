"""Settings of one family that TorchTitan computes as transformers does, and those that it does not, which are refused."""

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy
import nursery
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.console import UsageError
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.presets import preset
from lt_shared.models.rope_scaling import AnyScaling, LinearScaling, LongRopeScaling, RopeScaling, YarnScaling

LLAMA = Architecture("settings", "llama", 2, 32, 88, 4, 2, 250, 64, rotary_base=20000.0)
QWEN = dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16)
GPT_OSS = dataclasses.replace(
    LLAMA,
    num_experts=4,
    ffn_hidden_size=32,
    kv_channels=16,
    sliding_window=12,
    window_attn_skip_freq=2,
    attention_sinks=True,
    add_bias_linear=True,
    activation="clamped_swiglu",
)
DEEPSEEK = dataclasses.replace(
    LLAMA,
    num_query_groups=4,
    kv_channels=0,
    norm_epsilon=1e-6,
    latent_attention=LatentAttention(None, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=12),
    num_experts=6,
    moe_router_topk=3,
    moe_ffn_hidden_size=24,
    moe_shared_expert_intermediate_size=24,
    moe_first_dense_layers=1,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    moe_router_topk_scaling_factor=2.827,
)
MODELS = {"llama": LLAMA, "qwen3": QWEN, "gpt-oss": GPT_OSS, "deepseek": DEEPSEEK}
LLAMA3, PURE = RopeScaling(8.0, original_max_position_embeddings=32), YarnScaling(4.0, 16, attention_factor=1.0)
KIMI = YarnScaling(4.0, 16, beta_fast=1.0, mscale=1.0, mscale_all_dim=1.0)
LONG = LongRopeScaling((1.0,) * 4, (2.0,) * 4, 16)
SAME = {
    "llama, as 3.1": dataclasses.replace(LLAMA, rope_scaling=LLAMA3),
    "llama, pure YaRN": dataclasses.replace(LLAMA, rope_scaling=PURE),
    "qwen3, pure YaRN": dataclasses.replace(QWEN, rope_scaling=PURE),
    "deepseek, unscaled": DEEPSEEK,
    "deepseek, as 3.1": dataclasses.replace(DEEPSEEK, rope_scaling=LLAMA3),
    "deepseek, pure YaRN": dataclasses.replace(DEEPSEEK, rope_scaling=PURE),
    "deepseek, as Kimi K2": dataclasses.replace(DEEPSEEK, rope_scaling=KIMI),
}
REFUSED: list[tuple[str, AnyScaling, str]] = [
    ("llama", LinearScaling(4.0), r"\(linear\) that TorchTitan's llama lacks"),
    ("llama", LONG, r"\(longrope\) that TorchTitan's llama lacks"),
    ("llama", YarnScaling(4.0, 16), "keys by 1.13863, in TorchTitan's llama by 1$"),
    ("qwen3", YarnScaling(4.0, 16), "keys by 1.13863, in TorchTitan's qwen3 by 1$"),
    ("qwen3", LLAMA3, r"\(llama3\) that TorchTitan's qwen3 lacks"),
    ("gpt-oss", PURE, "keys by 1, in TorchTitan's gpt_oss by 1.13863$"),
    ("deepseek", YarnScaling(4.0, 16), "keys by 1.13863, in TorchTitan's deepseek_v3 by 1$"),
    ("deepseek", YarnScaling(4.0, 16, mscale=0.7, mscale_all_dim=1.0), "keys by 0.963475, in"),
    ("deepseek", LinearScaling(4.0), r"\(linear\) that TorchTitan's deepseek_v3 lacks"),
]
# By TorchTitan's name: ours, and in what they differ beside lengths and norms.
FLAVORS: dict[str, tuple[str, list[str]]] = {"16B": ("deepseek-v2-lite", ["mscale"]), "671B": ("deepseek-v3", [])}
TOKENS = [[(7 * position * position + 3) % 250 for position in range(60)]]
CLOSE = 1e-5


def torchtitan(directory: Path, jobs: list[dict[str, object]]) -> None:
    (directory / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[2] / "torchtitan_families.py"
    done = subprocess.run([nursery.python(), script, directory / "jobs.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclasses.dataclass(frozen=True)
class Results:
    """`logits` of every model in SAME, by transformers and by TorchTitan; by flavor, in what its configuration is `differing`."""

    logits: dict[str, tuple[numpy.ndarray, numpy.ndarray]]
    differing: dict[str, list[str]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By one process: TorchTitan takes longer to import than all of this to compute."""
    root = tmp_path_factory.mktemp("settings")
    jobs: list[dict[str, object]] = []
    expected = {}
    for name, architecture in SAME.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**huggingface.to_config(architecture, "float32"))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
            expected[name] = model(torch.tensor(TOKENS)).logits.numpy()
        model.save_pretrained(root / name)
        convert(Request(str(root / name), "torchtitan", str(root / f"{name} there")))
        job: dict[str, object] = {"architecture": architecture.to_record(), "tokens": TOKENS, "hf": str(root / name)}
        jobs.append(job | {"load": str(root / f"{name} there"), "logits": str(root / f"{name}.npy")})
    for flavor, (name, _) in FLAVORS.items():
        differing = str(root / f"{flavor}.json")
        jobs.append({"architecture": preset(name).to_record(), "flavor": flavor, "differing": differing})
    torchtitan(root, jobs)
    return Results(
        {name: (expected[name], numpy.load(root / f"{name}.npy")) for name in SAME},
        {flavor: json.loads((root / f"{flavor}.json").read_text()) for flavor in FLAVORS},
    )


@pytest.mark.parametrize("name", SAME)
def test_torchtitan_computes_what_transformers_does(results: Results, name: str) -> None:
    expected, found = results.logits[name]
    assert numpy.abs(found - expected).max() < CLOSE * numpy.abs(expected).max()


@pytest.mark.parametrize(("name", "scaling", "said"), REFUSED)
def test_what_torchtitan_would_scale_in_another_way_is_refused(
    name: str, scaling: AnyScaling, said: str, write_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", dataclasses.replace(MODELS[name], rope_scaling=scaling))
    with pytest.raises(UsageError, match=said):
        convert(Request(str(model), "torchtitan", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_the_settings_that_torchtitans_own_configurations_need_are_named(
    write_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaling = YarnScaling(4.0, 16, mscale=0.707, mscale_all_dim=0.707)
    model = write_model(tmp_path / "model", dataclasses.replace(DEEPSEEK, rope_scaling=scaling))
    convert(Request(str(model), "torchtitan", str(tmp_path / "out")))
    assert "norms with an epsilon of 1e-05: give yours 1e-06, and an mscale of 0.707\n" in capsys.readouterr().err


@pytest.mark.parametrize("flavor", FLAVORS)
def test_in_what_torchtitans_own_configurations_differ(results: Results, flavor: str) -> None:
    assert results.differing[flavor] == sorted(["eps", "max_seq_len", *FLAVORS[flavor][1]])
