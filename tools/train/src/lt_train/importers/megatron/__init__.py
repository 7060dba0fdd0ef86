"""Parts of Megatron-LM's command line: where a run begins, its first weights, and options that other options switch on."""
