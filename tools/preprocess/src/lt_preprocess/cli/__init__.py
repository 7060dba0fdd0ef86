"""The command line of lt-preprocess: tokenizing has no name of its own, the commands for finished datasets have.

`lt-preprocess FILE...` tokenizes; `lt-preprocess merge ...` and the like work on datasets. A file that is called like a command
is given as `./merge`. Whatever costs time to import is loaded after the arguments are known to be good.
"""

from typing import NoReturn

from lt_preprocess.cli import tokenize
from lt_shared import console


def main() -> NoReturn:
    console.run(tokenize.command, "lt-preprocess")
