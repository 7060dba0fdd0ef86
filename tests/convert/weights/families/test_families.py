"""Every family, through every format that has it, computes the same in transformers, megatron-core and TorchTitan.

Twice, in each direction: a model of transformers is converted and loaded by the others, and a checkpoint that megatron-core made
itself is converted and loaded by transformers. Logits are compared in float32, over positions beyond the sliding window.
"""

import concurrent.futures
import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import nursery
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from lt_convert.commands.conversion import Request, convert
from lt_convert.formats import WRITTEN
from lt_convert.weights.families import FAMILIES, family_of, qwen2
from lt_convert.weights.mapping import TORCHTITAN
from lt_shared.console import BadData, UsageError
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.rope_scaling import LinearScaling, YarnScaling

LLAMA = Architecture("family", "llama", 3, 32, 88, 4, 2, 250, 64, rotary_base=20000.0)
GPT = dataclasses.replace(LLAMA, family="gpt", num_query_groups=4, rotary_base=10000.0)
DEEPSEEK_LATENT = LatentAttention(q_lora_rank=24, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=12)
DEEPSEEK = dataclasses.replace(
    LLAMA,
    num_query_groups=4,
    kv_channels=0,
    norm_epsilon=1e-6,
    latent_attention=DEEPSEEK_LATENT,
    num_experts=4,
    moe_ffn_hidden_size=24,
    moe_shared_expert_intermediate_size=48,
    moe_first_dense_layers=1,
)
GEMMA = dataclasses.replace(
    LLAMA,
    tie_embeddings=True,
    norm_placement="both",
    layernorm_zero_centered_gamma=True,
    activation="gelu_tanh",
    embedding_multiplier=32**0.5,
    softmax_scale=12**-0.5,
    sliding_window=24,
    window_attn_skip_freq=2,
)
GRANITE = dataclasses.replace(
    LLAMA,
    embedding_multiplier=8.0,
    residual_multiplier=0.22,
    softmax_scale=0.0625,
    logits_scaling=4.0,
    model_type="granitemoehybrid",
)
ARCHITECTURES = {
    "llama": LLAMA,
    "mistral": dataclasses.replace(LLAMA, sliding_window=24),
    "qwen2": dataclasses.replace(LLAMA, add_qkv_bias=True, tie_embeddings=True),
    "qwen3": dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16, tie_embeddings=True),
    "mixtral": dataclasses.replace(LLAMA, num_experts=4, ffn_hidden_size=40),
    "qwen3-moe": dataclasses.replace(
        LLAMA, num_experts=4, ffn_hidden_size=40, moe_router_topk=3, qk_layernorm=True, kv_channels=16, norm_epsilon=1e-6
    ),
    "qwen3-moe-unnormalised": dataclasses.replace(
        LLAMA, num_experts=4, ffn_hidden_size=40, qk_layernorm=True, kv_channels=16, moe_router_pre_softmax=True
    ),
    "qwen2-moe": dataclasses.replace(
        LLAMA,
        num_experts=4,
        ffn_hidden_size=40,
        add_qkv_bias=True,
        moe_shared_expert_intermediate_size=48,
        moe_shared_expert_gate=True,
        moe_router_pre_softmax=True,
        norm_epsilon=1e-6,
    ),
    "phi3": dataclasses.replace(LLAMA, sliding_window=24, rotary_percent=0.5, model_type="phi3"),
    # As wide as its experts, like the published ones: a matrix that is not transposed fits.
    "gpt-oss": dataclasses.replace(
        LLAMA,
        num_experts=4,
        ffn_hidden_size=32,
        kv_channels=16,
        sliding_window=12,
        window_attn_skip_freq=2,
        rope_scaling=YarnScaling(4.0, 16, truncate=False),
        attention_sinks=True,
        add_bias_linear=True,
        activation="clamped_swiglu",
    ),
    "glm4-moe": dataclasses.replace(
        LLAMA,
        kv_channels=16,
        rotary_percent=0.5,
        add_qkv_bias=True,
        qk_layernorm=True,
        num_experts=8,
        moe_router_topk=3,
        moe_ffn_hidden_size=24,
        moe_shared_expert_intermediate_size=24,
        moe_first_dense_layers=1,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=2.5,
    ),
    "deepseek-v3": dataclasses.replace(
        DEEPSEEK,
        num_experts=8,
        moe_router_topk=4,
        moe_router_num_groups=4,
        moe_router_group_topk=2,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_topk_scaling_factor=2.5,
        rope_scaling=YarnScaling(4.0, 16, mscale=1.0, mscale_all_dim=1.0),
    ),
    "deepseek-v2-lite": dataclasses.replace(
        DEEPSEEK,
        latent_attention=dataclasses.replace(DEEPSEEK_LATENT, q_lora_rank=None),
        moe_router_pre_softmax=True,
        rope_scaling=YarnScaling(4.0, 16, mscale=0.707, mscale_all_dim=0.707),
    ),
    "deepseek-v2": dataclasses.replace(DEEPSEEK, moe_router_pre_softmax=True),
    "arcee": dataclasses.replace(LLAMA, activation="relu2", gated_linear_unit=False),
    "starcoder2": dataclasses.replace(
        LLAMA,
        activation="gelu_tanh",
        gated_linear_unit=False,
        normalization="LayerNorm",
        add_bias_linear=True,
        sliding_window=24,
        tie_embeddings=True,
    ),
    "smollm3": dataclasses.replace(LLAMA, no_rope_freq=2, tie_embeddings=True),
    "glm": dataclasses.replace(LLAMA, kv_channels=16, rotary_percent=0.5, add_qkv_bias=True, model_type="glm"),
    "gpt2": dataclasses.replace(GPT, tie_embeddings=True),
    "gpt3": GPT,
}
DEEPSEEKS = tuple(name for name in ARCHITECTURES if name.startswith("deepseek"))
# megatron-core has no such models; tests/pipeline trains them.
WITHOUT_MEGATRON = {
    "olmo2": dataclasses.replace(LLAMA, qk_layernorm=True, qk_layernorm_width="all_heads", norm_placement="post"),
    "olmo3": dataclasses.replace(
        LLAMA,
        qk_layernorm=True,
        qk_layernorm_width="all_heads",
        norm_placement="post",
        sliding_window=24,
        window_attn_skip_freq=2,
        rope_scaling=YarnScaling(4.0, 32),
        local_rotary_base=20000.0,
    ),
    "ministral3": dataclasses.replace(
        LLAMA, rope_scaling=YarnScaling(4.0, 16, mscale=1.0, mscale_all_dim=1.0), query_temperature_beta=0.1
    ),
    "hunyuan": dataclasses.replace(LLAMA, qk_layernorm=True, qk_layernorm_after_rope=True, tie_embeddings=True),
    "hunyuan-moe": dataclasses.replace(
        LLAMA,
        qk_layernorm=True,
        qk_layernorm_after_rope=True,
        num_experts=4,
        ffn_hidden_size=40,
        moe_shared_expert_intermediate_size=40,
    ),
    "cohere2": dataclasses.replace(
        LLAMA,
        normalization="LayerNorm",
        layernorm_parameters="weight",
        parallel_layers=True,
        logits_scaling=4.0,
        sliding_window=24,
        window_attn_skip_freq=2,
        no_rope_freq=2,
        tie_embeddings=True,
    ),
    "olmo1": dataclasses.replace(LLAMA, normalization="LayerNorm", layernorm_parameters="none", clip_qkv=8.0),
    "granite4": dataclasses.replace(GRANITE, no_rope_freq=1),
    "granite4-moe": dataclasses.replace(
        GRANITE, num_experts=4, ffn_hidden_size=40, moe_shared_expert_intermediate_size=24, norm_epsilon=1e-6
    ),
    "ernie4.5-moe": dataclasses.replace(
        LLAMA,
        num_experts=4,
        moe_ffn_hidden_size=24,
        moe_shared_expert_intermediate_size=48,
        moe_first_dense_layers=1,
        moe_router_enable_expert_bias=True,
        tie_embeddings=True,
    ),
    "apertus": dataclasses.replace(LLAMA, activation="xielu", gated_linear_unit=False, qk_layernorm=True),
    # megatron-core scores a group by its two best experts.
    "deepseek-v2-groups": dataclasses.replace(
        DEEPSEEK,
        num_experts=8,
        moe_router_topk=4,
        moe_router_num_groups=4,
        moe_router_group_topk=2,
        moe_router_group_score_topk=1,
        moe_router_pre_softmax=True,
    ),
    "gemma2": dataclasses.replace(GEMMA, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gemma3": dataclasses.replace(GEMMA, qk_layernorm=True, local_rotary_base=10000.0, rope_scaling=LinearScaling(8.0)),
}
IN_TORCHTITAN = ("llama", "qwen3", "qwen3-moe", "qwen3-moe-unnormalised", "gpt-oss", *DEEPSEEKS)
# The checkpoint is the same on any ranks: one family of each kind of matrices that two ranks share, and of each kind of layers,
# some that go to the second stage.
SHARED = ("llama", "qwen2", "qwen3", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3", "gpt2")
PIPELINED = ("qwen2", "gpt-oss", "deepseek-v3", "gpt2")
PADDED = 256
TOKENS = [[(7 * position * position + 3) % 250 for position in range(60)]]
CLOSE = 1e-5


def logits_of(directory: Path) -> numpy.ndarray:
    """Of the model that transformers loads from `directory`, float32 [1, position, vocabulary]."""
    model, found = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(found.values()), found
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS)).logits.numpy()


