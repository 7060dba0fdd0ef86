"""A printed job in a container, on the two nodes of a real Slurm, with a stand-in for pyxis.

The stand-in checks that the image and the source of the mount exist, as pyxis does. Then it covers this test's directory, but for
the target of the mount, by a filesystem that goes with the task.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

OPTIONS = "--model tiny --num-layers 1 --seq-length 64 --micro-batch-size 4 --train-iters 6 --save-interval 3 --eval-iters 0"
PYXIS = """\
#!/bin/bash
options=()
while [[ "$1" == --* ]]; do
  case "$1" in
    --container-image=*) image="${{1#*=}}" ;;
    --container-mounts=*) mounts="${{1#*=}}" ;;
    *) options+=("$1") ;;
  esac
  shift
done
if [ -z "${{image:-}}" ]; then exec {srun} "${{options[@]}}" "$@"; fi
exec {srun} "${{options[@]}}" unshare --mount bash -euc '
  [ -e "$1" ] || {{ echo "pyxis: no image $1" >&2; exit 1; }}
  source="${{2%%:*}}" target="${{2#*:}}"
  [ -e "$source" ] || {{ echo "pyxis: no mount source $source" >&2; exit 1; }}
  mount --bind "$source" /mnt
  mount -t tmpfs tmpfs {hidden}
  mkdir -p "$target"
  mount --bind /mnt "$target"
  cd /
  shift 2
  ENROOT_ROOTFS=/ exec "$@"' container "$image" "$mounts" "$@"
"""


@pytest.fixture
def directory(slurm: Any, tmp_path: Path) -> Path:
    """With an image, a shared filesystem in fsx, and another directory."""
    srun = shutil.which("srun", path=slurm.environment["PATH"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text(PYXIS.format(srun=srun, hidden=tmp_path))
    (tmp_path / "bin/srun").chmod(0o755)
    (tmp_path / "lt.sqsh").touch()
    for name in ("fsx", "other"):
        (tmp_path / name).mkdir()
    return tmp_path


def submit(slurm: Any, directory: Path, **variables: str) -> tuple[str, Path]:
    mounts = ("--image", str(directory / "lt.sqsh"), "--container-mounts", f"{directory}/fsx:{directory}/fsx")
    render = ("lt-train", "render", "slurm", "--nodes", "2", *mounts, *OPTIONS.split(), "--mock-data")
    script = slurm.run(*render, "--save", str(directory / "fsx/run"), cwd=directory)
    path = {"PATH": f"{directory}/bin:{slurm.environment['PATH']}"}
    export = ",".join(["ALL", *(f"{name}={value}" for name, value in (path | variables).items())])
    job = slurm.run("sbatch", "--parsable", "-o", "job.out", f"--export={export}", cwd=directory, stdin=script)
    return job, directory / "job.out"


def test_what_is_saved_outlives_the_container(slurm: Any, directory: Path) -> None:
    job, log = submit(slurm, directory)
    text = slurm.finish(job, log)
    assert "2 node(s) found in the environment of srun" in text
    assert (directory / "fsx/run/iter_0000006").is_dir()
    assert {path.name for path in directory.iterdir()} == {"bin", "lt.sqsh", "fsx", "other", "job.out"}


def test_a_run_that_would_save_inside_the_container_ends(slurm: Any, directory: Path) -> None:
    """FSX_MOUNT, which comes before the mounts of the job file, mounts something else."""
    job, log = submit(slurm, directory, FSX_MOUNT=f"{directory}/other:{directory}/other")
    text = slurm.finish(job, log, code=78)
    assert "inside the container: the job would start from step 0 each time" in text
    assert not list((directory / "fsx/run").glob("iter_*"))
