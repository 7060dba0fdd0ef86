"""Recognise by its first bytes a file that holds no documents, whatever its name says: a pointer, an error page, an archive.

Read as JSON lines, every line of such a file would be bad, and `--on-error skip` would drop the whole file. So it is an error,
which names the format and a command that extracts documents.
"""

import json
import re
import shlex
from typing import NamedTuple

from lt_preprocess.readers.decompression import decompressor_for
from lt_preprocess.readers.paths import COMPRESSION_SUFFIXES, STDIN, display_name
from lt_preprocess.readers.text_table import looks_like_table
from lt_shared.console import BadData

HEAD_BYTES = 1 << 16
"""Bytes from the start of a file that tell what it is: a table without a name may have a first row of many kilobytes."""

PARQUET_MAGIC = b"PAR1"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSED_NAMES = {".br": "brotli -dc", ".sz": "snzip -dc", ".z": "uncompress -c"}


class Format(NamedTuple):
    """`remedy` has {} in the place of the file's name."""

    name: str
    remedy: str


_CONVERT = "python -c \"import datasets; datasets.Dataset.from_{}('FILE').to_json('FILE.jsonl')\""
_AGAIN = "download the file again and look at the address and the permissions"
_LFS = Format("a Git LFS pointer: the file itself was not downloaded", "git lfs pull --include {}")
_UTF16 = Format("UTF-16 text", "iconv -f UTF-16 -t UTF-8 {} | lt-preprocess - ...")
_UTF32 = Format("UTF-32 text", "iconv -f UTF-32 -t UTF-8 {} | lt-preprocess - ...")
_PICKLE = Format("a pickle, which is never loaded", "write the texts as JSON lines")
_IMPORT = "lt-preprocess import {} -o PREFIX takes token ids; texts write as JSON lines"
_NAME_DOCUMENTS = "name a file of documents"
_PICTURE = Format("a picture", _NAME_DOCUMENTS)
_TABLE = Format(
    "a table of text without a column of this name", "--json-keys names the column; a table needs a first row of column names"
)
_SIGNATURES = {
    b"version https://git-lfs.github.com/spec/": _LFS,
    b"version https://hawser.github.com/spec/": _LFS,
    b"/annex/objects/": Format("a git-annex pointer: the file itself was not downloaded", "git annex get {}"),
    b"PK\x03\x04": Format("a zip archive", "unzip -p {} | lt-preprocess - ..."),
    b"PK\x05\x06": Format("an empty zip archive", "make the archive again"),
    b"\x02\x21\x4c\x18": Format("compressed by lz4", "lz4 -dc {} | lt-preprocess - ..."),
    b"\x5d\x00\x00": Format("compressed by lzma", "xz --format=lzma -dc {} | lt-preprocess - ..."),
    b"LZIP": Format("compressed by lzip", "lzip -dc {} | lt-preprocess - ..."),
    b"\x89LZO": Format("compressed by lzop", "lzop -dc {} | lt-preprocess - ..."),
    b"\x1f\x9d": Format("compressed by compress", "uncompress -c < {} | lt-preprocess - ..."),
    b"\xff\x06\x00\x00sNaPpY": Format("compressed by snappy", "snzip -dc {} | lt-preprocess - ..."),
    b"7z\xbc\xaf\x27\x1c": Format("a 7z archive", "7z x -so {} | lt-preprocess - ..."),
    b"Rar!\x1a\x07": Format("a RAR archive", "unrar p -inul {} | lt-preprocess - ..."),
    b"PARE": Format("encrypted Parquet", "write it again without encryption"),
    b"FEA1": Format("a Feather file", "python -c \"import pandas; pandas.read_feather('FILE').to_parquet('FILE.parquet')\""),
    b"ORC": Format("an ORC file", "python -c \"import pandas; pandas.read_orc('FILE').to_parquet('FILE.parquet')\""),
    b"Obj\x01": Format("an Avro file", "avro-tools tojson {} | lt-preprocess - ..."),
    b"\x89HDF\r\n": Format("an HDF5 file", "write the texts as JSON lines"),
    b"\x93NUMPY": Format("a NumPy array", _IMPORT),
    b"SQLite format 3\0": Format("an SQLite database", "write the texts as JSON lines"),
    b"%PDF-": Format("a PDF", "pdftotext {} FILE.txt"),
    b"GGUF": Format("a GGUF model", _NAME_DOCUMENTS),
    b"MMIDIDX\0\0": Format("the index of a Megatron dataset", "name the documents that it was made of"),
    b"\x89PNG\r\n": _PICTURE,
    b"\xff\xd8\xff": _PICTURE,
    b"GIF87a": _PICTURE,
    b"GIF89a": _PICTURE,
    b"\x7fELF": Format("a program", _NAME_DOCUMENTS),
    b"\x00\x05\x16\x07": Format("a file of macOS with attributes of another file", "name the file without the leading ._"),
    b"\xff\xfe\x00\x00": _UTF32,
    b"\x00\x00\xfe\xff": _UTF32,
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"{\x00": _UTF16,
    b"\x00{": _UTF16,
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
    b"\0\0\0\0": Format("zeros: its content was never written", "copy the file again"),
}
"""What no JSON line begins with, the longer of two that begin alike first."""

