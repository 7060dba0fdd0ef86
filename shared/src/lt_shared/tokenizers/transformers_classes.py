"""Name the class of transformers 5 that AutoTokenizer chooses for a directory with a tokenizer.json.

Some classes replace the rules of the file. The class is named in tokenizer_config.json or config.json, but for some model types
AutoTokenizer ignores this name.
"""

from collections.abc import Mapping
from typing import Any

_CLASS_OF_MODEL = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2", "dbrx", "codegen", "emu3", "jais2"), "GPT2Tokenizer"),
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo", "hyperclovax_vision_v2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "mpt", "olmo", "olmoe", "mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"), "GPTNeoXTokenizer"),
    **dict.fromkeys(
        ("roberta", "bart", "longformer", "data2vec-text", "ibert", "mega", "mra", "lilt", "clap"), "RobertaTokenizer"
    ),
    **dict.fromkeys(("bridgetower", "roberta-prelayernorm"), "RobertaTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "zaya"), "GemmaTokenizer"),
    **dict.fromkeys(("diffusion_gemma", "recurrent_gemma", "shieldgemma2", "t5gemma"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen2_vl", "qwen2_5_vl"), "Qwen2Tokenizer"),
    **dict.fromkeys(("qwen2_5_omni", "qwen2_audio", "qwen3_asr", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("audioflamingo3", "colqwen2", "cosmos3_omni", "dots3_note", "fun_asr_nano", "internvl"), "Qwen2Tokenizer"),
    **dict.fromkeys(
        ("hunyuan_vl", "lighton_ocr", "moss_transcribe_diarize", "ovis2", "qianfan_ocr", "vibevoice"), "Qwen2Tokenizer"
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp"), "Qwen3_5Tokenizer"),
    **dict.fromkeys(("cohere", "cohere2", "aya_vision"), "CohereTokenizer"),
    **dict.fromkeys(("idefics", "idefics2"), "LlamaTokenizer"),
    **dict.fromkeys(
        ("bert", "blip", "bros", "chinese_clip", "convbert", "distilbert", "electra", "ernie", "flava"), "BertTokenizer"
    ),
    **dict.fromkeys(("align", "bark", "git", "layoutlm", "megatron-bert", "nezha", "nomic_bert", "qdqbert"), "BertTokenizer"),
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino", "realm", "retribert", "squeezebert", "tvp"), "BertTokenizer"),
    **dict.fromkeys(("vilt", "visual_bert", "mobilebert", "lxmert"), "BertTokenizer"),
    **dict.fromkeys(("mt5", "musicgen", "musicgen_melody", "switch_transformers", "t5"), "T5Tokenizer"),
    **dict.fromkeys(("gte", "jina_embeddings_v3", "metaclip_2", "trocr", "xlm-roberta", "xmod"), "XLMRobertaTokenizer"),
    **dict.fromkeys(("clip", "aimv2", "clipseg", "groupvit", "omdet-turbo", "oneformer", "owlv2", "owlvit"), "CLIPTokenizer"),
    **dict.fromkeys(("sam3", "sam3_video", "xclip"), "CLIPTokenizer"),
    **dict.fromkeys(("albert", "yoso"), "AlbertTokenizer"),
    **dict.fromkeys(("nllb", "nllb-moe"), "NllbTokenizer"),
    **dict.fromkeys(("seamless_m4t", "seamless_m4t_v2"), "SeamlessM4TTokenizer"),
    **dict.fromkeys(("nougat", "pp_formulanet"), "NougatTokenizer"),
    **dict.fromkeys(("esmc", "esmfold2"), "EsmcTokenizer"),
    **dict.fromkeys(("lasr_ctc", "lasr_encoder"), "LasrTokenizer"),
    "barthez": "BarthezTokenizer",
    "bartpho": "BartphoTokenizer",
    "bert-generation": "BertGenerationTokenizer",
    "bert-japanese": "BertJapaneseTokenizer",
    "bertweet": "BertweetTokenizer",
    "big_bird": "BigBirdTokenizer",
    "biogpt": "BioGptTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "blenderbot-small": "BlenderbotSmallTokenizer",
    "byt5": "ByT5Tokenizer",
    "camembert": "CamembertTokenizer",
    "canine": "CanineTokenizer",
    "clvp": "ClvpTokenizer",
    "code_llama": "CodeLlamaTokenizer",
    "cpm": "CpmTokenizer",
    "cpmant": "CpmAntTokenizer",
    "ctrl": "CTRLTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "dia": "DiaTokenizer",
    "dpr": "DPRQuestionEncoderTokenizer",
    "esm": "EsmTokenizer",
    "flaubert": "FlaubertTokenizer",
    "florence2": "BartTokenizer",
    "fnet": "FNetTokenizer",
    "fsmt": "FSMTTokenizer",
    "funnel": "FunnelTokenizer",
    "gpt-sw3": "GPTSw3Tokenizer",
    "gpt_neox_japanese": "GPTNeoXJapaneseTokenizer",
    "herbert": "HerbertTokenizer",
    "layoutlmv2": "LayoutLMv2Tokenizer",
    "layoutlmv3": "LayoutLMv3Tokenizer",
    "layoutxlm": "LayoutXLMTokenizer",
    "led": "LEDTokenizer",
    "luke": "LukeTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "markuplm": "MarkupLMTokenizer",
    "mbart": "MBartTokenizer",
    "mbart50": "MBart50Tokenizer",
    "mgp-str": "MgpstrTokenizer",
    "mluke": "MLukeTokenizer",
    "mpnet": "MPNetTokenizer",
    "mvp": "MvpTokenizer",
    "myt5": "MyT5Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "pegasus": "PegasusTokenizer",
    "perceiver": "PerceiverTokenizer",
    "phobert": "PhobertTokenizer",
    "plbart": "PLBartTokenizer",
    "prophetnet": "ProphetNetTokenizer",
    "reformer": "ReformerTokenizer",
    "rembert": "RemBertTokenizer",
    "roc_bert": "RoCBertTokenizer",
    "roformer": "RoFormerTokenizer",
    "siglip": "SiglipTokenizer",
    "siglip2": "Siglip2Tokenizer",
    "speech_to_text": "Speech2TextTokenizer",
    "speecht5": "SpeechT5Tokenizer",
    "splinter": "SplinterTokenizer",
    "tapas": "TapasTokenizer",
    "tipsv2": "Tipsv2Tokenizer",
    "udop": "UdopTokenizer",
    "videoprism": "VideoPrismTokenizer",
    "vits": "VitsTokenizer",
    "whisper": "WhisperTokenizer",
    "xglm": "XGLMTokenizer",
    "xlm": "XLMTokenizer",
    "xlnet": "XLNetTokenizer",
}
# For these model types, AutoTokenizer ignores the named class and takes the class registered above, ...
_REGISTERED_ONLY = frozenset(
    ["qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "siglip2", "hyperclovax_vision_v2"]
)
# ... and for these it keeps the rules of the file.
_FILE_RULES = frozenset(
    [
        *("phi3", "phi3_v", "phimoe", "olmo2", "olmo3", "olmo_hybrid", "flex_olmo", "glm", "glm4", "glm4_moe", "glm4_moe_lite"),
        *("glm4v", "glm4v_moe", "glm_image", "glmasr", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared"),
        *(
            "mistral",
            "mistral3",
            "mistral_large4",
            "ministral",
            "ministral3",
            "mixtral",
            "pixtral",
            "voxtral",
            "voxtral_realtime",
        ),
        *("modernbert", "modernbert-decoder", "nemotron", "minicpm3", "minicpmv", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
        *("ernie4_5", "ernie4_5_moe", "kimi_linear", "kimi_k25", "smolvlm", "llava", "llava_next", "vipllava", "molmo", "molmo2"),
        *("gpt_bigcode", "stablelm", "persimmon", "fuyu", "internlm2", "internlm3", "jamba", "arctic", "minimax_m2", "umt5"),
        *("mimo_v2_flash", "hyperclovax", "hyperclovax_vlm", "aria", "bigbird_pegasus", "pegasus_x", "nystromformer", "kosmos-2"),
        *(
            "pix2struct",
            "xlm-roberta-xl",
            "got_ocr2",
            "canary",
            "chatlm",
            "openvla",
            "opencua",
            "step3_vl",
            "nvfp4",
            "cohere_asr",
        ),
        *("h2ovl_chat", "paddleocr_vl", "iquestcoder", "beam", "EvollaModel", "gradium_phonon_tts", "nemo_speechlm", "omniasr"),
        *("pocket_tts", "camembertv2-base"),
    ]
)
_ALIASES = {
    "Phi3Tokenizer": "LlamaTokenizer",
    **dict.fromkeys(("ElectraTokenizer", "MobileBertTokenizer", "LxmertTokenizer", "SqueezeBertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("LayoutLMTokenizer", "DistilBertTokenizer", "DPRQuestionEncoderTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("DPRContextEncoderTokenizer", "DPRReaderTokenizer"), "BertTokenizer"),
}


def plain_name(name: Any) -> str | None:
    """Return a class name without a final "Fast" and with aliases replaced; None for a value that is no name."""
    if not isinstance(name, str) or not name:
        return None
    plain: str = name.removesuffix("Fast")
    return _ALIASES.get(plain, plain)


def chosen_class(configured: Any, model: Mapping[str, Any]) -> str | None:
    """Return the name of the chosen class, or None if AutoTokenizer keeps the rules of tokenizer.json.

    `configured` is the class in tokenizer_config.json, `model` the content of config.json.
    """
    model_type = model.get("model_type")
    if model_type in _FILE_RULES:
        return None
    registered = _CLASS_OF_MODEL.get(model_type) if isinstance(model_type, str) else None
    if model_type in _REGISTERED_ONLY:
        return registered
    return plain_name(configured) or plain_name(model.get("tokenizer_class")) or registered
