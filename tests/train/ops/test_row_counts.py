"""The numbers of rows of passes that are computed again."""

import pytest
import torch

from lt_train.ops.row_counts import RowCounts


def pass_of(counts: RowCounts, count: int, training: bool, with_gradients: bool) -> int:
    with torch.set_grad_enabled(with_gradients):
        return counts.start_copy(torch.tensor(count), training)()


def test_passes_are_computed_again_in_their_order() -> None:
    counts = RowCounts(recomputes=True)
    assert [pass_of(counts, count, True, False) for count in (3, 5)] == [3, 5]
    # An evaluation is never computed again.
    assert pass_of(counts, 7, False, False) == 7
    assert pass_of(counts, 3, True, True) == 3
    with pytest.raises(RuntimeError, match="not those of the forward pass"):
        pass_of(counts, 4, True, True)


def test_nothing_is_kept_where_nothing_is_computed_again() -> None:
    counts = RowCounts(recomputes=False)
    assert [pass_of(counts, 3, True, with_gradients) for with_gradients in (False, True)] == [3, 3]
    assert pass_of(counts, 4, True, True) == 4
