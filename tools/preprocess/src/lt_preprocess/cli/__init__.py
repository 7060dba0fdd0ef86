"""The command line of lt-preprocess: tokenizing has no name of its own, the commands for finished datasets have.

`lt-preprocess FILE...` tokenizes; `lt-preprocess merge ...` and the like work on datasets. A file that is called like a command
is given as `./merge`. Whatever costs time to import is loaded after the arguments are known to be good.
"""

import sys
from typing import NoReturn

from lt_preprocess.cli import datasets, tokenize
from lt_shared import console


def main() -> NoReturn:
    is_named = len(sys.argv) > 1 and sys.argv[1] in datasets.commands.commands
    console.run(datasets.commands if is_named else tokenize.command, "lt-preprocess")
