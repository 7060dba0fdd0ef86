"""Initial weights do not depend on how a parameter is split, and have the distribution that they should have."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.dist_checkpointing.mapping import ShardedTensor

from lt_shared.models import presets
from lt_train.parallel import initialization

ARCHITECTURE = dataclasses.replace(presets.preset("tiny"), vocab_size=1000, num_layers=8, init_std=0.02)
SHAPE = (96, 80)


def share(key: str, shape: tuple[int, ...], rows: slice, columns: slice, layer: tuple[int, ...] = ()) -> ShardedTensor:
    """The part `rows` x `columns` of a parameter of `shape`, in memory that is not initialised."""
    data = torch.full(shape, float("nan"))[rows, columns].contiguous()
    offset = (*layer, rows.start or 0, columns.start or 0)
    return ShardedTensor(
        key, data, data.dtype, tuple(data.shape), (8,) * len(layer) + shape, offset, None, prepend_axis_num=len(layer)
    )


def draw(key: str, shape: tuple[int, ...] = SHAPE, seed: int = 1, layer: tuple[int, ...] = ()) -> torch.Tensor:
    whole = share(key, shape, slice(None), slice(None), layer)
    initialization.initialize([whole], ARCHITECTURE, seed)
    return whole.data


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 95), st.integers(1, 96), st.integers(0, 79), st.integers(1, 80), st.integers(1, 3000))
def test_any_share_equals_its_part_of_the_whole(row: int, height: int, column: int, width: int, block: int) -> None:
    whole = draw("decoder.layers.mlp.linear_fc1.weight", layer=(3,))
    rows, columns = slice(row, row + height), slice(column, column + width)
    part = share("decoder.layers.mlp.linear_fc1.weight", SHAPE, rows, columns, layer=(3,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialization, "BLOCK_ELEMENTS", block)
        initialization.initialize([part], ARCHITECTURE, 1)
    assert torch.equal(part.data, whole[rows, columns])


def test_weights_are_normal_with_the_deviation_of_the_architecture() -> None:
    weights = draw("decoder.layers.mlp.linear_fc1.weight", (1024, 2048)).double() / ARCHITECTURE.init_std
    # The standard errors of two million values are 0.0007 (mean), 0.0005 (deviation) and 0.0068 (fourth moment).
    assert weights.mean().item() == pytest.approx(0, abs=0.003)
    assert weights.std().item() == pytest.approx(1, abs=0.002)
    assert (weights**4).mean().item() == pytest.approx(3, abs=0.03)
    for neighbours in (weights[:, 1:] * weights[:, :-1], weights[1:] * weights[:-1]):
        assert neighbours.mean().item() == pytest.approx(0, abs=0.003)


def test_outputs_to_the_residual_stream_are_smaller() -> None:
    weights = draw("decoder.layers.mlp.linear_fc2.weight", (256, 1024))
    assert weights.std().item() == pytest.approx(ARCHITECTURE.init_std / 4, rel=0.01)


def test_every_parameter_layer_and_seed_has_its_own_weights() -> None:
    key = "decoder.layers.mlp.linear_fc1.weight"
    drawn = [
        draw(key), draw("decoder.layers.self_attention.linear_qkv.weight"), draw(key, layer=(1,)), draw(key, layer=(2,)),
        draw(key, seed=2),
    ]  # fmt: skip
    correlations = torch.corrcoef(torch.stack([weights.flatten() for weights in drawn])) - torch.eye(len(drawn))
    assert correlations.abs().max() < 0.06


def test_padded_rows_of_the_vocabulary_are_zero_also_in_a_share_of_them() -> None:
    embedding = "embedding.word_embeddings.weight"
    whole = draw(embedding, (1024, 16))
    assert whole[999].abs().min() > 0
    assert not whole[1000:].any()
    part = share(embedding, (1024, 16), slice(1010, 1024), slice(None))
    initialization.initialize([part], ARCHITECTURE, 1)
    assert not part.data.any()


def test_norms_are_one_and_biases_zero() -> None:
    for key, value in (("decoder.final_layernorm.weight", 1.0), ("decoder.layers.mlp.linear_fc1.bias", 0.0)):
        data = torch.full((64,), float("nan"))
        vector = ShardedTensor(key, data, data.dtype, (64,), (64,), (0,), (1,))
        initialization.initialize([vector], ARCHITECTURE, 1)
        assert (vector.data == value).all()


def test_weights_that_a_checkpoint_will_bring_are_zero() -> None:
    """Nothing is drawn, and no row has what was in the memory before."""
    whole = share("embedding.word_embeddings.weight", SHAPE, slice(None), slice(None))
    initialization.clear([whole])
    assert torch.equal(whole.data, torch.zeros(SHAPE))
