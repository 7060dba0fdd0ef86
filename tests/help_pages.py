"""What the tools print with --help."""

import json
import subprocess

import nursery

# All by one process.
PRINT = """
import contextlib, importlib, io, json, sys

pages = []
for words in json.loads(sys.argv[1]):
    sys.argv = [*words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
        importlib.import_module(words[0].replace("-", "_") + ".cli").main()
    pages.append(page.getvalue())
print(json.dumps(pages))
"""


def read(commands: list[list[str]]) -> list[str]:
    """The help page of each command, a list of words: the tool and the names below it."""
    done = subprocess.run([nursery.light_python(), "-c", PRINT, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages: list[str] = json.loads(done.stdout)
    return pages
