"""The named models have the published numbers of parameters."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, Mistral4ForCausalLM

from lt_shared.console import UsageError
from lt_shared.models import huggingface
from lt_shared.models.presets import PRESETS, preset

# Sums over the published checkpoints' tensors.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "phi3-mini-4k": 3_821_079_552,
    "phi3-medium-4k": 13_960_238_080,
    "phi4": 14_659_507_200,
    "granite-3.0-2b": 2_533_531_648,
    "granite-3.0-8b": 8_170_848_256,
    "granite-3.1-2b": 2_533_531_648,
    "granite-3.1-8b": 8_170_848_256,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    # Its files have 81,324,862,720, with a layer of multi-token prediction.
    "qwen3-next-80b-a3b": 79_674_391_296,
    # llama.cpp counts the language model.
    "qwen3.5-0.8b": 752_393_024,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    # The indexers of 61 layers are added to DeepSeek-V3.
    "deepseek-v3.2": 671_026_404_352 + 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128),
    "kimi-k2": 1_026_408_209_408,
    "kimi-linear-48b-a3b": 49_122_675_072,
    "qwen3-235b-a22b": 235_093_634_560,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "lfm2-350m": 354_483_968,
    "lfm2-700m": 742_489_344,
    "lfm2-1.2b": 1_170_340_608,
    "olmoe-1b-7b": 6_919_161_856,
    "command-r7b": 8_028_033_024,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "olmo-7b-0724": 6_888_095_744,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "smollm3-3b": 3_075_098_624,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}
# Billions, of publishers that round.
ROUNDED = {
    "granite-3.1-1b-a400m": 1.33,
    "granite-3.1-3b-a800m": 3.30,
    "granite-4.0-micro": 3.40,
    "ernie-4.5-21b-a3b": 21.8,
    "ernie-4.5-300b-a47b": 299.5,
    "apertus-8b": 8.05,
    "apertus-70b": 70.6,
    "mistral-small-4": 119,
    "command-a": 111.06,
    "lfm2-8b-a1b": 8.34,
    "nemotron-h-8b": 8.10,
    "bamba-9b": 9.78,
    "falcon-h1-0.5b": 0.52,
    "falcon-h1-1.5b-deep": 1.55,
    "falcon-h1-7b": 7.59,
    "falcon-h1-34b": 33.64,
    "granite-4.0-h-micro": 3.19,
    "granite-4.0-h-tiny": 6.94,
    "granite-4.0-h-small": 32.2,
    "nemotron-nano-12b-v2": 12.31,
    "nemotron-3-nano-30b-a3b": 31.58,
    "ministral3-3b": 3.43,
    "ministral3-8b": 8.49,
    "ministral3-14b": 13.5,
    "hunyuan-1.8b": 1.79,
    "hunyuan-7b": 7.50,
    "hunyuan-a13b": 80.4,
    "glm-4.7-flash": 29.9,
    "glm-5": 744,
    "dots.llm1": 143,
    "minimax-m2": 229,
    "seed-oss-36b": 36.2,
    "exaone-4.0-1.2b": 1.28,
    "exaone-4.0-32b": 32.0,
    "nemotron-4-15b": 15.6,
    "nemotron-4-340b": 341,
    "ernie-4.5-0.3b": 0.36,
    "glm-4-9b": 9.40,
    "glm-4-9b-0414": 9.40,
    # As llama.cpp counts the language models.
    "qwen3.5-2b": 1.88,
    "olmo-hybrid-7b": 7.43,
    "qwen3.5-4b": 4.21,
    "qwen3.5-9b": 8.95,
    "qwen3.5-27b": 26.90,
    "qwen3.5-35b-a3b": 34.66,
    "qwen3.5-122b-a10b": 122.11,
    "qwen3.5-397b-a17b": 396.35,
}
GPT_OSS = [("gpt-oss-20b", 4.187), ("gpt-oss-120b", 5.712)]
TINY = [name for name in PRESETS if name.startswith("tiny")]
GPT3 = [name for name in PRESETS if name.startswith("gpt3-")]
TOKENIZER = Path(__file__).parents[2] / "demo/tokenizer/vocab.json"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameters(name: str) -> None:
    assert preset(name).parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_published_billions(name: str) -> None:
    assert preset(name).parameters() / 1e9 == pytest.approx(ROUNDED[name], rel=5e-3)


@pytest.mark.parametrize("name", [*PUBLISHED, *ROUNDED, *TINY])
def test_transformers_makes_the_same_model(name: str) -> None:
    if preset(name).family == "gpt":
        config = GPT2Config(vocab_size=2048, n_positions=1024, n_embd=128, n_layer=4, n_head=4)
    else:
        written = huggingface.to_config(preset(name), "bfloat16")
        # transformers knows Kimi K2 as the DeepSeek-V3 that it is.
        written["model_type"] = written["model_type"].replace("kimi_k2", "deepseek_v3")
        config = AutoConfig.for_model(**written)
    with torch.device("meta"):
        # transformers 5.23's AutoModelForCausalLM does not know Mistral 4.
        is_unknown = config.model_type == "mistral4"
        model = Mistral4ForCausalLM(config) if is_unknown else AutoModelForCausalLM.from_config(config)
    assert preset(name).parameters() == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        *(("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("qwen3-30b-a3b", 3.353), ("qwen3-235b-a22b", 22.19)),
        *(("qwen3-next-80b-a3b", 3.875), ("qwen3.5-35b-a3b", 3.455), ("qwen3.5-122b-a10b", 9.771)),
        ("qwen3.5-397b-a17b", 17.349),
        *(
            ("deepseek-v2-lite", 2.661),
            ("deepseek-v2", 21.38),
            ("deepseek-v3", 37.55),
            ("deepseek-v3.2", 38.40),
            ("glm-5", 41.78),
            ("kimi-k2", 32.86),
            ("kimi-linear-48b-a3b", 3.48),
        ),
        *(
            ("granite-3.1-1b-a400m", 0.43),
            ("granite-3.1-3b-a800m", 0.88),
            ("ernie-4.5-21b-a3b", 3.35),
            ("ernie-4.5-300b-a47b", 47.93),
            ("hunyuan-a13b", 12.75),
        ),
        *(("glm-4.5", 33.63), ("glm-4.5-air", 13.42), ("glm-4.7-flash", 3.90)),
        *(("dots.llm1", 14.02), ("minimax-m2", 11.03), ("olmoe-1b-7b", 1.282), ("lfm2-8b-a1b", 1.558)),
        *GPT_OSS,
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert preset(name).active_parameters() / 1e9 == pytest.approx(billions, abs=0.05)


def test_every_preset_is_checked() -> None:
    assert set(PRESETS) == {*PUBLISHED, *ROUNDED, *GPT3, *TINY}
    assert len(GPT3) == 8
    assert all(architecture.name == name for name, architecture in PRESETS.items())


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_parameters(name: str) -> None:
    """The paper's formula, P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), leaves out the final layer norm."""
    model = preset(name)
    layers, hidden, positions, vocabulary = model.num_layers, model.hidden_size, 2048, 51200
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + positions) / (12 * layers * hidden))
    assert model.padded_vocab_size(128, tensor_parallel=8) == vocabulary
    assert model.parameters(vocabulary) == round(formula) + 2 * hidden
    assert f"gpt3-{formula / 1e9:.1f}b" == name


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("llama3")])
def test_llama3_rope(name: str) -> None:
    model = preset(name)
    factor = {"llama3-": None, "llama3.1": 8.0, "llama3.2": 32.0}[name[:7] if name[6] == "-" else name[:8]]
    assert model.rotary_base == 500000
    assert model.max_position_embeddings == (131072 if factor else 8192)
    assert (model.rope_scaling and dataclasses.astuple(model.rope_scaling)[:4]) == (factor and (factor, 1.0, 4.0, 8192))


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_presets_fit_the_demo_tokenizer(name: str) -> None:
    assert preset(name).vocab_size == len(json.loads(TOKENIZER.read_text()))


