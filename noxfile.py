"""Developer tasks. `nox -l` lists them, `nox -s NAME` runs one, `nox -s NAME -- ARGUMENTS` passes arguments on.

A session makes its environment on the first run and reuses it later (`--reuse-venv=never` makes it anew). constraints.txt has the
versions.
"""

import functools
import hashlib
import os
import shutil
import sys
from pathlib import Path

# Sessions use the Python that runs nox. Another one would fail in pip's resolver, or for want of wheels.
if not (3, 11) <= sys.version_info[:2] <= (3, 13) and not any(word.startswith(("-P", "--force-py")) for word in sys.argv):
    version = ".".join(map(str, sys.version_info[:3]))
    command = "python3.12 -m pip install nox && python3.12 -m nox"
    sys.exit(f"The lt tools work with Python 3.11, 3.12 and 3.13, and nox runs on Python {version}: {command}")

import nox

DISTRIBUTIONS = ["shared", *sorted(path.parent.as_posix() for path in Path().glob("tools/*/pyproject.toml"))]
SOURCES = [f"{distribution}/src" for distribution in DISTRIBUTIONS]
BENCHMARKS = {
    "help": "tests/bench/help_time.py",
    "preprocess": "tests/bench/preprocess.py",
    "train": "tests/bench/train.py",
    "train-data": "tests/bench/train_data.py",
    "train-quality": "tests/bench/train_quality.py",
    "width-transfer": "tests/bench/width_transfer.py",
    "stream-quality": "tests/bench/stream_quality.py",
    "convert": "tests/bench/convert.py",
    "monitor": "tests/bench/monitor.py",
    "checkpoints": "tests/bench/checkpoints.py",
}
CONSTRAINTS = Path("constraints.txt")
# With the extras that `nox -s lowest` tries.
LOWEST = {"shared": "shared[s3]", "tools/preprocess": "tools/preprocess[parquet]", "tools/train": "tools/train[tensorboard]"}
# Debian packages that the tests need, and the commands that do instead. The shell is Chromium without a window: 96 MB to fetch.
PROGRAMS = {
    "strace": ("strace",),
    "groff-base": ("groff",),
    "zsh": ("zsh",),
    "fish": ("fish",),
    "chromium-headless-shell": ("chromium-headless-shell", "chromium", "google-chrome", "chrome"),
}
CLUSTER_PROGRAMS = {"slurm-wlm": ("slurmctld",), "munge": ("munged",), "cron": ("cron",), "faketime": ("faketime",)}
# Waiting threads of torch would spin on cores that other processes need: a fifth of the CPU time; those of NumPy, 0.1 s after its
# import. NumPy would ask for pages of 2 MiB: clearing them for encoders' tables, which tests fill sparsely, took half of the
# encoders' time.
TESTS_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4", "NUMPY_MADVISE_HUGEPAGE": "0"}

# virtualenv installs pip, whatever backend the user prefers: pip tells the size of torch, and tests compare pip's resolutions.
task = functools.partial(nox.session, venv_backend="virtualenv")

nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]
# A session that finds no Python of its version would otherwise be skipped, and nox would exit with 0.
nox.options.error_on_missing_interpreters = True
nox.needs_version = ">=2024.3.2"


def install(session: nox.Session, *more: str, alone: tuple[str, ...] = ()) -> None:
    """Install all distributions from this checkout and the packages `more` in one pip call, which resolves and downloads once.

    The packages `alone` are installed without their dependencies. An unchanged environment is reused: sources are not copied.
    Files are not compiled to bytecode here, because a session imports few of them; the first process that imports a file
    compiles it for the hundreds that follow, also if the environment turns bytecode off. torch comes first, as the CPU build if
    that is enough.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["LT_SHARED_BY_VERSION"] = "1"
    stamp = Path(session.virtualenv.location) / "installed.sha256"
    digest = requirements_digest(*more, *alone)
    if stamp.is_file() and stamp.read_text() == digest:
        session.log("what this session installs has not changed since it was installed")
        return
    session.run_install("python", "tests/install/torch_build.py")
    editable = [argument for distribution in DISTRIBUTIONS for argument in ("-e", distribution)]
    session.log("all other packages: 0.4 GB to download, less what pip has kept from earlier installations")
    # On a terminal pip shows which package it downloads, and how far it is.
    session.install("--no-compile", "-c", str(CONSTRAINTS), *editable, *more, silent=not sys.stderr.isatty())
    if alone:
        session.install("-c", str(CONSTRAINTS), "--no-deps", *alone)
    session.run_install(stamp.write_text, digest)


def requirements_digest(*words: str) -> str:
    """Return a hash of everything that decides an environment: `words` of pip's command line, and the files with requirements."""
    files = [
        CONSTRAINTS,
        *(Path(path) / "pyproject.toml" for path in DISTRIBUTIONS),
        *sorted(Path("tools").glob("*/hatch_build.py")),
        *sorted(Path("tests").rglob("requirements*.txt")),
    ]
    return hashlib.sha256(b"\0".join([*(path.read_bytes() for path in files), *map(str.encode, words)])).hexdigest()


