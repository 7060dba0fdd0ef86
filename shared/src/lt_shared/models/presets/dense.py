"""GPT-3, Llama, Mistral, Qwen2, Qwen3 and Mixtral, each with its exact feed-forward size.

The feed-forward size is explicit because Megatron's default of 8/3 x hidden size gives another model: for Llama 2 70B it is
21,824 where Meta's is 28,672, a model of 55.5 B parameters that matches no Llama 2 configuration.
"""

import dataclasses

from lt_shared.models.architecture import Architecture, RopeScaling


def _gpt3(size: str, layers: int, hidden: int, heads: int) -> Architecture:
    """Table 1 of arXiv:2104.04473: GPT-2 vocabulary, 2,048 positions, tied embeddings, feed-forward 4 x hidden."""
    return Architecture(
        name=f"gpt3-{size}",
        family="gpt",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        vocab_size=50257,
        max_position_embeddings=2048,
        tie_embeddings=True,
        init_std=0.006,
    )


def llama(name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, positions: int) -> Architecture:
    return Architecture(
        name=name,
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=vocab,
        max_position_embeddings=positions,
    )


def _llama3(name: str, layers: int, hidden: int, ffn: int, heads: int, rope_factor: float | None) -> Architecture:
    """Llama 3 (8,192 positions, `rope_factor` None) and 3.1/3.2 (131,072 positions with scaled RoPE)."""
    base = llama(name, layers, hidden, ffn, heads, 8, 128256, 131072 if rope_factor else 8192)
    scaling = RopeScaling(factor=rope_factor) if rope_factor else None
    return dataclasses.replace(base, rotary_base=500000.0, rope_scaling=scaling, tie_embeddings=name.startswith("llama3.2"))


def _qwen(
    name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, positions: int, epsilon: float = 1e-6
) -> Architecture:
    """Qwen2, Qwen2.5 (biases of queries, keys and values) and Qwen3 (norms of queries and keys, heads of 128). The vocabulary is
    config.json's, which rounds the tokenizer's up; the models up to 4 B tie their embeddings."""
    third = name.startswith("qwen3")
    return dataclasses.replace(
        llama(name, layers, hidden, ffn, heads, groups, vocab, positions),
        kv_channels=128 if third else hidden // heads,
        norm_epsilon=epsilon,
        rotary_base=1000000.0,
        tie_embeddings=hidden < 3000,
        add_qkv_bias=not third,
        qk_layernorm=third,
    )


def _mixtral(
    name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, vocab: int, positions: int, coefficient: float
) -> Architecture:
    return dataclasses.replace(
        llama(name, layers, hidden, ffn, heads, groups, vocab, positions),
        rotary_base=1000000.0,
        num_experts=8,
        moe_router_topk=2,
        moe_aux_loss_coeff=coefficient,
    )


TINY = dataclasses.replace(llama("tiny", 4, 128, 352, 4, 2, 2048, 1024), tie_embeddings=True)

DENSE = (
    TINY,
    dataclasses.replace(_gpt3("", 4, 128, 4), name="tiny-gpt3", vocab_size=2048, max_position_embeddings=1024, init_std=0.02),
    dataclasses.replace(TINY, name="tiny-mistral", sliding_window=256),
    dataclasses.replace(TINY, name="tiny-qwen2", add_qkv_bias=True),
    dataclasses.replace(TINY, name="tiny-qwen3", qk_layernorm=True, kv_channels=64),
    dataclasses.replace(TINY, name="tiny-mixtral", num_experts=4, ffn_hidden_size=176, moe_aux_loss_coeff=0.01),
    _gpt3("1.7b", 24, 2304, 24),
    _gpt3("3.6b", 30, 3072, 32),
    _gpt3("7.5b", 36, 4096, 32),
    _gpt3("18.4b", 40, 6144, 48),
    _gpt3("39.1b", 48, 8192, 64),
    _gpt3("76.1b", 60, 10240, 80),
    _gpt3("145.6b", 80, 12288, 96),
    _gpt3("310.1b", 96, 16384, 128),
    llama("llama2-7b", 32, 4096, 11008, 32, 32, 32000, 4096),
    llama("llama2-13b", 40, 5120, 13824, 40, 40, 32000, 4096),
    llama("llama2-70b", 80, 8192, 28672, 64, 8, 32000, 4096),
    _llama3("llama3-8b", 32, 4096, 14336, 32, None),
    _llama3("llama3-70b", 80, 8192, 28672, 64, None),
    _llama3("llama3.1-8b", 32, 4096, 14336, 32, 8.0),
    _llama3("llama3.1-70b", 80, 8192, 28672, 64, 8.0),
    _llama3("llama3.1-405b", 126, 16384, 53248, 128, 8.0),
    _llama3("llama3.2-1b", 16, 2048, 8192, 32, 32.0),
    _llama3("llama3.2-3b", 28, 3072, 8192, 24, 32.0),
    # Version 0.1; version 0.3 has no window, another base of its rotary embeddings, and a larger vocabulary.
    dataclasses.replace(llama("mistral-7b", 32, 4096, 14336, 32, 8, 32000, 32768), sliding_window=4096),
    dataclasses.replace(llama("mistral-7b-v0.3", 32, 4096, 14336, 32, 8, 32768, 32768), rotary_base=1000000.0),
    _mixtral("mixtral-8x7b", 32, 4096, 14336, 32, 8, 32000, 32768, 0.02),
    _mixtral("mixtral-8x22b", 56, 6144, 16384, 48, 8, 32000, 65536, 0.001),
    _qwen("qwen2-0.5b", 24, 896, 4864, 14, 2, 151936, 131072),
    _qwen("qwen2-1.5b", 28, 1536, 8960, 12, 2, 151936, 131072),
    _qwen("qwen2-7b", 28, 3584, 18944, 28, 4, 152064, 131072),
    _qwen("qwen2-72b", 80, 8192, 29568, 64, 8, 152064, 131072, 1e-5),
    _qwen("qwen2.5-0.5b", 24, 896, 4864, 14, 2, 151936, 32768),
    _qwen("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 151936, 131072),
    _qwen("qwen2.5-3b", 36, 2048, 11008, 16, 2, 151936, 32768),
    _qwen("qwen2.5-7b", 28, 3584, 18944, 28, 4, 152064, 131072),
    _qwen("qwen2.5-14b", 48, 5120, 13824, 40, 8, 152064, 131072, 1e-5),
    _qwen("qwen2.5-32b", 64, 5120, 27648, 40, 8, 152064, 131072, 1e-5),
    _qwen("qwen2.5-72b", 80, 8192, 29568, 64, 8, 152064, 131072, 1e-5),
    _qwen("qwen3-0.6b", 28, 1024, 3072, 16, 8, 151936, 40960),
    _qwen("qwen3-1.7b", 28, 2048, 6144, 16, 8, 151936, 40960),
    _qwen("qwen3-4b", 36, 2560, 9728, 32, 8, 151936, 40960),
    _qwen("qwen3-8b", 36, 4096, 12288, 32, 8, 151936, 40960),
    _qwen("qwen3-14b", 40, 5120, 17408, 40, 8, 151936, 40960),
    _qwen("qwen3-32b", 64, 5120, 25600, 64, 8, 151936, 40960),
)
