"""The limit of open files of this process: every rank connects to others, and reads many datasets."""

import resource


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, which needs no permission. Processes that this one starts inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
