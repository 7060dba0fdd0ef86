#!/usr/bin/env bash
# NumPy 2.4.6 of PyPI (its OpenBLAS 0.3.31), Python 3.11, Linux, 2 cores, 2026-12-01.
#
# `import numpy` starts OpenBLAS's threads, one less than there are cores. Each polls for work before it sleeps, for 0.1 s, although
# the program may never multiply a matrix: the import takes 0.1 s of processor time per further core beside its own time. A timing of
# the import does not show this, because the threads poll beside it. OPENBLAS_THREAD_TIMEOUT=4, the least value, ends the polling; matrix
# products use the same threads and are as fast.
#
# Seen:
#   polling takes more than 0.05 s of processor time: True
#   OPENBLAS_THREAD_TIMEOUT=4 takes three quarters of it away: True
#   products with sleeping threads take at most 1.2 times as long: True
set -euo pipefail

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
if (($(nproc) < 2)); then
    echo "needs two cores: one core has no further threads" >&2
    exit 1
fi
cat >"$directory/polling.py" <<'PYTHON'
import os
import subprocess
import sys

IMPORT = "import time, numpy; time.sleep(0.5)"
PRODUCT = """
import time, numpy
matrix = numpy.ones((1500, 1500), numpy.float32)
matrix @ matrix
began = time.perf_counter()
for _ in range(5):
    matrix @ matrix
print(time.perf_counter() - began)
"""


def environment(**more):
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS", "OMP", "GOTO"))}
    return {**cleared, **more}


def import_seconds(**more):
    """Processor seconds, the least of ten."""

    def once():
        with subprocess.Popen([sys.executable, "-c", IMPORT], env=environment(**more)) as process:
            _, _, usage = os.wait4(process.pid, 0)
            process.returncode = 0
        return usage.ru_utime + usage.ru_stime

    return min(once() for _ in range(10))


def product_seconds(**more):
    command = [sys.executable, "-c", PRODUCT]
    return min(float(subprocess.check_output(command, env=environment(**more))) for _ in range(5))


single = import_seconds(OPENBLAS_NUM_THREADS="1")
polling = import_seconds(OPENBLAS_NUM_THREADS="2") - single
sleeping = import_seconds(OPENBLAS_NUM_THREADS="2", OPENBLAS_THREAD_TIMEOUT="4") - single
print(f"polling takes more than 0.05 s of processor time: {polling > 0.05}")
print(f"OPENBLAS_THREAD_TIMEOUT=4 takes three quarters of it away: {sleeping < polling / 4}")
slower = product_seconds(OPENBLAS_THREAD_TIMEOUT="4") / product_seconds()
print(f"products with sleeping threads take at most 1.2 times as long: {slower < 1.2}")
print(f"{single:.3f} {polling:.3f} {sleeping:.3f} {slower:.2f}", file=sys.stderr)
PYTHON

python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$directory/venv/bin/python" "$directory/polling.py" | tee "$directory/seen"
diff - "$directory/seen" <<'SEEN'
polling takes more than 0.05 s of processor time: True
OPENBLAS_THREAD_TIMEOUT=4 takes three quarters of it away: True
products with sleeping threads take at most 1.2 times as long: True
SEEN
