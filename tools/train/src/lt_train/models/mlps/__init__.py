"""MLPs of a block, dense or with experts: hidden states [s, b, h] in and out. `pattern` chooses every block's MLP."""
