"""Copies of the newest state on the nodes' disks, so that a lost node costs minutes of work.

A node holds a checkpoint directory without the shards of most other nodes: `.metadata`, `run.json`, `checksums.json` and so on,
the `.distcp` files of its ranks, and the `.distcp` files of the previous node in a ring. The files are unchanged torch_dist
files: if the nodes' `iter_0000100` are copied into one directory, megatron-core and lt-convert can read it. If a node is lost,
the next node has its files. If both nodes are lost, the run resumes from SAVE.
"""