def install_programs(session: nox.Session, programs: dict[str, tuple[str, ...]]) -> None:
    """Install the packages whose programs are missing, where Debian's package manager may be used."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [package for package, names in programs.items() if not any(shutil.which(name, path=path) for name in names)]
    if not missing:
        return
    if os.getuid() or not shutil.which("apt-get"):
        session.warn(f"the tests need what cannot be installed here: sudo apt-get install {' '.join(missing)}")
        return
    # 100 is apt's failure, for one without a mirror: the tests that miss a program then skip, and say so.
    session.run("apt-get", "-qq", "update", external=True, success_codes=[0, 100])
    command = ("apt-get", "-qq", "install", "--no-install-recommends", *missing)
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    session.run(*command, external=True, env=environment, silent=True, success_codes=[0, 100])


@task
def tests(session: nox.Session) -> None:
    """Run all tests, or those that the arguments choose (as for pytest), a file at a time in two processes more than cores.

    Those that need a real Slurm of two nodes or a real cron run as root only, and are reported as skipped elsewhere. With
    `-- -m torch` only those that depend on torch or megatron-core, as .ci/run does on the other Python.
    """
    install_programs(session, PROGRAMS | CLUSTER_PROGRAMS)
    install(session, "-r", "tests/requirements.txt", alone=("-r", "tests/requirements-no-deps.txt"))
    # Tests wait a quarter of their time: for ranks, for jobs, for time limits, for the package index. With one process more than
    # cores, a tenth of the cores' time would be left.
    workers = 2 + len(os.sched_getaffinity(0))
    options = ("-n", str(workers), "--dist", "loadfile", "--durations", "30")
    session.run("pytest", *options, *session.posargs, env=TESTS_ENVIRONMENT)


@task
def cluster(session: nox.Session) -> None:
    """Run only the tests that need a real Slurm of two nodes or a real cron on this machine, as root: three minutes."""
    install_programs(session, CLUSTER_PROGRAMS)
    install(session, "pytest", "hypothesis")
    session.run("pytest", "tests/cluster", *session.posargs)


@task
def demo(session: nox.Session) -> None:
    """Tokenize real text, pretrain a small Llama on two ranks, convert it, continue a prompt, draw the loss."""
    install(session, "transformers")
    session.run("python", "tests/demo/demo.py", *session.posargs)


@task
def lint(session: nox.Session) -> None:
    """Check style, formatting, that imports only go down, that files are short, and how names and sentences are made."""
    session.install("-c", str(CONSTRAINTS), "-r", "tests/lint/requirements.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", env={"PYTHONPATH": ":".join(SOURCES)})
    session.run("python", "tests/lint/file_sizes.py")
    session.run("python", "tests/lint/import_circles.py")
    session.run("python", "tests/lint/device_names.py")
    session.run("python", "tests/lint/config_signatures.py")
    session.run("python", "tests/lint/wording.py")


@task
def types(session: nox.Session) -> None:
    """Type-check the five distributions with mypy --strict."""
    install(session, "-r", "tests/lint/requirements.txt")
    session.run("mypy", "--strict", *SOURCES)


@task
def bench(session: nox.Session) -> None:
    """Measure: `-- help` times --help and --version of every tool, `-- preprocess` lt-preprocess and its competitors.

    `-- train` measures lt-train's speed on GPUs beside TorchTitan, megatron-core with TransformerEngine and bare torch.
    `-- train-data` measures the reading of training data, `-- train-quality` whether lt-train reaches its known validation loss,
    `-- stream-quality` the cost of a stream's windows. `-- monitor` measures how fast lt-monitor reads logs, `-- convert`
    lt-convert beside cp and TorchTitan's scripts, `-- checkpoints` how fast checkpoints are saved and loaded.
    """
    if not session.posargs or session.posargs[0] not in BENCHMARKS:
        session.error(f"choose a benchmark: nox -s bench -- {'|'.join(BENCHMARKS)}")
    install(session, "-r", "tests/bench/requirements.txt", alone=("-r", "tests/requirements-no-deps.txt"))
    session.run("python", BENCHMARKS[session.posargs[0]], *session.posargs[1:])


@task
def campaigns(session: nox.Session) -> None:
    """Kill the writing commands at any moment and fail their disk: all campaigns, or `-- NAME [--runs N]` for a single campaign.

    A campaign prints how often each outcome occurred, and the losses. Needs strace.
    """
    install_programs(session, PROGRAMS)
    install(session, "-r", "tests/requirements.txt", alone=("-r", "tests/requirements-no-deps.txt"))
    known = {path.stem: path for path in sorted(Path("tests/hostile/campaigns").glob("*.py"))}
    names = session.posargs[:1] or list(known)
    if names[0] not in known:
        session.error(f"choose a campaign: nox -s campaigns -- {'|'.join(known)}")
    for name in names:
        session.run("python", str(known[name]), *session.posargs[1:])


@task
def causes(session: nox.Session) -> None:
    """Measure how often lt-monitor names the cause of public failures: precision and recall per cause and restart decision.

    `-- --json` prints one object, `-- --misses` each log that is judged wrong, `-- --part development` only this part.
    """
    install(session)
    session.run("python", "tests/monitor/cause_accuracy.py", *session.posargs)


@task
def mutants(session: nox.Session) -> None:
    """Try small mistakes in a module on its tests, and print those that no test notices: `-- FILE [--json]`.

    The module's tests run once to learn which tests execute which line, then these tests run on every mistake until a test
    fails. docs/mutants.md has the scores.
    """
    if not session.posargs:
        session.error("name a module: nox -s mutants -- shared/src/lt_shared/files/storage.py")
    install(session, "-r", "tests/requirements.txt", alone=("-r", "tests/requirements-no-deps.txt"))
    # 1 says that fewer than 95% were noticed.
    session.run("python", "tests/mutants/mutants.py", *session.posargs, env=TESTS_ENVIRONMENT)


@task
def docs(session: nox.Session) -> None:
    """Make the documentation site in build/docs/site, with the man pages in its man/: no page loads anything from the network.

    A warning is an error, and so is a link that leads nowhere.
    """
    session.install("-c", str(CONSTRAINTS), "-r", "docs/requirements.txt")
    # The pages are made from the command lines, which import little.
    editable = [argument for distribution in DISTRIBUTIONS for argument in ("-e", distribution)]
    session.install("--no-deps", *editable)
    session.run("python", "docs/generate.py", "build/docs")
    # With --quiet it would not count warnings.
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@task
def screenshots(session: nox.Session) -> None:
    """Take the pictures of docs/images anew, from a run of the tutorial; look at them before a commit."""
    install_programs(session, PROGRAMS)
    install(session)
    session.run("python", "docs/screenshots.py")


@task
def release(session: nox.Session) -> None:
    """Build all five distributions into dist/, check them, and run the README's pipeline from their wheels.

    On a commit with a tag vX.Y.Z the changelog must say the same.
    """
    session.install("-c", str(CONSTRAINTS), "uv", "-r", "tests/install/requirements.txt")
    session.run("python", "tests/install/release.py", *session.posargs)


@task
def lowest(session: nox.Session) -> None:
    """Run the tools from text to a model with the lowest versions that their metadata allow, torch's too: a download of 3 GB."""
    session.install("-c", str(CONSTRAINTS), "uv")
    editable = [word for path in DISTRIBUTIONS for word in ("-e", LOWEST.get(path, path))]
    session.run(
        # Without tool.uv.sources, which is about installations that are not editable.
        *("uv", "pip", "install", "--no-config", "--no-sources", "--resolution", "lowest-direct"),
        *("--python", session.virtualenv.location),
        *editable,
        env={"LT_SHARED_BY_VERSION": "1"},
    )
    session.run("python", "tests/install/lowest_versions.py")


