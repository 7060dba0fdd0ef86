"""megatron-core's GPT model as this run computes it: `build_gpt` makes it, `fused_layer` has the forward pass of a layer."""
