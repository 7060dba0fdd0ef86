"""The shape of a decoder-only transformer. `presets` holds the named ones."""

from lt_shared.models.architecture.decoder import Architecture as Architecture
from lt_shared.models.architecture.gated_delta import GatedDelta as GatedDelta
from lt_shared.models.architecture.latent_attention import LatentAttention as LatentAttention
from lt_shared.models.architecture.mamba import Mamba as Mamba
from lt_shared.models.architecture.short_convolution import ShortConvolution as ShortConvolution
from lt_shared.models.architecture.side_by_side import SideBySide as SideBySide
from lt_shared.models.architecture.sizes import CLAMPED_SWIGLU_ALPHA as CLAMPED_SWIGLU_ALPHA
from lt_shared.models.architecture.sizes import CLAMPED_SWIGLU_LIMIT as CLAMPED_SWIGLU_LIMIT
from lt_shared.models.architecture.sparse_attention import SparseAttention as SparseAttention
from lt_shared.models.rope_scaling import LARGEST as LARGEST
from lt_shared.models.rope_scaling import RopeScaling as RopeScaling
