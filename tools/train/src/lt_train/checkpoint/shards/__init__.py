"""A rank's shards on their way to a disk or a store: saver hands in tensors, and files with their checksums come out."""
