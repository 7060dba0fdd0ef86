"""Parse version numbers. They decide which models megatron-core can compute and which checkpoints it reads."""


def release(version: str) -> tuple[int, ...]:
    """Return major and minor of a version: (0, 19) for 0.19.2."""
    return tuple(int(number) for number in version.split(".")[:2])