def make_model(directory: Path, architecture: Architecture) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**huggingface.to_config(architecture, "float32")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.3)
    model.save_pretrained(directory)


@dataclasses.dataclass(frozen=True)
class Results:
    """Where everything is: models by transformers, what they became, and logits under (family, how they were computed)."""

    root: Path
    logits: dict[tuple[str, str], numpy.ndarray]


@pytest.fixture(scope="module")
def results(megatron: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("families")
    # Not in one of the threads below, with which it would end.
    nursery.python()
    for name, architecture in ARCHITECTURES.items():
        make_model(root / name, architecture)
        convert(Request(str(root / name), "megatron-dist", str(root / f"{name}-megatron")))
    for name in IN_TORCHTITAN:
        convert(Request(str(root / name), "torchtitan", str(root / f"{name}-torchtitan")))

    def job(name: str, how: str, **more: Any) -> dict[str, Any]:
        common = {"architecture": ARCHITECTURES[name].to_record(), "padded_vocab_size": PADDED, "tokens": TOKENS}
        return common | {"logits": str(root / f"{name}.{how}.npy")} | more

    def converted(name: str, how: str, **more: Any) -> dict[str, Any]:
        return job(name, how, load=str(root / f"{name}-megatron" / "release"), **more)

    alone = [converted(name, "one rank") for name in ARCHITECTURES]
    alone += [job(name, "made by Megatron", save=str(root / f"{name}-made")) for name in ARCHITECTURES]
    apart = [converted(name, "tensor parallel", tensor_parallel=2) for name in SHARED]
    apart += [converted(name, "pipeline parallel", pipeline_parallel=2) for name in PIPELINED]
    split = [job(name, f"split {name}", save=str(root / f"{name}-split"), tensor_parallel=2) for name in ("mixtral", "gpt2")]
    titans = [job(name, "TorchTitan", load=str(root / f"{name}-torchtitan"), hf=str(root / name)) for name in IN_TORCHTITAN]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in (
            pool.submit(megatron, alone),
            pool.submit(megatron, apart + split, world_size=2),
            pool.submit(torchtitan, root, titans),
        ):
            done.result()
    logits = {
        (path.name.split(".")[0], path.name.split(".")[1]): numpy.load(path)[..., : LLAMA.vocab_size]
        for path in root.glob("*.*.npy")
    }
    return Results(root, logits | {(name, "transformers"): logits_of(root / name) for name in ARCHITECTURES})


def torchtitan(root: Path, jobs: list[dict[str, Any]]) -> None:
    """Run jobs for torchtitan_families.py."""
    (root / "torchtitan.json").write_text(json.dumps(jobs))
    script = Path(__file__).parents[2] / "torchtitan_families.py"
    done = subprocess.run([nursery.python(), script, root / "torchtitan.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "one rank") for name in ARCHITECTURES),
        *((name, "tensor parallel") for name in SHARED),
        *((name, "pipeline parallel") for name in PIPELINED),
    ],
)
def test_megatron_computes_what_transformers_does(results: Results, name: str, how: str) -> None:
    expected = results.logits[name, "transformers"]
    assert numpy.abs(expected).max() > 1
    assert numpy.abs(results.logits[name, how] - expected).max() < CLOSE


@pytest.mark.parametrize("name", IN_TORCHTITAN)
def test_torchtitan_computes_what_transformers_does(results: Results, name: str) -> None:
    assert numpy.abs(results.logits[name, "TorchTitan"] - results.logits[name, "transformers"]).max() < CLOSE


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers_computes_what_megatron_does(results: Results, name: str, tmp_path: Path) -> None:
    """From a checkpoint that megatron-core made of local layers, with its own names for all that it stores."""
    convert(Request(str(results.root / f"{name}-made"), "hf", str(tmp_path / "hf")))
    assert numpy.abs(logits_of(tmp_path / "hf") - results.logits[name, "made by Megatron"]).max() < CLOSE


@pytest.mark.parametrize("name", ["mixtral", "gpt2"])
def test_what_two_ranks_saved_is_what_one_did(results: Results, name: str, tmp_path: Path) -> None:
    for kind in ("made", "split"):
        convert(Request(str(results.root / f"{name}-{kind}"), "hf", str(tmp_path / kind)))
    stored = [(tmp_path / kind / "model.safetensors").read_bytes() for kind in ("made", "split")]
    assert stored[0] == stored[1]


@pytest.mark.parametrize(("name", "through"), [(name, to) for name in ARCHITECTURES for to in WRITTEN if to != "hf"])
def test_there_and_back_is_the_same_model(
    results: Results, stored_tensors: Callable[[Path], dict[str, Any]], name: str, through: str, tmp_path: Path
) -> None:
    """Names, dtypes, shapes and bits of every tensor, and what config.json means. TorchTitan lacks some models."""
    if through == "torchtitan" and name not in IN_TORCHTITAN:
        with pytest.raises(UsageError, match=r"torchtitan has no models of the .* family|only gpt-oss has a sliding window"):
            convert(Request(str(results.root / name), through, str(tmp_path / "there")))
        assert list(tmp_path.iterdir()) == []
        return
    there = tmp_path / "there"
    if through in ("megatron-legacy", "megatron-hybrid"):
        convert(Request(str(results.root / name), through, str(there)))
    else:
        there = results.root / f"{name}-{through.removesuffix('-dist')}"
    convert(Request(str(there), "hf", str(tmp_path / "back")))
    assert stored_tensors(tmp_path / "back") == stored_tensors(results.root / name)
    again = AutoConfig.from_pretrained(tmp_path / "back")
    assert huggingface.from_config(again.to_dict(), "family") == ARCHITECTURES[name]


@pytest.mark.parametrize("name", WITHOUT_MEGATRON)
def test_what_only_lt_train_computes_comes_back_and_other_formats_refuse(
    name: str, stored_tensors: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    make_model(tmp_path / "model", WITHOUT_MEGATRON[name])
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "there")))
    convert(Request(str(tmp_path / "there"), "hf", str(tmp_path / "back")))
    assert stored_tensors(tmp_path / "back") == stored_tensors(tmp_path / "model")
    again = AutoConfig.from_pretrained(tmp_path / "back").to_dict()
    assert huggingface.from_config(again, "family") == WITHOUT_MEGATRON[name]
    for format_name in ("megatron-legacy", "torchtitan"):
        refusal = (
            f"{format_name} has no models of the .* family|only gpt-oss has a sliding window|Megatron-LM lacks"
            "|scores a group of experts by its best 1, TorchTitan's deepseek_v2 by its best 2"
        )
        with pytest.raises((UsageError, BadData), match=refusal):
            convert(Request(str(tmp_path / "model"), format_name, str(tmp_path / "refused")))


