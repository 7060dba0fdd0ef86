"""Name the class of transformers 5 that AutoTokenizer chooses for a directory with a tokenizer.json.

Some classes replace the rules of the file. The class is named in tokenizer_config.json or config.json, but for some model types
AutoTokenizer ignores this name.
"""

from collections.abc import Mapping
from typing import Any

_MODELS_OF_CLASS = {
    "GPT2Tokenizer": (
        "gpt2 gpt_neo gptj opt phi starcoder2 dbrx codegen emu3 jais2 blip-2 instructblip instructblipvideo hyperclovax_vision_v2"
    ),
    "GPTNeoXTokenizer": "gpt_neox mpt olmo olmoe mamba mamba2 falcon_mamba rwkv xlstm",
    "RobertaTokenizer": "roberta bart longformer data2vec-text ibert mega mra lilt clap bridgetower roberta-prelayernorm",
    "GemmaTokenizer": (
        "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text zaya diffusion_gemma recurrent_gemma shieldgemma2 t5gemma"
    ),
    "Qwen2Tokenizer": (
        "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen2_vl qwen2_5_vl qwen2_5_omni qwen2_audio qwen3_asr "
        "qwen3_omni_moe qwen3_vl qwen3_vl_moe audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano internvl "
        "hunyuan_vl lighton_ocr moss_transcribe_diarize ovis2 qianfan_ocr vibevoice"
    ),
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text qwen4_exp",
    "CohereTokenizer": "cohere cohere2 aya_vision",
    "LlamaTokenizer": "idefics idefics2",
    "BertTokenizer": (
        "bert blip bros chinese_clip convbert distilbert electra ernie flava align bark git layoutlm megatron-bert "
        "nezha nomic_bert qdqbert grounding-dino mm-grounding-dino realm retribert squeezebert tvp vilt visual_bert "
        "mobilebert lxmert"
    ),
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod",
    "CLIPTokenizer": "clip aimv2 clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip",
    "AlbertTokenizer": "albert yoso",
    "NllbTokenizer": "nllb nllb-moe",
    "SeamlessM4TTokenizer": "seamless_m4t seamless_m4t_v2",
    "NougatTokenizer": "nougat pp_formulanet",
    "EsmcTokenizer": "esmc esmfold2",
    "LasrTokenizer": "lasr_ctc lasr_encoder",
    "BarthezTokenizer": "barthez",
    "BartphoTokenizer": "bartpho",
    "BertGenerationTokenizer": "bert-generation",
    "BertJapaneseTokenizer": "bert-japanese",
    "BertweetTokenizer": "bertweet",
    "BigBirdTokenizer": "big_bird",
    "BioGptTokenizer": "biogpt",
    "BlenderbotTokenizer": "blenderbot",
    "BlenderbotSmallTokenizer": "blenderbot-small",
    "ByT5Tokenizer": "byt5",
    "CamembertTokenizer": "camembert",
    "CanineTokenizer": "canine",
    "ClvpTokenizer": "clvp",
    "CodeLlamaTokenizer": "code_llama",
    "CpmTokenizer": "cpm",
    "CpmAntTokenizer": "cpmant",
    "CTRLTokenizer": "ctrl",
    "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2",
    "DiaTokenizer": "dia",
    "DPRQuestionEncoderTokenizer": "dpr",
    "EsmTokenizer": "esm",
    "FlaubertTokenizer": "flaubert",
    "BartTokenizer": "florence2",
    "FNetTokenizer": "fnet",
    "FSMTTokenizer": "fsmt",
    "FunnelTokenizer": "funnel",
    "GPTSw3Tokenizer": "gpt-sw3",
    "GPTNeoXJapaneseTokenizer": "gpt_neox_japanese",
    "HerbertTokenizer": "herbert",
    "LayoutLMv2Tokenizer": "layoutlmv2",
    "LayoutLMv3Tokenizer": "layoutlmv3",
    "LayoutXLMTokenizer": "layoutxlm",
    "LEDTokenizer": "led",
    "LukeTokenizer": "luke",
    "M2M100Tokenizer": "m2m_100",
    "MarianTokenizer": "marian",
    "MarkupLMTokenizer": "markuplm",
    "MBartTokenizer": "mbart",
    "MBart50Tokenizer": "mbart50",
    "MgpstrTokenizer": "mgp-str",
    "MLukeTokenizer": "mluke",
    "MPNetTokenizer": "mpnet",
    "MvpTokenizer": "mvp",
    "MyT5Tokenizer": "myt5",
    "OpenAIGPTTokenizer": "openai-gpt",
    "PegasusTokenizer": "pegasus",
    "PerceiverTokenizer": "perceiver",
    "PhobertTokenizer": "phobert",
    "PLBartTokenizer": "plbart",
    "ProphetNetTokenizer": "prophetnet",
    "ReformerTokenizer": "reformer",
    "RemBertTokenizer": "rembert",
    "RoCBertTokenizer": "roc_bert",
    "RoFormerTokenizer": "roformer",
    "SiglipTokenizer": "siglip",
    "Siglip2Tokenizer": "siglip2",
    "Speech2TextTokenizer": "speech_to_text",
    "SpeechT5Tokenizer": "speecht5",
    "SplinterTokenizer": "splinter",
    "TapasTokenizer": "tapas",
    "Tipsv2Tokenizer": "tipsv2",
    "UdopTokenizer": "udop",
    "VideoPrismTokenizer": "videoprism",
    "VitsTokenizer": "vits",
    "WhisperTokenizer": "whisper",
    "XGLMTokenizer": "xglm",
    "XLMTokenizer": "xlm",
    "XLNetTokenizer": "xlnet",
}
_CLASS_OF_MODEL = {model: name for name, models in _MODELS_OF_CLASS.items() for model in models.split()}
# For these model types, AutoTokenizer ignores the named class and takes the class registered above, ...
_REGISTERED_ONLY = frozenset(
    ["qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "siglip2", "hyperclovax_vision_v2"]
)
# ... and for these it keeps the rules of the file.
_MODELS_WITH_FILE_RULES = (
    "phi3 phi3_v phimoe olmo2 olmo3 olmo_hybrid flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image "
    "glmasr granite granitemoe granitemoehybrid granitemoeshared mistral mistral3 mistral_large4 ministral "
    "ministral3 mixtral pixtral voxtral voxtral_realtime modernbert modernbert-decoder nemotron minicpm3 minicpmv "
    "minicpm_ocr minicpmv4_6 minicpmv4_7 ernie4_5 ernie4_5_moe kimi_linear kimi_k25 smolvlm llava llava_next "
    "vipllava molmo molmo2 gpt_bigcode stablelm persimmon fuyu internlm2 internlm3 jamba arctic minimax_m2 umt5 "
    "mimo_v2_flash hyperclovax hyperclovax_vlm aria bigbird_pegasus pegasus_x nystromformer kosmos-2 pix2struct "
    "xlm-roberta-xl got_ocr2 canary chatlm openvla opencua step3_vl nvfp4 cohere_asr h2ovl_chat paddleocr_vl "
    "iquestcoder beam EvollaModel gradium_phonon_tts nemo_speechlm omniasr pocket_tts camembertv2-base"
)
_FILE_RULES = frozenset(_MODELS_WITH_FILE_RULES.split())
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
