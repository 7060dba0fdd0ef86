"""Files that a run keeps beside its checkpoints: the tokenizer, and what lay beside the Hugging Face model that it began with."""

import os
from pathlib import Path

from lt_shared.console import warn
from lt_shared.contracts import checkpoint_layout, manifest
from lt_shared.files import ownership, storage
from lt_shared.tokenizers import tokenizer_files

# A model card or a licence is smaller; a larger file is none of lt-convert's.
MAXIMUM_BYTES = 50_000_000


def keep_tokenizer(tokenizer: manifest.Tokenizer | None, run: Path) -> None:
    """Copy the tokenizer's files into the run, so that a checkpoint can be converted wherever it is moved."""
    target = checkpoint_layout.tokenizer_directory(run)
    if tokenizer is None or tokenizer.path is None or target.exists():
        return
    if not os.path.exists(tokenizer.path):
        warn(f"{tokenizer.path}: the tokenizer is not there any more; the run will not hold a copy")
        return
    files = tokenizer_files.find_made_with(tokenizer.path, tokenizer.sha256)
    if files.sha256() != tokenizer.sha256:
        warn(f"{tokenizer.path}: the tokenizer has changed since the data was made; the run will not hold a copy")
        return
    with storage.publish_directory(target) as directory:
        files.copy_to(directory.path)


def keep_model_files(load: str | None, run: Path) -> None:
    """Copy the directory `huggingface` of the run that `load` names, or of which it is a checkpoint, into `run`.

    lt-convert puts the model card, the licence and the ids of special tokens there, and returns them to a Hugging Face model.
    Raises BadData for a link that another user made.
    """
    target = run / checkpoint_layout.HUGGINGFACE_DIRECTORY
    if load is None or target.exists():
        return
    place = load.rstrip("/")
    parent, _, name = place.rpartition("/")
    is_checkpoint = name == checkpoint_layout.RELEASE or checkpoint_layout.iteration_of(Path(name)) is not None
    source = f"{parent or '.' if is_checkpoint else place}/{checkpoint_layout.HUGGINGFACE_DIRECTORY}"
    sizes = _sizes(source)
    if not sizes:
        return
    with storage.publish_directory(target) as directory:
        for name, size in sizes.items():
            if size > MAXIMUM_BYTES:
                warn(f"{source}/{name}: {size:,} bytes; the run will not hold a copy")
                continue
            copy = directory.path / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            storage.write_bytes(copy, storage.read_bytes(f"{source}/{name}"))


def _sizes(directory: str) -> dict[str, int]:
    """Map the relative name of each file below a directory, local or remote, to its size in bytes."""
    if storage.is_remote(directory):
        return storage.sizes_below(directory)
    paths = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
    for path in paths:
        ownership.check_link(path)
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}
