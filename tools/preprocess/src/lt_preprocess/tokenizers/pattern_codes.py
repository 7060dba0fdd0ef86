"""The codes of the patterns in `split_patterns` for compiled code.

In a separate module, so that using a code loads no compiler.
"""

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
