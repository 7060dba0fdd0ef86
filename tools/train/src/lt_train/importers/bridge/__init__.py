"""Parts of Megatron-Bridge's configuration: its objects, its data, and where its runs begin."""