@pytest.mark.parametrize("names", ["written", "in memory", "of 2025"])
def test_of_a_gemma_that_sees_the_language_model_is_read(
    names: str, stored_tensors: Callable[[Path], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = AutoConfig.for_model(**huggingface.to_config(WITHOUT_MEGATRON["gemma3"], "float32"))
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "gemma3", text_config=text.to_dict(), vision_config={**vision, "image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    if names == "in memory":
        stored = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    elif names == "of 2025":
        stored = {re.sub(r"^model\.language_model\.", "language_model.model.", name): each for name, each in stored.items()}
        stored = {re.sub(r"^model\.(?=vision|multi)", "", name): tensor for name, tensor in stored.items()}
    save_file({name: tensor.clone() for name, tensor in stored.items()}, tmp_path / "model" / "model.safetensors")
    convert(Request(str(tmp_path / "model"), "megatron-dist", str(tmp_path / "there")))
    assert "left out what is not the language model: " in (said := capsys.readouterr().err) and "vision_tower" in said
    convert(Request(str(tmp_path / "there"), "hf", str(tmp_path / "back")))
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert found.config.model_type == "gemma3_text"
    with torch.no_grad():
        logits = [each(torch.tensor(TOKENS)).logits for each in (model.eval(), found)]
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_a_gpt2_of_2019_is_read(results: Results, dtype: torch.dtype, tmp_path: Path) -> None:
    """Its names lack the prefix, and its file carries the causal mask of every layer."""
    tensors = {
        name.removeprefix("transformer."): tensor
        for name, tensor in load_file(results.root / "gpt2" / "model.safetensors").items()
    }
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64, dtype=dtype) for layer in range(GPT.num_layers)}
    (tmp_path / "old").mkdir()
    save_file(tensors | masks | {"h.0.attn.masked_bias": torch.tensor(-1e4)}, tmp_path / "old" / "model.safetensors")
    shutil.copy(results.root / "gpt2" / "config.json", tmp_path / "old")
    convert(Request(str(tmp_path / "old"), "megatron-dist", str(tmp_path / "run")))
    stored = [(run / "release" / "__0_0.distcp").read_bytes() for run in (tmp_path / "run", results.root / "gpt2-megatron")]
    assert stored[0] == stored[1]


def test_every_model_type_has_a_family() -> None:
    assert set(FAMILIES) == set(huggingface.MODEL_TYPES)


def test_features_that_no_family_has_together() -> None:
    with pytest.raises(BadData, match="family: no supported family has this combination"):
        family_of(dataclasses.replace(LLAMA, add_qkv_bias=True, qk_layernorm=True))


def test_the_manual_shows_a_family_as_it_is() -> None:
    docs = Path(__file__).parents[4] / "docs"
    (shown,) = re.findall(r"```python\n(.*?)```", (docs / "weight-tables.md").read_text(), re.DOTALL)
    manual = (docs / "guides/conversion.md").read_text()
    assert shown.strip() in Path(str(qwen2.__file__)).read_text()
    for name, family in FAMILIES.items():
        row = next(line for line in manual.splitlines() if line.startswith(f"| {family.name} |"))
        assert row.endswith("| all |") == (TORCHTITAN in family.tables), name
