"""Install the torch of constraints.txt into this environment, saying first from where it comes and how large it is.

PyPI's torch brings CUDA along: 2.7 GB to download, which a machine without a GPU has no use for. There PyTorch's own index of CPU
builds is asked first, 0.2 GB, and PyPI, or whatever pip is set up to use, where that index has none for this machine or is out of
reach. That index is asked for torch alone: its copies of other packages are not those of constraints.txt.

    python tests/install/torch_build.py [INDEX]    INDEX: a mirror of PyTorch's CPU builds
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
CPU_BUILD = "+cpu"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-c", str(CONSTRAINTS), "torch"]
# Beginning to download takes pip longer than reading this.
SMALLER_BUILD = (
    "for a smaller download, stop with Ctrl-C, put a wheel of the CPU build into a directory, and repeat the command with"
    " PIP_FIND_LINKS=DIRECTORY before it, or with PIP_EXTRA_INDEX_URL=MIRROR for a mirror that has it"
)
TIMEOUT_SECONDS = 10
# An index that answers at all tells within this time what it has.
DEADLINE_SECONDS = 120


def main(cpu_builds: str = CPU_BUILDS) -> int:
    if is_installed():
        return 0
    if not has_gpu():
        print(f"torch: no GPU here, asking {cpu_builds} for a CPU build", flush=True)
        options = ["--no-deps", "--index-url", cpu_builds, "--timeout", str(TIMEOUT_SECONDS), "--retries", "1"]
        files = chosen_files(*options)
        # Further indexes and links that pip is set up with are asked as well; they may have the build with CUDA alone.
        if files and CPU_BUILD in unquote(files[0]):
            print(f"torch, for a machine without a GPU: {described(files)}", flush=True)
            if subprocess.run([*PIP, *options]).returncode == 0:
                return 0
        print(f"torch: no CPU build to be had from {cpu_builds}", flush=True)
    files = chosen_files()
    if files:
        print(f"torch: {described(files)}", flush=True)
        if not has_gpu() and CPU_BUILD not in unquote(files[0]):
            print(f"torch: {SMALLER_BUILD}", flush=True)
    return subprocess.run(PIP).returncode


def is_installed() -> bool:
    """Whether the environment has the version of constraints.txt, as any build."""
    pinned = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    try:
        return pinned is not None and importlib.metadata.version("torch").partition("+")[0] == pinned[1]
    except importlib.metadata.PackageNotFoundError:
        return False


def has_gpu() -> bool:
    """Whether NVIDIA's driver names a GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.startswith(b"GPU ")


def chosen_files(*options: str) -> list[str]:
    """The addresses of torch's wheel and of what it requires, as pip chooses them with `options`; none where it cannot."""
    # Reads the metadata inside remote wheels, where an index does not serve it by itself, without downloading them.
    dry_run = ["--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report"]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        try:
            done = subprocess.run([*PIP, *dry_run, str(report), *options], capture_output=True, timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return []
        if done.returncode:
            return []
        packages: list[dict[str, Any]] = json.loads(report.read_bytes())["install"]
    return sorted((package["download_info"]["url"] for package in packages), key=lambda url: "/torch-" not in url)


def described(files: list[str]) -> str:
    """The name and origin of torch, which is the first of `files`, and the bytes of all."""
    address = urlsplit(files[0])
    origin = address.hostname or Path(address.path).parent
    with ThreadPoolExecutor(8) as threads:
        sizes = list(threads.map(size_bytes, files))
    total = f"{sum(sizes) / 1e6:,.0f} MB" if all(sizes) else "unknown size"
    return f"{unquote(Path(address.path).name)} from {origin}, {total} in {len(files)} file{'s' if len(files) > 1 else ''}"


def size_bytes(url: str) -> int:
    """The size of a file by its headers, 0 where they do not tell."""
    try:
        with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT_SECONDS) as response:
            return int(response.headers["Content-Length"] or 0)
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
