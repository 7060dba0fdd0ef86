"""Which pipeline stage has which layers, in Megatron-Bridge's run_config.yaml."""

from typing import Any

import pytest

from lt_train.importers import megatron_bridge

LAYOUT, VIRTUAL = "pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size"
MODEL = {"model._target_": "megatron.bridge.models.llama.llama_provider.LlamaModelProvider", "model.num_layers": 4}


def options(**fields: Any) -> dict[str, Any]:
    values = MODEL | {"model.pipeline_model_parallel_size": 2} | {f"model.{name}": value for name, value in fields.items()}
    result = megatron_bridge.translate(values).options
    names = (LAYOUT, "num_virtual_stages_per_pipeline_rank", *megatron_bridge.stages.ENDS)
    return {name: result[name] for name in names if name in result}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({VIRTUAL: 1}, {}),
        ({VIRTUAL: None}, {}),
        ({VIRTUAL: 2}, {"num_virtual_stages_per_pipeline_rank": 2}),
        ({LAYOUT: "Ett|ttL"}, {LAYOUT: "Ett|ttL"}),
        (
            {LAYOUT: [["embedding", "decoder"], ["decoder"], ["decoder"], ["decoder", "mtp", "loss"]], VIRTUAL: 2},
            {LAYOUT: "Et|t|t|tmL"},
        ),
        ({"account_for_embedding_in_pipeline_split": True}, {"account_for_embedding_in_pipeline_split": True}),
        ({"account_for_loss_in_pipeline_split": False}, {}),
    ],
)
def test_stages(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert options(**fields) == expected


def test_a_layout_with_other_parts_is_told() -> None:
    values = MODEL | {f"model.{LAYOUT}": [["embedding", "encoder"], ["decoder", "loss"]]}
    translation = megatron_bridge.translate(values)
    assert LAYOUT not in translation.options
    assert [entry.effect.name for entry in translation.dropped if LAYOUT in entry.key] == ["SPEED"]
