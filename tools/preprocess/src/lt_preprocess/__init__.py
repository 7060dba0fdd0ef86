"""Tokenize JSON lines into Megatron's indexed datasets."""

from lt_shared import lazy_exports

# Not typing's, whose import would come before lt_shared leaves Ctrl-C to the kernel.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lt_preprocess.cli.tokenize_function import tokenize as tokenize
    from lt_preprocess.tokenizers.text_tokenizer import TextTokenizer as TextTokenizer
    from lt_preprocess.tokenizers.text_tokenizer import load_tokenizer as load_tokenizer
    from lt_shared.contracts.manifest import Dataset as Dataset

__version__: str
__all__ = ["Dataset", "TextTokenizer", "__version__", "load_tokenizer", "tokenize"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "lt-preprocess",
        dict.fromkeys(__all__, "lt_preprocess.tokenizers.text_tokenizer")
        | {"Dataset": "lt_shared.contracts.manifest", "tokenize": "lt_preprocess.cli.tokenize_function"},
    )
