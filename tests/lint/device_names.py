"""Fails when lt_train names CUDA outside device.py: another accelerator must need a change in one file only.

Looks for calls of `.cuda(...)` and for the strings "cuda" and "cuda:N" in the syntax tree; comments and docstrings may explain.
"""

import ast
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "tools/train/src"
ALLOWED = "device.py"


def names_cuda(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value) is not None


def main() -> int:
    files = sorted(SOURCE.rglob("*.py"))
    found = [
        f"{path}:{node.lineno}: CUDA is named outside {ALLOWED}"
        for path in files
        if path.name != ALLOWED
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if names_cuda(node) and isinstance(node, ast.expr)
    ]
    print("\n".join(found) or f"{len(files)} files name CUDA in {ALLOWED} alone")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
