"""Megatron's memory-mapped indexed dataset, read and written with NumPy alone.

`PREFIX.bin` holds the tokens back to back. `PREFIX.idx` (little endian):

    9 bytes   "MMIDIDX\\0\\0"
    uint64    version, 1
    uint8     dtype code (8 = uint16, 4 = int32, ...)
    uint64    number of sequences S
    uint64    length of the document index, D + 1 for D documents
    int32[S]  lengths of the sequences in tokens
    int64[S]  byte offsets of the sequences in the .bin
    int64[D+1] first sequences of the documents, from 0 to S

Files are byte for byte the output of megatron-core's IndexedDatasetBuilder. The `.idx` is published last.
"""

from lt_shared.data.indexed_dataset.layout import DTYPE_CODES as DTYPE_CODES
from lt_shared.data.indexed_dataset.layout import HEADER as HEADER
from lt_shared.data.indexed_dataset.layout import MAGIC as MAGIC
from lt_shared.data.indexed_dataset.layout import VERSION as VERSION
from lt_shared.data.indexed_dataset.layout import bin_path as bin_path
from lt_shared.data.indexed_dataset.layout import dtype_for as dtype_for
from lt_shared.data.indexed_dataset.layout import idx_path as idx_path
from lt_shared.data.indexed_dataset.loss_mask import MASK_DTYPE as MASK_DTYPE
from lt_shared.data.indexed_dataset.loss_mask import MASK_SUFFIX as MASK_SUFFIX
from lt_shared.data.indexed_dataset.loss_mask import has_mask as has_mask
from lt_shared.data.indexed_dataset.loss_mask import is_mask as is_mask
from lt_shared.data.indexed_dataset.loss_mask import mask_prefix as mask_prefix
from lt_shared.data.indexed_dataset.loss_mask import open_mask as open_mask
from lt_shared.data.indexed_dataset.reader import Reader as Reader
from lt_shared.data.indexed_dataset.reader import hint_for_missing as hint_for_missing
from lt_shared.data.indexed_dataset.remote_bin import RemoteBin as RemoteBin
from lt_shared.data.indexed_dataset.sequences import IndexedDataset as IndexedDataset
from lt_shared.data.indexed_dataset.sequences import TokenArrays as TokenArrays
from lt_shared.data.indexed_dataset.sequences import open as open
from lt_shared.data.indexed_dataset.writer import Extent as Extent
from lt_shared.data.indexed_dataset.writer import Writer as Writer
from lt_shared.data.indexed_dataset.writer import can_resume as can_resume
from lt_shared.data.indexed_dataset.writer import discard_partial as discard_partial
from lt_shared.data.indexed_dataset.writer import is_partial as is_partial
from lt_shared.data.indexed_dataset.writer import retract_unfinished as retract_unfinished

# For people and notebooks. The tools use `Reader` and `Writer`.
__all__ = ["IndexedDataset", "TokenArrays", "open"]
