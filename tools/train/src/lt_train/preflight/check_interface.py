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
    """A problem of a run. An error prevents the run; a warning makes it slower, or is uncertain.

    `where` names the option, path or variable. `nodes` lists the affected nodes, empty if only this machine was checked.
    """

    is_error: bool
    what: str
    where: str
    remedy: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.nodes[:SHOWN_NODES]) + (" and more" if len(self.nodes) > SHOWN_NODES else "")
        prefix = f"{names}: " if names else ""
        return f"{prefix}{'error' if self.is_error else 'warning'}: {self.where}: {self.what}; {self.remedy}"


def error(what: str, subject: str, remedy: str) -> Finding:
    """Make an error about `subject`, the option, path or variable that is wrong."""
    return Finding(True, what, subject, remedy)


def warning(what: str, subject: str, remedy: str) -> Finding:
    """Make a warning about `subject`, the option, path or variable that is wrong."""
    return Finding(False, what, subject, remedy)


def error_finding(problem: ToolError, subject: str) -> Finding:
    """Convert an exception into an error about `subject`."""
    is_missing = isinstance(problem, NoInput)
    return error(str(problem), subject, problem.hint or ("check the path" if is_missing else "change what it names"))


class NotChecked(Exception):
    """Raised by a check that does not apply; the message says why."""


@dataclasses.dataclass(frozen=True)
class Situation:
    """The input of a check: the settings of a run, and its machines.

    `draft` has the settings groups that the options resolve to. `cluster` is the target of the run; `is_elsewhere` says that the
    target is not this machine. `root` replaces the root of the filesystem. `lacks_data` says that mock data replaces unreadable
    data, `verifies_data` that every byte of the data is read.
    """

    draft: Draft
    cluster: Cluster | None
    environment: Mapping[str, str]
    is_elsewhere: bool = False
    image: str | None = None
    root: Path = Path("/")
    lacks_data: bool = False
    verifies_data: bool = False

    @property
    def config(self) -> RunConfig | None:
        """The whole configuration, or None if a settings group could not be resolved."""
        return self.draft.config

    @property
    def nodes(self) -> int:
        return self.cluster.nodes if self.cluster else 1

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a small file, or an empty string if it cannot be read."""
        try:
            return self.path(path).read_text().strip()
        except OSError:
            return ""

    def need_config(self) -> RunConfig:
        """Return the whole configuration. Raises NotChecked if a settings group could not be resolved."""
        if self.config is None:
            raise NotChecked("the options make no configuration")
        return self.config

    def need(self, part: str) -> Any:
        """Return the settings group `part`. Raises NotChecked if it could not be resolved."""
        if part not in self.draft.parts:
            raise NotChecked(f"the options make no {part}")
        return self.draft.parts[part]

    def need_here(self) -> None:
        """Raises NotChecked if the run is for another machine."""
        if self.is_elsewhere:
            raise NotChecked("the run is for another machine: check there too")

    @property
    def instance(self) -> Instance | None:
        """AWS's instance type, read from the variable INSTANCE_TYPE or from the firmware."""
        name = self.environment.get("INSTANCE_TYPE") or self.read("/sys/devices/virtual/dmi/id/product_name")
        return instances.INSTANCES.get(name.removeprefix("ml."))

    def run(self, *command: str) -> subprocess.CompletedProcess[str] | None:
        """Run a program. Return None if it is not installed or does not end within `PROGRAM_SECONDS`."""
        if shutil.which(command[0], path=self.environment.get("PATH")) is None:
            return None
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=PROGRAM_SECONDS, env=dict(self.environment), check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    def filesystem(self, path: Path) -> str | None:
        """Return the type of the filesystem that holds `path`, or None if /proc/mounts does not list it."""
        return self.mount(path)[1]

    def mount(self, path: Path) -> tuple[str, str | None]:
        """Return the mount point and the type of the filesystem that holds `path`."""
        real_path, point, kind = os.path.realpath(path), "", None
        for line in self.read("/proc/mounts").splitlines():
            fields = line.split()
            mount_point = fields[1].replace("\\040", " ")
            if (real_path + "/").startswith(mount_point.rstrip("/") + "/") and len(mount_point) >= len(point):
                point, kind = mount_point, fields[2]
        return point, kind
