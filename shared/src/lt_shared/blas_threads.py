"""Keep NumPy's OpenBLAS from starting threads in a program that multiplies no matrices.

OpenBLAS starts a thread for each core when NumPy is imported. The idle threads spin: 60 ms of processor time on two cores.
"""

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"
_is_limited = False


def limit() -> None:
    """Limit OpenBLAS to this thread, unless the environment says otherwise. Has no effect after NumPy's import."""
    global _is_limited
    _is_limited = _VARIABLE not in os.environ
    os.environ.setdefault(_VARIABLE, "1")


def environment() -> dict[str, str]:
    """Return the environment for other programs: without the variable that `limit` has set."""
    return {name: value for name, value in os.environ.items() if not (_is_limited and name == _VARIABLE)}
