"""Every field of the installed megatron-core's configuration is known, and what no other format has is refused by name."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.megatron_arguments import from_arguments, is_known, known_fields, remarks, to_arguments, without_effect

TABLE = Path(__file__).with_name("field_table.tsv")
DENSE = Architecture("run", "llama", 4, 32, 96, 4, 2, 250, 64)
EXPERTS = dataclasses.replace(DENSE, num_experts=4)


@pytest.mark.parametrize("configuration", [TransformerConfig, MLATransformerConfig])
def test_each_field_of_megatron_core_is_known(configuration: type) -> None:
    unknown = [field.name for field in dataclasses.fields(configuration) if not is_known(field.name)]
    assert not unknown, "decide in known_fields.py what each does to weights and logits"


def test_no_field_is_in_two_lists() -> None:
    names = [name for group in without_effect.GROUPS for name in group.names.split()]
    lists = [known_fields.READ, names, known_fields.TRAINING_ONLY, {*known_fields._OFF}, {*known_fields._HYBRIDS}]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))


def test_each_field_of_the_programs_has_the_fate_of_the_table() -> None:
    """field_table.py writes the table anew; its diff shows what a change of the lists means."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    assert len(rows) > 1000
    for field, programs, kind, reason, line, reader in rows:
        fate = known_fields.fate(field)
        assert fate and (fate[0].value, fate[1]) == (kind, reason), field
        assert programs and re.fullmatch(r"[\w./-]+@[\w.]+:[\w./]+:\d+", line), field
        assert kind == "mapped" or reason, field
        assert (kind == "without effect") == bool(reader), field


@pytest.mark.parametrize(
    "fields",
    [
        {"moe_mlp_glu_interleave_size": 16},
        {"moe_shared_expert_glu_interleave_size": 32},
        {"moe_router_load_balancing_type": "sinkhorn"},
        {"moe_router_load_balancing_type": "quantile_balancing"},
        {"moe_router_load_balancing_type": ["aux_loss", "sinkhorn"]},
        {"moe_router_topk_limited_devices": 1},
        {"moe_router_force_load_balancing": True},
        {"moe_router_force_biased": -0.5},
        {"moe_latent_size": 16},
        {"no_rope_freq": [0, 1, 0, 0]},
        {"squared_relu": True},
        {"head_wise_attn_gate": True},
        {"mrope_section": [4, 4]},
        {"rotary_seq_len_interpolation_factor": 4.0},
        {"mtp_use_repeated_layer": True, "mtp_num_layers": 2},
        {"heterogeneous_layers_config_path": "blocks.json"},
        {"experimental_attention_variant": "dsa", "linear_attention_freq": 4},
        {"linear_attention_freq": 0, "experimental_attention_variant": "gated_delta_net"},
        {"linear_attention_freq": [1, 0, 1], "experimental_attention_variant": "gated_delta_net"},
        {"hybrid_attention_ratio": 0.5},
        {"enable_mhc_connections": True},
        {"use_transformer_engine_full_layer_spec": True},
        {"enable_gpt_oss": True},
        {"window_size": (7, 0), "window_attn_skip_freq": [1, 0, 0, 1]},
    ],
)
def test_what_changes_the_model_is_refused_by_name(fields: dict[str, Any]) -> None:
    name = list(fields)[-1] if "window_size" in fields else next(iter(fields))
    with pytest.raises(BadConfig, match=name):
        from_arguments(to_arguments(EXPERTS) | fields, "run")


@pytest.mark.parametrize(
    "fields",
    [
        {"moe_router_load_balancing_type": ["seq_aux_loss"], "rotary_seq_len_interpolation_factor": 1, "no_rope_freq": 0},
        {"moe_router_load_balancing_type": "none", "moe_router_dtype": "fp32", "moe_z_loss_coeff": 1e-3},
        {"moe_router_num_groups": 1, "moe_router_group_topk": 1},
        {"window_size": None, "window_attn_skip_freq": [0, 0, 0, 0]},
        {"window_size": (-1, 0)},
        {"window_size": [-1, -1]},
        {"spec": None, "transformer_layer_spec": "local"},
        {"spec": ["local"]},
        {"spec": ["megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec"]},
    ],
)
def test_what_does_not_change_the_model_is_taken(fields: dict[str, Any]) -> None:
    assert from_arguments(to_arguments(EXPERTS) | fields, "run") == EXPERTS


def test_experts_arguments_of_a_model_without_experts_do_not_count() -> None:
    given = {"moe_mlp_glu_interleave_size": 16, "moe_router_load_balancing_type": "sinkhorn", "moe_expert_capacity_factor": 1.0}
    assert from_arguments(to_arguments(DENSE) | given, "run") == DENSE
    assert remarks(to_arguments(DENSE) | given) == []


@pytest.mark.parametrize(("pattern", "every"), [([1, 1, 1, 1], None), ([1, 0, 1, 0], 2), ([1, 1, 1, 0], 4)])
def test_a_list_of_layers_with_a_window(pattern: list[int], every: int | None) -> None:
    windows = {"window_size": (7, 0), "window_attn_skip_freq": pattern}
    found = from_arguments(to_arguments(DENSE) | windows, "run")
    assert found == dataclasses.replace(DENSE, sliding_window=8, window_attn_skip_freq=every)
    assert [found.window(layer) for layer in range(4)] == [8 if flag else None for flag in pattern]


def test_remarks_name_what_is_set_and_not_known() -> None:
    arguments = to_arguments(EXPERTS) | {"moe_expert_capacity_factor": 1.25, "moe_router_of_2030": 3, "moe_other_of_2030": None}
    assert remarks(arguments | {"lr_of_2030": 0.1}) == [
        "moe_expert_capacity_factor 1.25: Megatron drops tokens or adds noise with it, and no other program does",
        "moe_router_of_2030 3: not known here, and taken to change nothing",
    ]
    assert len(remarks(arguments | {"lr_of_2030": 0.1}, all_describe_model=True)) == 3
