"""Releases of megatron-core that changed a feature or the checkpoint format."""


def release(version: str) -> tuple[int, ...]:
    """Return major and minor of a version: (0, 19) for 0.19.2."""
    return tuple(int(number) for number in version.split(".")[:2])
