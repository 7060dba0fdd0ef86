"""Settings for checkpoints: the directory, the interval, how many to keep, the start, and when a run ends early."""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.files import storage
from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture import Architecture

POSITIVE = click.IntRange(min=1)
LOCAL_INTERVAL = 100
LAYOUTS = GPT, HYBRID = "gpt", "hybrid"
AUTO = "auto"


class CopyInterval(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A number of steps, or `auto`, which is 0."""

    name = f"[steps|{AUTO}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == AUTO or (isinstance(value, int) and value == 0):
            return 0
        try:
            steps = int(value)
        except ValueError:
            steps = 0
        if steps < 1:
            self.fail(f"{value!r} is neither {AUTO} nor a number of steps above 0", param, ctx)
        return steps


OPTIONS = console.section(
    "Checkpoints and stopping",
    click.option("--save", help="Write the run to this directory or URL: checkpoints, log and metrics; s3://... is a URL."),
    click.option("--load", help="Start from this run or checkpoint; ignored if SAVE has a checkpoint."),
    click.option(
        "--save-interval", type=POSITIVE, default=1000, help="Save a checkpoint every N steps; the last step always has one."
    ),
    click.option(
        "--async-save/--no-async-save",
        default=None,
        help="Write checkpoints while training continues; by default on GPUs, if the host's memory holds them.",
    ),
    click.option(
        "--save-local", "--non-persistent-local-ckpt-dir", help="Copy each node's shards to this directory on its disk."
    ),
    click.option(
        "--save-local-interval",
        "--non-persistent-save-interval",
        type=POSITIVE,
        help="Copy shards to SAVE_LOCAL every N steps, by default 100; the next node keeps a second copy.",
    ),
    click.option(
        "--replicate-interval",
        type=CopyInterval(),
        help="Copy the state every N steps to the memory of this node and the next; auto: for 1% of the time.",
    ),
    click.option("--keep-last", type=POSITIVE, help="Keep the newest N checkpoints; delete older ones. By default keep all."),
    click.option("--keep-every", type=POSITIVE, help="With --keep-last, also keep checkpoints whose step is a multiple of N."),
    click.option("--finetune", is_flag=True, help="Load only the weights from --load and start at step 0."),
    click.option("--no-load-optim", is_flag=True, help="Start with an empty optimizer state."),
    click.option("--no-load-rng", is_flag=True, help="Do not restore the random state of dropout."),
    click.option("--no-verify", is_flag=True, help="Do not compare loaded data with the checkpoint's checksums."),
    click.option("--no-save-optim", is_flag=True, help="Save no optimizer state; the run cannot continue from there."),
    click.option("--no-save-rng", is_flag=True, help="Save no random state."),
    click.option(
        "--ckpt-layout",
        type=click.Choice(LAYOUTS),
        help="Save the layers of megatron-core's GPTModel or HybridModel; by default as the checkpoint to start from, or gpt.",
    ),
    click.option("--exit-interval", type=POSITIVE, help="Save and end with exit code 75 every N steps."),
    click.option(
        "--exit-duration-in-mins",
        type=console.FiniteRange(min=0, min_open=True),
        help="Save and end with exit code 75 after this many minutes.",
    ),
    click.option(
        "--exit-signal-handler", is_flag=True, help="No effect: lt-train always saves on SIGTERM and SIGUSR1.", hidden=True
    ),
)


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """`save` and `load` are directories or URLs. If `keep_last` is None, all checkpoints are kept. `save_local` is a directory on
    each node's disk. If `async_save` is None, the device and the memory of the nodes decide. `replicate_interval` is None without
    copies in memory, 0 if their cost decides.

    `ckpt_layout` is None if checkpoints have the layers of the checkpoint to start from.

    `start` is the checkpoint directory to start from, or None for step 0; it is chosen after the plan was resolved. `continues`
    is True if the run itself saved this checkpoint: then the whole state is restored, and `finetune`, `no_load_optim` and
    `no_load_rng` do not apply.
    """

    save: str | None
    load: str | None
    save_interval: int
    async_save: bool | None
    save_local: str | None
    save_local_interval: int | None
    keep_last: int | None
    keep_every: int | None
    finetune: bool
    no_load_optim: bool
    no_load_rng: bool
    verify: bool
    no_save_optim: bool
    no_save_rng: bool
    ckpt_layout: str | None
    exit_interval: int | None
    exit_duration_minutes: float | None
    replicate_interval: int | None = None
    start: str | None = None
    continues: bool = False

    @property
    def local_interval(self) -> int:
        return self.save_local_interval or LOCAL_INTERVAL

    def may_save_async(self, is_on_gpu: bool) -> bool:
        """Return whether checkpoints are written while training continues, if the nodes' memory holds them."""
        return self.save is not None and (is_on_gpu if self.async_save is None else self.async_save)

    def saves_hybrid_layers(self, starts_hybrid: bool) -> bool:
        """Return whether checkpoints have the layers of HybridModel. `starts_hybrid`: the checkpoint to start from has them."""
        return starts_hybrid if self.ckpt_layout is None else self.ckpt_layout == HYBRID

    @property
    def is_remote(self) -> bool:
        return self.save is not None and storage.is_remote(self.save)

    @property
    def directory(self) -> str | None:
        return local_directory(self.save)


def local_directory(save: str | None) -> str | None:
    """Return the local directory of a run: `save`, or for a URL a spool in the system's temporary directory (TMPDIR)."""
    return spool(save) if save and storage.is_remote(save) else save


def spool(url: str) -> str:
    """Return this node's directory for the files of a remote run or checkpoint, the same in every attempt."""
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"lt-train-{os.geteuid()}", name)


