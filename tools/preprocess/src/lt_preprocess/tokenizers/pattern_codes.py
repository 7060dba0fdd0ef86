"""The numbers by which compiled code knows the patterns of `split_patterns`. Apart, so that naming one loads no compiler."""

GPT2 = 0
LLAMA3 = 1
QWEN2 = 2
TEKKEN = 3
O200K = 4
QWEN35 = 5
CL100K = 6
KIMI = 7
DEEPSEEK = 8
STARCODER = 9
BYTE_FALLBACK = 10
"""No pattern: text is merged as a whole, from its characters."""
