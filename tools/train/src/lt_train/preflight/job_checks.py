"""The job around the run: image, Slurm's variables, HyperPod, keys of services, Trainium."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from lt_train.config.options import schema
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, warning

PREFIX = "LT_TRAIN_"
# Of other commands, and lt-train's own.
OTHER_VARIABLES = (
    "GPU",
    "GPUS_PER_NODE",
    "NODES",
    "NETWORK",
    "IMAGE",
    "INSTANCE_TYPE",
    "AS_JSON",
    "PARENT",
    "STARTED",
    "TRIALS_DIR",
)
OTHER_PREFIXES = ("BENCH_", "IMPORT_", "RENDER_")


def image(situation: Situation) -> Iterator[Finding]:
    """The file of a container image. Guides build it under one name and start it under another."""
    if situation.image is None:
        raise NotChecked("no --image")
    path = Path(situation.image)
    if path.suffix != ".sqsh" and not situation.image.startswith("/"):
        raise NotChecked("--image is in a registry")
    if path.is_file():
        return
    others = sorted(path.parent.glob("*.sqsh")) if path.parent.is_dir() else []
    remedy = f"there is {', '.join(map(str, others))}" if others else f"enroot import -o {path} dockerd://NAME"
    yield error("does not exist", f"--image {path}", remedy)


def slurm_nodes(situation: Situation) -> Iterator[Finding]:
    """A layout made for $NODES, which Slurm does not set, gets an empty number of nodes."""
    environment = situation.environment
    if "SLURM_JOB_ID" not in environment:
        raise NotChecked("not in a job of Slurm")
    known, meant = environment.get("SLURM_JOB_NUM_NODES"), environment.get("NODES")
    if known is None:
        yield error("is not set", "SLURM_JOB_NUM_NODES", "start through sbatch, salloc or srun, and do not clear the environment")
    elif meant is not None and meant != known:
        yield error(f"{meant}, but the job has {known} nodes", "NODES", "use SLURM_JOB_NUM_NODES, which Slurm sets")


def unknown_variables(situation: Situation) -> Iterator[Finding]:
    """A variable that is misspelt changes nothing, in silence."""
    known = {str(parameter.name).upper() for parameter in schema().params} | set(OTHER_VARIABLES)
    for variable in sorted(situation.environment):
        name = variable.removeprefix(PREFIX)
        if variable.startswith(PREFIX) and name not in known and not name.startswith(OTHER_PREFIXES):
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {PREFIX}{near[0]}?" if near else "unset it; see lt-train --help"
            yield warning("is no option of lt-train, and changes nothing", variable, remedy)


def auto_resume(situation: Situation) -> Iterator[Finding]:
    """On HyperPod srun needs --auto-resume=1 to replace a broken node, and checkpoints to resume from."""
    if not situation.path("/opt/sagemaker_cluster").is_dir():
        raise NotChecked("not on HyperPod")
    if situation.need("checkpointing").save is None:
        yield error(
            "HyperPod's --auto-resume=1 starts the step again, and without checkpoints it begins at 0",
            "--save",
            "add --save DIRECTORY",
        )


def wandb_key(situation: Situation) -> Iterator[Finding]:
    environment = situation.environment
    if situation.need("reporting").wandb is None:
        raise NotChecked("no --wandb-project")
    netrc = Path(environment.get("NETRC") or Path(environment.get("HOME", "/")) / ".netrc")
    logged_in = netrc.is_file() and "wandb" in netrc.read_text(errors="replace")
    if environment.get("WANDB_MODE") in ("offline", "disabled") or "WANDB_API_KEY" in environment or logged_in:
        return
    yield error("no key for Weights & Biases", "WANDB_API_KEY", "export it, wandb login, or WANDB_MODE=offline")


def trainium(situation: Situation) -> Iterator[Finding]:
    """lt-train sees no accelerator there and takes the CPU."""
    instance = situation.instance
    has_neuron = situation.path("/dev/neuron0").exists()
    if not has_neuron and (instance is None or instance.gpu is not None):
        raise NotChecked("not on Trainium")
    where = instance.name if instance else "/dev/neuron0"
    yield warning("lt-train has no backend for Trainium and trains on the CPU there", where, "use an instance type with GPUs")
