"""The model of TorchTitan's config registry: which tokens see each other, and layers that lt-train does not have."""

from pathlib import Path

import pytest
from importers.python.test_recipes import TITAN, options, refusal

ATTENTION = "param_init=i,"
DOCUMENTS = ("reset-position-ids", "reset-attention-mask")


def written(text: str, tmp_path: Path) -> str:
    file = tmp_path / "registry.py"
    file.write_text(
        text.replace(
            "import FeedForward, GQAttention",
            "import FeedForward, FlexAttention, GQAttention, SigmoidGatedFeedForward, VarlenAttention",
        )
    )
    return f"{file}:small"


@pytest.mark.parametrize(
    ("attention", "is_by_document"),
    [
        # torchtitan/models/common/config_utils.py since June 2026: language models always mask other documents.
        ("inner_attention=FlexAttention.Config()", True),
        ("inner_attention=VarlenAttention.Config(window_size=(-1, 0))", True),
        ("inner_attention=FlexAttention.Config(), mask_type='block_causal'", True),
        # April and May 2026: positions of documents are dropped with a causal mask.
        ("inner_attention=FlexAttention.Config(), mask_type='causal'", False),
        ("attn_backend='sdpa', attn_mask_type='causal'", False),
    ],
)
def test_tokens_of_packed_documents(attention: str, is_by_document: bool, tmp_path: Path) -> None:
    found = options(written(TITAN.replace(ATTENTION, f"param_init=i, {attention},"), tmp_path))
    assert [found.get(name, False) for name in DOCUMENTS] == [is_by_document] * 2


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (ATTENTION, "softcap=30.0,", "layers.0.attention.softcap"),
        (
            ATTENTION,
            "inner_attention=VarlenAttention.Config(window_size=(127, 0)),",
            "layers.0.attention.inner_attention.window_size",
        ),
        (ATTENTION, "use_rope=False,", "layers.0.attention.use_rope"),
        (ATTENTION, "attn_mask_type='block_causal',", "layers.0.attention.attn_mask_type"),
        ("out_features=3 * dim)", "out_features=3 * dim, bias=True)", "layers.0.feed_forward.w1.bias"),
        ("FeedForward.Config(w1", "SigmoidGatedFeedForward.Config(w1", "layers.0.feed_forward"),
        ("n_heads=4, n_kv", "n_heads=4 if i < 2 else 8, n_kv", "layers.2"),
        ("eps=1e-5)", "eps=1e-5, elementwise_affine=False)", "norm.elementwise_affine"),
        ("qk_norm=None", "qk_norm=RMSNorm.Config(eps=1e-6)", "layers.0.norm_eps"),
        ('scaling="none"', 'scaling="yarn"', "layers.0.attention.rope.scaling"),
        ("layers=_layers", "final_scale=2.0, layers=_layers", "final_scale"),
    ],
)
def test_parts_that_lt_train_has_not_are_named(old: str, new: str, part: str | None, tmp_path: Path) -> None:
    assert old in TITAN
    refused = refusal(written(TITAN.replace(old, new), tmp_path))
    assert f"another model would result, without model_spec.model.{part}\n" in refused if part else not refused


def test_the_name_of_a_flavor_is_no_model_if_its_layers_are_others(tmp_path: Path) -> None:
    text = TITAN.replace("flavor=flavor, model=model", 'flavor="8B", model=model')
    assert options(written(text, tmp_path))["num-layers"] == 4
    assert "no model: neither its name nor its layers are known" in refusal(
        written(text.replace("Llama3Model", "MyModel"), tmp_path)
    )


def test_one_description_for_all_layers(tmp_path: Path) -> None:
    """As in revision 9810191bb, of February 2026."""
    layer = (
        "Llama3TransformerBlock.Config(norm_eps=1e-5, depth_init=True, feed_forward=FeedForward.Config(hidden_dim=384),"
        " attention=GQAttention.Config(n_heads=4, n_kv_heads=2, qk_norm=False, attn_backend='sdpa', attn_mask_type='causal'))"
    )
    rope = 'RoPE.Config(dim=32, max_seq_len=4096, theta=500000, backend="complex", scaling="llama", scaling_factor=8.0,'
    rope += " low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)"
    new = f"layer={layer}, n_layers=count, vocab_size=512, norm_eps=1e-5, rope={rope}"
    old = "layers=_layers(count, dim), norm=RMSNorm.Config(eps=1e-5), lm_head=Linear.Config(out_features=512)"
    assert old in TITAN
    text = TITAN.replace(old, new)
    found = options(written(text, tmp_path))
    expected = {"num-layers": 4, "ffn-hidden-size": 384, "kv-channels": 32, "vocab-size": 512, "rope-scaling-factor": 8.0}
    assert {name: found[name] for name in expected} == expected
    assert "layers.0.attention.bias" in refusal(written(text.replace("qk_norm=False", "bias=True"), tmp_path))
    assert "rope.low_freq_factor" in refusal(written(text.replace("low_freq_factor=1.0", "low_freq_factor=2.0"), tmp_path))


def test_a_schedule_without_a_pipeline_changes_nothing(tmp_path: Path) -> None:
    text = TITAN.replace("tensor_parallel_degree=2", 'pipeline_parallel_schedule="Interleaved1F1B"')
    assert "num-virtual-stages-per-pipeline-rank" not in options(written(text, tmp_path))
    text = TITAN.replace("tensor_parallel_degree=2", 'pipeline_parallel_degree=2, pipeline_parallel_schedule="Interleaved1F1B"')
    assert options(written(text, tmp_path))["num-virtual-stages-per-pipeline-rank"] == 2


def test_documents_packed_as_wholes_are_other_data(tmp_path: Path) -> None:
    text = TITAN.replace(
        "def small", "from torchtitan.components.data import FirstFitPackingConfig, GrainDataLoader\n\n\ndef small"
    )
    text = text.replace(
        "model_spec=model_reg",
        "dataloader=GrainDataLoader.Config(dataset=FirstFitPackingConfig(dataset=None)), model_spec=model_reg",
    )
    assert "without program.dataloader" in refusal(written(text, tmp_path))
    text = text.replace("FirstFitPackingConfig", "ConcatThenSplitPackingConfig")
    assert not refusal(written(text, tmp_path))


FLOAT8 = "Float8LinearConverter.Config(recipe_name='rowwise', filter_fqns=['lm_head'])"


@pytest.mark.parametrize(
    ("converter", "options_or_error"),
    [
        (FLOAT8, {"fp8-format": "hybrid", "fp8-recipe": "rowwise", "num-layers": 4}),
        ("MXFP8LinearConverter.Config()", "another run would result, without model.converters"),
        ("LoRAConverter.Config(rank=8)", "another run would result, without model.converters"),
    ],
)
def test_converters_of_linear_layers(converter: str, options_or_error: dict[str, object] | str, tmp_path: Path) -> None:
    """As model_registry has applied them to the model's configuration since April 2026."""
    text = TITAN.replace(
        "    return ModelSpec(",
        f"    for converter in [{converter}]:\n        model = converter.build().convert(model)\n    return ModelSpec(",
    )
    text = f"from torchtitan.components.lora import LoRAConverter\n{text}"
    text = f"from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter\n{text}"
    if isinstance(options_or_error, str):
        assert options_or_error in refusal(written(text, tmp_path))
    else:
        found = options(written(text, tmp_path))
        assert {name: found.get(name) for name in options_or_error} == options_or_error