def resolve_checkpointing(options: dict[str, Any]) -> Checkpointing:
    """Resolve the options. Raises UsageError for an empty path, which an unset shell variable leaves."""
    for name in ("save", "load", "save_local"):
        if options[name] == "":
            raise UsageError(f"--{name.replace('_', '-')} is empty", "name a directory")
    return Checkpointing(
        save=options["save"],
        load=options["load"],
        save_interval=options["save_interval"],
        async_save=options["async_save"],
        save_local=options["save_local"],
        save_local_interval=options["save_local_interval"],
        keep_last=options["keep_last"],
        keep_every=options["keep_every"],
        finetune=options["finetune"],
        no_load_optim=options["no_load_optim"],
        no_load_rng=options["no_load_rng"],
        verify=not options["no_verify"],
        no_save_optim=options["no_save_optim"],
        no_save_rng=options["no_save_rng"],
        ckpt_layout=options["ckpt_layout"],
        exit_interval=options["exit_interval"],
        exit_duration_minutes=options["exit_duration_in_mins"],
        replicate_interval=options["replicate_interval"],
    )


def check_layout(settings: Checkpointing, architecture: Architecture) -> Iterator[ToolError]:
    """Yield BadConfig for a model that HybridModel cannot have."""
    if settings.ckpt_layout == HYBRID:
        try:
            hybrid_pattern.of_architecture(architecture)
        except BadConfig as error:
            yield BadConfig(f"--ckpt-layout hybrid: {error}", "drop --ckpt-layout")


def check(settings: Checkpointing) -> Iterator[ToolError]:
    """Yield BadConfig for options that contradict each other or name no directory."""
    if settings.keep_every and not settings.keep_last:
        yield BadConfig("--keep-every says what --keep-last must not delete", "add --keep-last, or drop --keep-every")
    if settings.keep_every and settings.keep_every % settings.save_interval:
        yield BadConfig(
            f"--keep-every {settings.keep_every} is not a multiple of --save-interval {settings.save_interval}",
            "most of its steps are never saved: use a multiple",
        )
    ends = {"--exit-interval": settings.exit_interval, "--exit-duration-in-mins": settings.exit_duration_minutes}
    for option, end in ends.items():
        if end and (not settings.save or settings.no_save_optim):
            what = "--no-save-optim" if settings.save else "no --save"
            yield BadConfig(f"{option} with {what}: the run could not resume", f"add --save, or drop {option} or --no-save-optim")
    for name, value in (("--finetune", settings.finetune), ("--no-load-optim", settings.no_load_optim)):
        if value and not settings.load:
            yield BadConfig(f"{name} says what to take from --load, which is not given", f"add --load, or drop {name}")
    with_save = {
        "--async-save": settings.async_save or None,
        "--keep-last": settings.keep_last,
        "--save-local": settings.save_local,
        "--replicate-interval": settings.replicate_interval,
    }
    for name, setting in with_save.items():
        if setting is not None and not settings.save:
            yield BadConfig(f"{name} without --save: nothing will be saved", "add --save DIRECTORY")
    if settings.save_local_interval and not settings.save_local:
        yield BadConfig("--save-local-interval without --save-local: there will be no copies", "add --save-local DIRECTORY")
    if settings.save_local and settings.local_interval % settings.save_interval == 0:
        yield BadConfig(
            f"--save-local-interval {settings.local_interval} is a multiple of --save-interval {settings.save_interval}:"
            " there will be no copies, since what is saved in SAVE has none",
            "drop --save-local" if settings.save_interval == 1 else f"use one below {settings.save_interval}",
        )
    if settings.replicate_interval is not None and settings.no_save_optim:
        yield BadConfig("--replicate-interval with --no-save-optim: the run could not resume", "drop one of them")
    if settings.save_local and settings.no_save_optim:
        yield BadConfig("--save-local with --no-save-optim: the run could not resume", "drop one of them")
    if settings.save_local and storage.is_remote(settings.save_local):
        yield BadConfig(f"--save-local {settings.save_local}: is no directory of a node", "name one, such as /local_nvme/copies")
    places = {"--save": settings.save, "--load": settings.load, "--save-local": settings.save_local}
    for name, path in places.items():
        if path and path.startswith("file:"):
            yield BadConfig(f"{name} {path}: the URL of a local directory", "name the directory itself")
        if path and path.startswith("memory:"):
            yield BadConfig(f"{name} {path}: is the memory of one process", "name a directory or an s3:// URL")
        if name == "--save" and path and path.startswith(("http:", "https:")):
            yield BadConfig(f"{name} {path}: nothing can be written to a web server", "name a directory or an s3:// URL")
        if path and not storage.is_remote(path) and os.path.exists(path) and not os.path.isdir(path):
            yield BadConfig(f"{name} {path}: exists and is not a directory", "name a directory")
