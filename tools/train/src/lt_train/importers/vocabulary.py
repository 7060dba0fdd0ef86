"""Compare vocabulary padding: lt-train pads to a multiple of 128 times the tensor parallel size."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

HERE = 128
PADDED = "the vocabulary is padded to 128 x tensor parallel size"
OTHERWISE = f"{PADDED}: the padded rows are others"


def same_rows(multiple: int, size: int | None, tensor: int) -> bool:
    """Whether a multiple of `multiple` times the tensor parallel size pads `size` tokens to as many rows as lt-train's 128."""
    rows = [-(-size // step) * step for step in (HERE * tensor, max(1, multiple * tensor))] if size else []
    return multiple == HERE or (bool(rows) and rows[0] == rows[1])


def padding(ledger: Ledger, key: str, is_padded: bool = True) -> None:
    """Drop the padding multiple at `key`. If both trainers pad to the same number of rows, dropping it changes nothing."""
    multiple = ledger.take_number(key)
    size, tensor = ledger.get("vocab_size"), int(ledger.get("tensor_model_parallel_size") or 1)
    size = size if isinstance(size, int) else None
    is_same = same_rows(int(multiple or HERE), size, tensor) if is_padded else size is not None and size % (HERE * tensor) == 0
    ledger.drop_value(key, multiple, PADDED if is_same else OTHERWISE, Effect.NONE if is_same else Effect.RESULT)
