"""Parts of Megatron-LM's command line: where a run begins, and options that other options switch on."""
