"""A second user, who shares a directory with the one who runs the tools."""

import dataclasses
import os
import subprocess
from pathlib import Path

STRANGER_UID = 1001


@dataclasses.dataclass(frozen=True)
class Stranger:
    """Another user with access to `shared`, a directory like /tmp: anyone may write there, and delete only what is his."""

    shared: Path

    def run(self, script: str) -> None:
        """Run a shell script as this user, in the shared directory."""
        command = ["setpriv", f"--reuid={STRANGER_UID}", f"--regid={STRANGER_UID}", "--clear-groups", "sh", "-euc", script]
        subprocess.run(command, cwd=self.shared, check=True)

    def owns(self, path: Path) -> bool:
        return os.lstat(path).st_uid == STRANGER_UID
