"""The input and the output of a check."""

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import NoInput, ToolError
from lt_train.config import instances
from lt_train.config.cluster import Cluster
from lt_train.config.draft import Draft
from lt_train.config.instances import Instance
from lt_train.config.run_config import RunConfig

PROGRAM_SECONDS = 10
SHOWN_NODES = 8


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding. An error prevents the run; a warning slows it down, or is uncertain.

    `nodes` are the affected nodes among several, empty if only this machine was checked.
    """

    is_error: bool
    what: str
    where: str
    remedy: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = ", ".join(self.nodes[:SHOWN_NODES]) + (" and more" if len(self.nodes) > SHOWN_NODES else "")
        prefix = f"{named}: " if named else ""
        return f"{prefix}{'error' if self.is_error else 'warning'}: {self.where}: {self.what}; {self.remedy}"


def error(what: str, where: str, remedy: str) -> Finding:
    return Finding(True, what, where, remedy)


def warning(what: str, where: str, remedy: str) -> Finding:
    return Finding(False, what, where, remedy)


def of(problem: ToolError, where: str) -> Finding:
    """The finding that an exception of a check stands for."""
    missing = isinstance(problem, NoInput)
    return error(str(problem), where, problem.hint or ("check the path" if missing else "change what it names"))


class NotChecked(Exception):
    """There is nothing to check here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Situation:
    """The input of a check: the settings of a run, and its machines.

    `made` has the settings groups that the options resolve to. `cluster` is the target of the run, `is_elsewhere` says that it is
    not this machine. `root` replaces the root of the filesystem; `lacks_data` says that mock data replaces unreadable data,
    `verifies_data` that every byte of the data is read.
    """

    made: Draft
    cluster: Cluster | None
    environment: Mapping[str, str]
    is_elsewhere: bool = False
    image: str | None = None
    root: Path = Path("/")
    lacks_data: bool = False
    verifies_data: bool = False

    @property
    def config(self) -> RunConfig | None:
        """None when the options make none."""
        return self.made.config

    @property
    def nodes(self) -> int:
        return self.cluster.nodes if self.cluster else 1

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a small file, empty when it is not there."""
        try:
            return self.path(path).read_text().strip()
        except OSError:
            return ""

    def need_config(self) -> RunConfig:
        """Raises NotChecked when the options make none."""
        if self.config is None:
            raise NotChecked("the options make no configuration")
        return self.config

    def need(self, part: str) -> Any:
        """That part of the configuration. Raises NotChecked when the options do not make it."""
        if part not in self.made.parts:
            raise NotChecked(f"the options make no {part}")
        return self.made.parts[part]

    def need_here(self) -> None:
        """Raises NotChecked when the run is for another machine."""
        if self.is_elsewhere:
            raise NotChecked("the run is for another machine: check there too")

    @property
    def instance(self) -> Instance | None:
        """Return AWS's instance type: INSTANCE_TYPE, or the machine type in the firmware."""
        name = self.environment.get("INSTANCE_TYPE") or self.read("/sys/devices/virtual/dmi/id/product_name")
        return instances.INSTANCES.get(name.removeprefix("ml."))

    def run(self, *command: str) -> subprocess.CompletedProcess[str] | None:
        """The finished program, None when it is not installed or does not end."""
        if shutil.which(command[0], path=self.environment.get("PATH")) is None:
            return None
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, env=dict(self.environment), check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    def filesystem(self, path: Path) -> str | None:
        """The type of the filesystem that holds `path`, None when the table of mounts does not say."""
        return self.mount(path)[1]

    def mount(self, path: Path) -> tuple[str, str | None]:
        """Where that filesystem is mounted, and its type."""
        wanted, point, kind = os.path.realpath(path), "", None
        for line in self.read("/proc/mounts").splitlines():
            fields = line.split()
            mount_point = fields[1].replace("\\040", " ")
            if (wanted == mount_point or wanted.startswith(mount_point.rstrip("/") + "/")) and len(mount_point) >= len(point):
                point, kind = mount_point, fields[2]
        return point, kind
