"""Seed-OSS, and a tiny one: biases of queries, keys and values, and heads that are wider than their share of the hidden size."""

import dataclasses

from lt_shared.models.presets.dense import TINY, llama

SEED_OSS = (
    dataclasses.replace(
        TINY, name="tiny-seed-oss", add_qkv_bias=True, kv_channels=64, tie_embeddings=False, model_type="seed_oss"
    ),
    dataclasses.replace(
        llama("seed-oss-36b", 64, 5120, 27648, 80, 8, 155136, 524288),
        kv_channels=128,
        norm_epsilon=1e-6,
        rotary_base=10000000.0,
        add_qkv_bias=True,
        model_type="seed_oss",
    ),
)
