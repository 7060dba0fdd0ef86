"""An `Architecture` as Megatron-LM's command-line arguments, and back."""

from lt_shared.models.megatron_arguments.arguments import absent_in_hybrid_model as absent_in_hybrid_model
from lt_shared.models.megatron_arguments.arguments import absent_in_megatron as absent_in_megatron
from lt_shared.models.megatron_arguments.arguments import dense_layers as dense_layers
from lt_shared.models.megatron_arguments.arguments import from_arguments as from_arguments
from lt_shared.models.megatron_arguments.arguments import to_arguments as to_arguments
from lt_shared.models.megatron_arguments.known_fields import is_known as is_known
from lt_shared.models.megatron_arguments.known_fields import remarks as remarks
