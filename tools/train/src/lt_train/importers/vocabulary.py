"""Compare vocabulary padding: lt-train pads to a multiple of 128 times the tensor parallel size."""

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

HERE = 128
PADDED = "the vocabulary is padded to 128 x tensor parallel size"
OTHERWISE = f"{PADDED}: the padded rows are others"


def padding(ledger: Ledger, key: str, is_padded: bool = True) -> None:
    """Drop the padding multiple at `key`. If both trainers pad to the same number of rows, dropping it changes nothing."""
    multiple = ledger.take_number(key)
    multiple = 1 if not is_padded else int(multiple or HERE)
    size, tensor = ledger.get("vocab_size"), int(ledger.get("tensor_model_parallel_size") or 1)
    here = HERE * tensor
    other = multiple * (tensor if is_padded else 1)
    is_same = multiple == HERE or (isinstance(size, int) and -(-size // here) * here == -(-size // max(1, other)) * max(1, other))
    ledger.drop_value(key, multiple, PADDED if is_same else OTHERWISE, Effect.NONE if is_same else Effect.RESULT)