DOWNLOAD = "--model {}; its tokenizer: hf download {} --include '*token*' 'vocab*' 'merges*'"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llama9", "presets of a like name: llama2-7b, llama2-13b"),
        ("tny", "did you mean tiny?"),
        ("Llama-3.1-8B", "did you mean llama3.1-8b?"),
        ("xyz", "lt-train models lists the presets"),
        ("--help", "lt-train models lists the presets"),
        ("someone/my-model", "lt-train models lists the presets"),
        *(
            (name, DOWNLOAD.format(published, name))
            for name, published in (
                ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
                ("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"),
                ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
                ("Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"),
                ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"),
                ("google/gemma-3-1b-pt", "gemma3-1b"),
                ("allenai/OLMo-2-0425-1B", "olmo2-1b"),
                ("microsoft/Phi-3-mini-4k-instruct", "phi3-mini-4k"),
                ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
                ("openai/gpt-oss-20b", "gpt-oss-20b"),
                ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
                ("ibm-granite/granite-3.1-2b-base", "granite-3.1-2b"),
            )
        ),
        ("mistralai/Mixtral-8x7B-v0.1", "did you mean mixtral-8x7b"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_presets(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="no model preset") as caught:
        preset(name)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "nearest"), [("llama3-8", "llama3-8b"), ("Qwen3-8B", "qwen3-8b"), ("llama-3.1-70b", "llama3.1-70b")]
)
def test_a_name_like_one_of_them_is_answered_with_it(name: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        preset(name)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"did you mean {nearest}") and len(caught.value.hint) < 70