_TOKEN_NAMES = (".npy", ".ds")
_MAY_BEGIN_TEXT = frozenset([b"LZIP", b"PARE", b"FEA1", b"ORC", b"GGUF", b"GIF87a", b"GIF89a"])

_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_XML = re.compile(rb"<(\?xml|Error|ListBucketResult)\b")
_ARRAY = re.compile(rb"\[\s*(\{|$|[\r\n])")
_OBJECT_ON_LINES = re.compile(rb"\{[ \t]*\r?\n\s*[\"}]")


def check(path: str, start: bytes, is_text: bool) -> None:
    """Raise BadData when the first HEAD_BYTES of a file, or of its decompressed content, hold no documents."""
    foreign_format = _recognised(path, start, is_text)
    if foreign_format is None:
        return
    name = "FILE" if path == STDIN else shlex.quote(path)
    raise BadData(
        f"{display_name(path)}: {_contradiction(path)}{foreign_format.name}",
        foreign_format.remedy.replace("{}", name).replace("FILE", name),
    )


def has_signature(start: bytes) -> bool:
    """Whether a file begins as no text does, so that a name such as .csv does not count."""
    return any(start.startswith(signature) for signature in _SIGNATURES.keys() - _MAY_BEGIN_TEXT)


def check_decompressed(path: str, start: bytes, is_text: bool) -> None:
    """As `check`, for decompressed content, which is not compressed again."""
    if decompressor_for(start):
        raise BadData(f"{display_name(path)}: is compressed twice", "decompress it once: a pipe to lt-preprocess - will do")
    if start.startswith(PARQUET_MAGIC):
        raise BadData(f"{display_name(path)}: Parquet in a compressed file", "decompress the file: Parquet compresses its pages")
    check(path, start, is_text)


def _contradiction(path: str) -> str:
    """Begin a message with the format that the file name promises; the caller appends the real format."""
    suffix = re.search(r"\.\w+$", path)
    if path.lower().endswith(_TOKEN_NAMES):
        return "holds no text but "
    return "is " if path == STDIN or suffix is None else f"is not what its name ({suffix[0]}) says but "


def _recognised(path: str, start: bytes, is_text: bool) -> Format | None:
    for signature, signature_format in _SIGNATURES.items():
        if start.startswith(signature) and not (is_text and signature in _MAY_BEGIN_TEXT):
            return signature_format
    if is_text:
        return None
    content = start.removeprefix(_BYTE_ORDER_MARK).lstrip()
    if _HTML.match(content):
        return Format("an HTML page", _AGAIN)
    if content.startswith(b"---\n"):
        return Format("YAML", "write the texts as JSON lines")
    if _XML.match(content):
        return Format("XML, as stores answer with errors", _AGAIN)
    if _ARRAY.match(content):
        return Format("a JSON array over all documents", "jq -c '.[]' {} | lt-preprocess - ...")
    if _OBJECT_ON_LINES.match(content):
        return Format("JSON that spreads an object over several lines", "jq -c . {} | lt-preprocess - ...")
    if content.startswith(b"{"):
        return _joined_objects(content)
    if content.startswith(b"\x1e"):
        return Format("a JSON sequence (RFC 7464)", "tr -d '\\036' < {} | lt-preprocess - ...")
    if not content:
        return None
    if looks_like_table(content):
        return _TABLE
    return Format("markup", _AGAIN) if content.startswith(b"<") else _by_name(path.lower())


def _joined_objects(content: bytes) -> Format | None:
    """The format of objects that no line feed separates. If the second line is an object, the first is only a bad line."""
    first, *following = content.split(b"\n")[:2]
    if b"{" not in first[1:] or (following and following[0].strip() and not _is_joined(following[0])) or not _is_joined(first):
        return None
    if b"\r" in first.strip():
        return Format("lines that end in a carriage return alone", "tr '\\r' '\\n' < {} | lt-preprocess - ...")
    return Format("JSON objects without line breaks between them", "jq -c . {} | lt-preprocess - ...")


def _is_joined(line: bytes) -> bool:
    """Whether a line, which may be cut off, begins with an object and goes on with another."""
    try:
        text = line.decode(errors="replace").lstrip()
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text.startswith("{") and text[end:].lstrip().startswith("{")


def _by_name(name: str) -> Format | None:
    """Guess the format from the file name, for a file whose content does not begin like JSON lines."""
    for suffix, command in _COMPRESSED_NAMES.items():
        if name.endswith(suffix):
            return Format(f"data that {command.split()[0]} may decompress", f"{command} {{}} | lt-preprocess - ...")
    if name.endswith(".parquet"):
        return Format("no Parquet", _AGAIN)
    if name.endswith(_TOKEN_NAMES):
        return Format("token ids", _IMPORT)
    return None


def check_compression(path: str, start: bytes, is_text: bool) -> None:
    """Raise BadData for a file that its name calls compressed, and that is neither compressed nor text."""
    name = path.lower()
    if name.endswith(COMPRESSION_SUFFIXES) and not is_text and not start.lstrip().startswith(b"{"):
        suffix = name[name.rindex(".") :]
        raise BadData(f"{path}: is not compressed as its name ({suffix}) says, and no JSON lines", _AGAIN)
