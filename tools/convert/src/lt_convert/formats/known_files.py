"""The files of a checkpoint that lt-convert knows, by format, and their fates: the table in docs/guides/conversion.md.

A conversion warns of every other file. Patterns match names in the checkpoint's directory, and in its folders of chat templates.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable

from lt_convert.tensors.checksums import Checksums
from lt_shared.contracts import checkpoint_layout
from lt_shared.files.checksums import FileChecksums
from lt_shared.tokenizers import tokenizer_files

# The directory of a run that keeps what lay beside a Hugging Face model.
DIRECTORY = checkpoint_layout.HUGGINGFACE_DIRECTORY


class Fate(enum.Enum):
    """How a conversion treats a file."""

    READ = "read: weights, settings, optimizer state"
    CARRIED = "copied unchanged"
    STATE = "training state: left out, and a line says so"
    DROPPED = "records of programs, and traces of git and the Hub: left out"


@dataclasses.dataclass(frozen=True)
class KnownFiles:
    """Files with the same fate. `pattern` matches their names, `shown` describes the names in the guide."""

    fate: Fate
    pattern: str
    shown: str

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


_TEMPLATES = "|".join(tokenizer_files.TEMPLATE_FOLDERS)
_NAMES_OF_TOKENIZERS = "|".join(map(re.escape, (*tokenizer_files.COMPANIONS, *tokenizer_files.OTHER_FORMS)))
CARRIED = (
    KnownFiles(
        Fate.CARRIED,
        rf"{_NAMES_OF_TOKENIZERS}|[\w.-]+\.tiktoken|tokenizer\.model\.v\d\w*|tokenization_\w+\.py|({_TEMPLATES})(/[\w.-]+\.jinja)?",
        "tokenizer: `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, "
        "`tokenizer.model`, `tokenizer.model.v*`, `tekken.json`, `*.tiktoken`, `vocab.json`, `merges.txt`, `vocab.txt`, "
        "`vocab.bpe`, `encoder.json`, `spiece.model`, `sentencepiece.bpe.model`, `tokenization_*.py`",
    ),
    KnownFiles(
        Fate.CARRIED,
        r"chat_template\.(jinja|json)|generation_config\.json|custom_generate\.py",
        "`chat_template.jinja`, `chat_template.json`, `additional_chat_templates/`, `chat_templates/`, `generation_config.json`, "
        "`custom_generate.py`",
    ),
    KnownFiles(
        Fate.CARRIED,
        r"(\w+_)?(pre)?processor_config\.json|(image_|video_|feature_)?process(ing|or)_\w+\.py",
        "`processor_config.json`, `preprocessor_config.json`, `video_preprocessor_config.json` and the like, `processing_*.py`, "
        "`image_processing_*.py`",
    ),
    KnownFiles(
        Fate.CARRIED,
        r"(?i:README([-_.][\w-]+)*|MODEL_?CARD\.md|CITATION(\.(cff|bib))?|CHANGELOG\.md|SECURITY\.md|"
        r"((THIRD_?PARTY_?)?(LICEN[CS]ES?|NOTICES?)|COPYING|USE_POLICY|ACCEPTABLE_USE_POLICY)([-_.][\w.-]+)?)",
        "model card, licence and citation: `README*`, `MODEL_CARD.md`, `LICENSE*`, `LICENCE*`, `NOTICE*`, `COPYING*`, "
        "`USE_POLICY*`, `ACCEPTABLE_USE_POLICY*`, `CITATION.*`, `CHANGELOG.md`, `SECURITY.md`",
    ),
)
_RECORDS = "|".join(map(re.escape, (Checksums.RECORD, FileChecksums.NAME)))
TRACES = KnownFiles(
    Fate.DROPPED,
    rf"{_RECORDS}|\.git(attributes|ignore|modules)?|\.cache|\.huggingface|\.DS_Store|\.lt-convert.*|\..*\.(lock|partial\S*)",
    "`lt-convert.json`, `checksums.json`, `.gitattributes`, `.gitignore`, `.cache/`, `.huggingface/`, `.DS_Store`",
)
OF_RUN = KnownFiles(
    Fate.CARRIED,
    rf"{checkpoint_layout.TOKENIZER_DIRECTORY}|{DIRECTORY}|nemo_tokenizer",
    f"`{checkpoint_layout.TOKENIZER_DIRECTORY}/`, `nemo_tokenizer/`, `{DIRECTORY}/`",
)
HUGGINGFACE = (
    KnownFiles(
        Fate.READ,
        r"config\.json|model\.safetensors|(model\.safetensors|pytorch_model\.bin)\.index(\.\w+)?\.json|lt-convert\.padding|"
        r"padding\.safetensors|sharded",
        "`config.json`, the weights (`model*.safetensors`, `shard-*.safetensors` or `pytorch_model*.bin`) and their index, "
        "`lt-convert.padding`",
    ),
    *CARRIED,
)
_MEGATRON_STATE = KnownFiles(
    Fate.STATE,
    r"dataloader_state|(?!train_)\w+_state\.pt",
    "`dataloader_state/`, `*_state.pt`",
)
_MEGATRON_DROPPED = KnownFiles(
    Fate.DROPPED, r"latest_\w+(\.txt)?|modelopt_run_config\.yaml", "`latest_*`, `modelopt_run_config.yaml`"
)
MEGATRON_DIST = (
    KnownFiles(
        Fate.READ,
        rf"\.metadata|.*\.distcp|common\.pt|metadata\.json|{re.escape(checkpoint_layout.RECORD)}|run_config\.yaml|train_state\.pt|context|weights",
        "`.metadata`, `*.distcp`, `common.pt`, `metadata.json`, `run.json`, `run_config.yaml`, `train_state.pt`, "
        "NeMo's `context/` and `weights/`",
    ),
    OF_RUN,
    _MEGATRON_STATE,
    _MEGATRON_DROPPED,
)
MEGATRON_LEGACY = (
    KnownFiles(Fate.READ, rf"mp_rank_\w+|{re.escape(checkpoint_layout.RECORD)}", "`mp_rank_*/`, `run.json`"),
    OF_RUN,
    _MEGATRON_STATE,
    _MEGATRON_DROPPED,
)
TORCHTITAN = (
    KnownFiles(
        Fate.READ,
        rf"\.metadata|.*\.distcp|metadata\.pkl|model_\d+\.pt|config\.json|{re.escape(checkpoint_layout.RECORD)}",
        "`.metadata`, `*.distcp`, or `metadata.pkl`, `model_*.pt`; `run.json`, `config.json`",
    ),
    OF_RUN,
    KnownFiles(
        Fate.STATE,
        r"(optimizer|train_state|lr_scheduler|dataloader)_\d+\.pt",
        "`optimizer_*.pt`, `train_state_*.pt`, `lr_scheduler_*.pt`, `dataloader_*.pt`",
    ),
)
MEGATRON_FSDP = MEGATRON_DIST
OLMO_CORE = (
    KnownFiles(
        Fate.READ,
        r"model_and_optim|config\.json|\.metadata\.json",
        "`model_and_optim/`, `config.json`, `.metadata.json`",
    ),
    OF_RUN,
    KnownFiles(Fate.STATE, r"train", "`train/`"),
    KnownFiles(Fate.DROPPED, r"data_paths\.txt", "`data_paths.txt`"),
)


def is_carried(name: str) -> bool:
    """Return whether a file beside a Hugging Face model is copied unchanged. `name` is relative to the model's directory."""
    return any(files.matches(name) for files in CARRIED)


def names_with(fate: Fate, names: Iterable[str], known: Iterable[KnownFiles]) -> list[str]:
    """List the `names` in a checkpoint's directory that have this fate in a format with the `known` files."""
    rows = [files for files in (*known, TRACES) if files.fate is fate]
    return [name for name in names if any(files.matches(name) for files in rows)]


def unknown_names(names: Iterable[str], known: Iterable[KnownFiles]) -> list[str]:
    """List the `names` in a checkpoint's directory that a format with the `known` files does not have."""
    rows = (*known, TRACES)
    return [name for name in names if not any(files.matches(name) for files in rows)]


def without_traces(names: Iterable[str]) -> list[str]:
    """Remove records of programs and traces of git and the Hub from `names`."""
    return [name for name in names if not TRACES.matches(name)]
