"""The kernels run in Triton's interpreter, which needs no GPU; the variable is read when a kernel is defined."""

import os

os.environ["TRITON_INTERPRET"] = "1"
