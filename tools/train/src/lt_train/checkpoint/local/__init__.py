"""Copies of the newest state on the nodes' disks, so that a lost node costs minutes of work.

A node holds a checkpoint directory without the shards of most other nodes: `.metadata`, `run.json`, `checksums.json` and so on,
the `.distcp` files of its ranks, and the `.distcp` files of the previous node in a ring. The files are unchanged torch_dist
files: megatron-core and lt-convert read `iter_0000100` of all nodes copied into one directory. If a node is lost, the next node
has its files. If both are lost, the run resumes from SAVE.
"""
