"""The job around the run: image, Slurm's variables, HyperPod, keys of services, Trainium."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from lt_train.config.options import schema
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, warning

PREFIX = "LT_TRAIN_"
# Variables with `PREFIX` that are no options: of other commands, and set by lt-train itself.
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
    """Check that the container image exists. Guides build an image under one name and start it under another."""
    if situation.image is None:
        raise NotChecked("no --image")
    path = Path(situation.image)
    if path.suffix != ".sqsh" and not situation.image.startswith("/"):
        raise NotChecked("--image is in a registry")
    if path.is_file():
        return
    images = sorted(path.parent.glob("*.sqsh")) if path.parent.is_dir() else []
    remedy = f"there is {', '.join(map(str, images))}" if images else f"enroot import -o {path} dockerd://NAME"
    yield error("does not exist", f"--image {path}", remedy)


def slurm_nodes(situation: Situation) -> Iterator[Finding]:
    """Check NODES against the job. Slurm does not set NODES, so a script that uses $NODES passes an empty number of nodes."""
    environment = situation.environment
    if "SLURM_JOB_ID" not in environment:
        raise NotChecked("not in a job of Slurm")
    job_nodes, nodes = environment.get("SLURM_JOB_NUM_NODES"), environment.get("NODES")
    if job_nodes is None:
        yield error("is not set", "SLURM_JOB_NUM_NODES", "start through sbatch, salloc or srun, and do not clear the environment")
    elif nodes is not None and nodes != job_nodes:
        yield error(f"{nodes}, but the job has {job_nodes} nodes", "NODES", "use SLURM_JOB_NUM_NODES, which Slurm sets")


def unknown_variables(situation: Situation) -> Iterator[Finding]:
    """Check the names of variables with lt-train's prefix, because a misspelt variable has no effect."""
    options = {str(parameter.name).upper() for parameter in schema().params} | set(OTHER_VARIABLES)
    for variable in sorted(situation.environment):
        name = variable.removeprefix(PREFIX)
        if variable.startswith(PREFIX) and name not in options and not name.startswith(OTHER_PREFIXES):
            near = difflib.get_close_matches(name, options, 1)
            remedy = f"did you mean {PREFIX}{near[0]}?" if near else "unset it; see lt-train --help"
            yield warning("is no option of lt-train, and changes nothing", variable, remedy)


def auto_resume(situation: Situation) -> Iterator[Finding]:
    """Check that a run on HyperPod saves checkpoints, because --auto-resume=1 starts it again on replaced nodes."""
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
    """Warn on Trainium, because lt-train sees no accelerator there and trains on the CPU."""
    instance = situation.instance
    has_neuron = situation.path("/dev/neuron0").exists()
    if not has_neuron and (instance is None or instance.gpu is not None):
        raise NotChecked("not on Trainium")
    machine = instance.name if instance else "/dev/neuron0"
    yield warning("lt-train has no backend for Trainium and trains on the CPU there", machine, "use an instance type with GPUs")