@nox.session(venv_backend="virtualenv", python="3.13")
def newest(session: nox.Session) -> None:
    """Run the tests that touch other packages with their newest releases, on the newest Python, and print a table of versions.

    `-- --pre` takes pre-releases, `-- --megatron PATH` megatron-core from a checkout, `-- --package NAME` runs the tests of a
    package only. Other arguments are pytest's. Not part of CI: mend or list its findings in docs/versions.md.
    """
    words = list(session.posargs)
    megatron = words.pop(words.index("--megatron") + 1) if "--megatron" in words else None
    words = [word for word in words if word != "--megatron"]
    session.install("-c", str(CONSTRAINTS), "uv")
    prereleases = ("--prerelease", "allow") if "--pre" in words else ()
    pip = ("uv", "pip", "install", "--no-config", "--no-sources", "--python", session.virtualenv.location)
    editable = [word for path in DISTRIBUTIONS for word in ("-e", path)]
    requirements = ("-r", "tests/requirements.txt", "-r", "tests/install/requirements.txt")
    session.run_install(*pip, "--upgrade", *prereleases, *editable, *requirements, env={"LT_SHARED_BY_VERSION": "1"})
    session.run_install(*pip, "--no-deps", "-r", "tests/requirements-no-deps.txt")
    if megatron:
        # Its version is beyond the bound of the metadata, which says what was tried.
        session.run_install(*pip, "--no-deps", megatron)
    workers = ("-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile")
    session.run("python", "tests/install/newest_versions.py", *workers, *words, env=TESTS_ENVIRONMENT)


@task
def lock(session: nox.Session) -> None:
    """Write constraints.txt anew for Python 3.11, 3.12 and 3.13, keeping its versions if they still fit together.

    `-- --upgrade` takes all newest versions, `-- --upgrade-package NAME` one package's; review and test the difference before a
    commit.
    """
    session.install("-c", str(CONSTRAINTS), "uv")
    session.run("python", "tests/install/lock.py", *session.posargs)
