"""Copies of the newest state on the nodes' own disks, so that a lost node costs minutes of work: from where a run starts and when
it saves, the trainer asks this room; it calls the saver of shared checkpoints for the writing itself.

What a node holds is a checkpoint's directory without the shards of most other nodes: `.metadata`, `run.json`, `checksums.json`
and so on, the `.distcp` files that its own ranks have written, and those of the node before it in a ring. They are the files of a
torch_dist checkpoint, unchanged: `iter_0000100` of all nodes copied into one directory is one that megatron-core and lt-convert
read. When a node is lost, the next one has its files; when both are, the run goes on from SAVE.
"""
