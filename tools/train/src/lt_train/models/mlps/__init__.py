"""MLPs of a block, dense or of experts: hidden states [s, b, h] in and out, each token by itself; `pattern` chooses them."""
