"""Whether an import is of the same model: what it ends with, and how many parameters lt-train counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import Result, train

NEMO = """\
run: {{name: {name}, results_dir: /results}}
trainer: {{precision: bf16, max_steps: 1000}}
model:
  micro_batch_size: 1
  global_batch_size: 8
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: ${{multiply:4, ${{.hidden_size}}}}
  num_attention_heads: 16
  activations_checkpoint_method: block
  fp8: false
  fp8_hybrid: true
  override_vocab_size: 51200
{more}
  optim: {{name: distributed_fused_adam, lr: 1e-4, sched: {{name: CosineAnnealing, warmup_steps: 100}}}}
"""
LLAMA = "  position_embedding_type: rope\n  normalization: rmsnorm\n  activation: fast-swiglu\n  bias: false\n"
EXPERTS = "  num_moe_experts: 8\n  moe_router_topk: 2\n"
# By hand: 24 layers of 12 h^2 + 13 h, two norms' worth of the last one, 51200 words and 2048 positions of 2048.
GPT_PARAMETERS = 24 * (12 * 2048**2 + 13 * 2048) + 2 * 2048 + (51200 + 2048) * 2048
# 4 h^2 of attention, 3 h x 4h of SwiGLU and two norms a layer, one norm, one table of words that is tied.
LLAMA_PARAMETERS = 24 * (4 * 2048**2 + 3 * 4 * 2048**2 + 2 * 2048) + 2048 + 51200 * 2048
MIXTRAL_PARAMETERS = LLAMA_PARAMETERS + 24 * (7 * 3 * 4 * 2048**2 + 8 * 2048)
SHAPE = ("--num-layers", "24", "--hidden-size", "2048", "--num-attention-heads", "16", "--vocab-size", "51200")
STEPS = ("--train-iters", "100", "--micro-batch-size", "1", "--global-batch-size", "8", "--seq-length", "2048", "--bf16")


def nemo(directory: Path, more: str = "", name: str = "gpt_1b") -> Path:
    file = directory / "config.yaml"
    file.write_text(NEMO.format(name=name, more=more))
    return file


def parameters(done: Result) -> int:
    assert done.code == 0, done.err
    (line,) = (line for line in done.err.splitlines() if "the model has" in line)
    return int(line.partition("the model has ")[2].split()[0].replace(",", ""))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", GPT_PARAMETERS),
        ("  normalization: layernorm1p\n  layernorm_zero_centered_gamma: true\n", GPT_PARAMETERS),
        (LLAMA, LLAMA_PARAMETERS),
        (LLAMA + EXPERTS, MIXTRAL_PARAMETERS),
        (LLAMA + "  num_moe_experts: 1\n  moe_router_topk: 2\n", LLAMA_PARAMETERS),
        (LLAMA + "  qkv_bias: true\n", LLAMA_PARAMETERS + 24 * 3 * 2048),
        (LLAMA + "  mcore_customization_config: {parallel_attention: true}\n", LLAMA_PARAMETERS),
        (LLAMA + "  attention_dropout: 0.0\n  scale_positional_embedding: true\n  window_size: [1023, 0]\n", LLAMA_PARAMETERS),
    ],
    ids=["gpt", "layernorm1p", "llama", "experts", "one expert", "qkv bias", "falcon's keys", "scaled"],
)
def test_a_configuration_of_nemos_launcher(tmp_path: Path, more: str, expected: int) -> None:
    result = train("import", str(nemo(tmp_path, more)))
    assert parameters(result) == expected
    assert "the original says 1b" in result.err


def test_settings_that_have_an_option_are_carried_over(tmp_path: Path) -> None:
    more = (
        LLAMA + "  attention_dropout: 0.0\n  scale_positional_embedding: true\n  window_size: [1023, 0]\n  num_query_groups: 4\n"
    )
    options = json.loads(train("import", "--json", str(nemo(tmp_path, more))).out)["options"]
    expected = {"use-rope-scaling": True, "window-size": "1023,0", "num-query-groups": 4, "ffn-hidden-size": 8192}
    assert options.items() >= expected.items()
    assert not {"fp8-format", "recompute-method"} & options.keys()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (LLAMA.replace("fast-swiglu", "squared-relu"), "another model would result, without model.activation"),
        (LLAMA.replace("rope", "alibi"), "another model would result, without model.position_embedding_type"),
        (LLAMA + "  kv_channels: 128\n  attn_logit_softcapping: 50.0\n", "without model.attn_logit_softcapping"),
        ("  position_embedding_type: rope\n", "lt-train refuses the result: swiglu False does not go with the llama family"),
        (LLAMA + "  rotary_interleaved: true\n", "without model.rotary_interleaved"),
        ("  bert_binary_head: false\n", "BERT: lt-train trains decoders"),
        ("  encoder: {num_layers: 2}\n", "an encoder and a decoder: lt-train trains decoders"),
        ("  transformer_block_type: gpt_j\n", "without model.transformer_block_type"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, more: str, message: str) -> None:
    result = train("import", str(nemo(tmp_path, more)))
    assert (result.code, result.out) == (65, "")
    assert message in result.err


def test_partial_writes_what_there_is(tmp_path: Path) -> None:
    file = nemo(tmp_path, LLAMA + "  rotary_interleaved: true\n")
    result = train("import", "--partial", str(file))
    assert result.code == 0
    assert "num-layers = 24" in result.out
    assert (
        f"warning: {file}: another model would result, without model.rotary_interleaved (line 20); --partial accepts it"
        in result.err
    )


def test_what_matters_comes_first_and_the_rest_is_counted(tmp_path: Path) -> None:
    more = "  rotary_interleaved: true\n  gradient_accumulation_fusion: true\n  moe_pad_expert_input_to_capacity: true\n"
    quiet = train("import", "--partial", str(nemo(tmp_path, LLAMA + more))).err.splitlines()
    changed_options = [line.partition("changes ")[2].split(":")[0] for line in quiet if "not carried over" in line]
    # Without a word about evaluation, Lightning evaluates all data at the end of each epoch: two of three results.
    assert changed_options == ["the model", "the run", "the result", "the result", "speed", "nothing"]
    assert [line for line in quiet if line.endswith("keys; -v lists them")] == quiet[4:6]
    assert "-v lists them" not in train("import", "--partial", "-v", str(nemo(tmp_path, LLAMA + more))).err
    record = json.loads(train("import", "--partial", "--json", str(nemo(tmp_path, LLAMA + more))).out)
    effects = {entry["key"]: entry["effect"] for entry in record["not_carried"]}
    assert effects["model.rotary_interleaved"] == "model"
    assert effects["model.gradient_accumulation_fusion"] == "speed"
    assert effects["model.moe_pad_expert_input_to_capacity"] == "run"
    assert effects["run.results_dir"] == "none"


def test_a_key_is_set_on_the_command_line(tmp_path: Path) -> None:
    result = train("import", "--json", "--set", "model.num_layers=2", "--set", "trainer.max_steps=7", str(nemo(tmp_path)))
    assert json.loads(result.out)["options"].items() >= {"num-layers": 2, "train-iters": 7}.items()
    assert "expected NAME=VALUE" in train("import", "--set", "model.num_layers", str(nemo(tmp_path))).err
    assert train("import", "--set", "A=1", "--", "pretrain_gpt.py", *SHAPE).code == 2


RECIPE = """\
run: {{name: mixtral, model_type: hf}}
trainer: {{devices: 8, num_nodes: 16, precision: bf16, max_steps: 50}}
use_smp_model: true
model:
  model_type: {kind}
  train_batch_size: 2
  moe: {moe}
  max_context_width: 2048
  num_hidden_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  num_key_value_heads: 16
  intermediate_size: 8192
  vocab_size: 51200
  tie_word_embeddings: true
  num_local_experts: 8
  num_experts_per_tok: 2
  moe_load_balancing: sinkhorn
  sliding_window: null
"""


@pytest.mark.parametrize(
    ("kind", "moe", "expected"), [("mixtral", "true", MIXTRAL_PARAMETERS), ("llama_v3", "false", LLAMA_PARAMETERS)]
)
def test_recipes_have_experts_where_they_say_so(tmp_path: Path, kind: str, moe: str, expected: int) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(kind=kind, moe=moe))
    refused = train("import", str(tmp_path / "recipe.yaml"))
    assert refused.code == (65 if moe == "true" else 0)
    result = train("import", "--partial", str(tmp_path / "recipe.yaml"))
    assert parameters(result) == expected
    assert ("sinkhorn: experts are balanced by --moe-aux-loss-coeff" in result.err) == (moe == "true")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RECIPE.format(kind="deepseek_r1", moe="false"), "another model would result, without model.model_type"),
        ("run: {model_type: 'amazon.nova-lite-v1:0:300k'}\n", "Amazon's Nova: its shape is not public"),
        ("distributed_strategy: {zero1: true}\nmodel: {num_layers: 32}\n", "a recipe for Trainium"),
        ("run: {name: x, model_type: hf}\nmodel: {hf_model_name_or_path: a/b}\n", "no model: neither its name nor its layers"),
    ],
)
def test_recipes_without_a_model_that_can_be_had(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "recipe.yaml").write_text(content)
    result = train("import", str(tmp_path / "recipe.yaml"))
    assert (result.code, result.out) == (65, "") and message in result.err


@pytest.mark.parametrize("content", ["[project]\nname = 'x'\n", "[model]\nname = 'deepseek_v3'\nflavor = '16B'\n"])
def test_a_toml_without_a_model_that_can_be_had(tmp_path: Path, content: str) -> None:
    (tmp_path / "titan.toml").write_text(content)
    result = train("import", str(tmp_path / "titan.toml"))
    assert (result.code, result.out) == (65, "") and "no model: neither its name nor its layers are known" in result.err


def test_keys_of_2024_are_carried_over(tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_text(
        "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nbatch_size = 2\ntensor_parallel_degree = 4\nsteps = 100\n"
        "warmup_steps = 20\n[experimental]\npipeline_parallel_degree = 2\ncontext_parallel_degree = 2\n"
    )
    result = train("import", "--json", str(tmp_path / "titan.toml"))
    expected: dict[str, Any] = {
        "micro-batch-size": 2,
        "tensor-model-parallel-size": 4,
        "pipeline-model-parallel-size": 2,
        "context-parallel-size": 2,
        "lr-warmup-iters": 20,
    }
    assert json.loads(result.out)["options"].items() >= expected.items()


def test_a_configuration_in_python_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config_registry.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    result = train("import", str(tmp_path / "config_registry.py"))
    assert result.code == 65 and "which function makes the configuration?" in result.err
    assert not (tmp_path / "ran").exists()


SCRIPT = """\
#!/bin/bash
DTYPE="bf16"
TOKENIZER=${1:-"MOCK"}
if [ $NODES -le 4 ]; then
    : "${TP:=4}"
elif [ $NODES -ge 8 ]; then
    : "${TP:=8}"
fi
MORE=()
if [[ "$DTYPE" == "bf16" ]]; then
    MORE+=("--vocab-size 51200" --bf16)
else
    MORE+=(--fp16)
fi
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then MORE2=1; fi
LOGGING=(--log-interval 1)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING+=(--wandb-project x --wandb-exp-name y)
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "no pretrain_gpt.py"
    exit 1
fi
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
    --tensor-model-parallel-size $TP --train-iters 10 --micro-batch-size 1 --global-batch-size 8 --seq-length 2048 \\
    --max-position-embeddings 2048 --save $OUT --load $OUT --no-load-rng ${MORE[@]} ${LOGGING[@]}
"""


def test_values_of_a_condition_are_asked_for_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    result = train("import", str(tmp_path / "run.sh"))
    assert (result.code, result.out) == (65, "")
    assert "TP: only a run of the script knows the value\nhint: give it: --set TP=VALUE\n" in result.err


@pytest.mark.parametrize(("given", "tensor"), [("TP=2", 2), ("NODES=2", 4), ("NODES=16", 8)])
def test_values_that_are_given_decide(tmp_path: Path, given: str, tensor: int) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    result = train("import", "--json", "--set", given, str(tmp_path / "run.sh"))
    assert parameters(result) == GPT_PARAMETERS
    options = json.loads(result.out)["options"]
    assert (options["tensor-model-parallel-size"], options["bf16"], options["log-interval"]) == (tensor, True, 1)
    assert not {"fp16", "no-load-rng"} & options.keys()


def test_a_variable_that_the_script_does_not_have_is_refused(tmp_path: Path) -> None:
    """Its value would go nowhere, and the run would have the sizes of the script."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    misspelt = train("import", "--set", "TPS=2", "--set", "NODES=2", str(tmp_path / "run.sh"))
    assert (misspelt.code, misspelt.out) == (65, "")
    assert "--set TPS: it has no such variable\nhint: did you mean TP?" in misspelt.err
    assert "hint: it has " in train("import", "--set", "HIDDEN=2", str(tmp_path / "run.sh")).err


OF_DEEPSPEED = """\
DIR=`pwd`
OUT=${DIR}/output
NUM_EXPERTS=1
options=" --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --num-experts ${NUM_EXPERTS} --bf16 --loss-scale 12 \\
    --micro-batch-size 1 --global-batch-size 8 --seq-length 2048 --max-position-embeddings 2048 --train-iters 10 \\
    --save ${OUT}/checkpoint --load ${OUT}/checkpoint --exit-duration-in-mins 30"
if [ "$ACTIVATION_CHECKPOINT" = "true" ]; then
options="${options} \\
    --checkpoint-activations"
fi
run="deepspeed ${DIR}/pretrain_gpt.py ${options} --vocab-size 51200 &> ${OUT}/log.txt"
echo ${run}
eval ${run}
"""


def test_a_command_that_is_put_together_in_a_variable(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(OF_DEEPSPEED)
    result = train("import", "--json", str(tmp_path / "run.sh"))
    assert parameters(result) == GPT_PARAMETERS
    assert not {"num-experts", "loss-scale", "save"} & json.loads(result.out)["options"].keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--use-rotary-position-embeddings", "--normalization", "rmsnorm"), {"position-embedding-type": "rope"}),
        (
            ("--position-embedding-type", "rope", "--normalization", "rmsnorm", "--num-key-value-heads", "4"),
            {"num-query-groups": 4},
        ),
        (("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--rope-theta", "500000"), {"rotary-base": 500000}),
    ],
)
def test_earlier_names_and_those_of_megatron_deepspeed(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    llama = ("--swiglu", "--disable-bias-linear", "--max-position-embeddings", "2048")
    result = train("import", "--json", "--", "pretrain_gpt.py", *SHAPE, *STEPS, *llama, *words)
    assert result.code == 0, result.err
    assert json.loads(result.out)["options"].items() >= {"normalization": "RMSNorm", **expected}.items()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("pretrain_bert.py", "the script starts pretrain_bert.py, and lt-train imports pretrain_gpt.py"),
        ("pretrain_t5.py", "the script starts pretrain_t5.py"),
        ("megatron_gpt_pretraining.py", "hint: import the YAML that its --config-name names"),
    ],
)
def test_other_programs_are_refused(tmp_path: Path, program: str, message: str) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun {program} {' '.join((*SHAPE, *STEPS))}\n")
    result = train("import", str(tmp_path / "run.sh"))
    assert (result.code, result.out) == (65, "") and message in result.err


def test_biases_that_a_guide_to_llama_has_by_silence_are_told() -> None:
    llama = ("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--max-position-embeddings", "2048")
    words = ("import", "--", "pretrain_gpt.py", *SHAPE, *STEPS, *llama)
    assert "changes the model: disable_bias_linear = False: there are biases in linear layers then" in train(*words).err
    assert "biases in linear layers" not in train(*words, "--disable-bias-linear").err


# As Megatron-Bridge writes it, fields of the same kind left out.
RUN_CONFIG = """\
_target_: megatron.bridge.training.config.ConfigContainer
checkpoint: {{_target_: megatron.bridge.training.config.CheckpointConfig, save: /a, load: /a, save_interval: 500}}
dataset: {{sequence_length: 1024, mock: true, split: '1,1,1', blend: null}}
ddp: {{use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true, average_in_collective: true}}
mixed_precision: {{bf16: true, fp8: null, params_dtype: {{_call_: false, _target_: torch.bfloat16}}}}
model:
  _target_: megatron.bridge.models.{provider}
  activation_func: {{_call_: false, _target_: torch.nn.functional.silu}}
  add_bias_linear: false
  bf16: true
  ffn_hidden_size: 8192
  gated_linear_unit: true
  generation_config: {{_call_: true, config_dict: {{max_length: 20, temperature: 0.6}}}}
  hidden_size: 2048
  high_freq_factor: 4.0
  kv_channels: 64
  low_freq_factor: 1.0
  mamba_head_dim: 64
  mamba_state_dim: 128
  moe_layer_freq: 1
  moe_router_score_function: softmax
  moe_router_topk: 2
  moe_token_dispatcher_type: allgather
  multi_latent_attention: false
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 16
  num_moe_experts: null
  num_query_groups: 8
  old_context_len: 8192
  position_embedding_type: rope
  rotary_base: 500000.0
  rotary_interleaved: {interleaved}
  scale_factor: 32.0
  seq_length: 131072
  share_embeddings_and_output_weights: true
  softmax_type: vanilla
  vocab_size: 128256
optimizer: {{_target_: megatron.core.optimizer.OptimizerConfig, lr: 0.0003, min_lr: 3.0e-05, optimizer: adam, clip_grad: 1.0}}
scheduler: {{lr_decay_style: cosine, lr_warmup_iters: 10, lr_decay_iters: 100}}
train: {{micro_batch_size: 1, global_batch_size: 8, train_iters: 100, eval_iters: 0}}
"""
LLAMA31_PROVIDER = "llama.llama_provider.Llama31ModelProvider"


def test_the_run_config_of_a_checkpoint_of_megatron_bridge(tmp_path: Path) -> None:
    file = tmp_path / "run_config.yaml"
    text = RUN_CONFIG.format(provider=LLAMA31_PROVIDER, interleaved="false")
    file.write_text(text.replace("fp8: null", "fp8: e4m3, fp8_recipe: blockwise"))
    result = train("import", "--json", str(file))
    # As transformers counts the parameters of Llama 3.2 1B.
    assert parameters(result) == 1_235_814_400
    expected: dict[str, Any] = {
        "use-rope-scaling": True,
        "rope-scaling-factor": 32.0,
        "max-position-embeddings": 131072,
        "seq-length": 1024,
        "save": "/a",
        "bf16": True,
        "fp8-format": "e4m3",
        "fp8-recipe": "blockwise",
        "mock-data": True,
        "lr-warmup-iters": 10,
    }
    assert json.loads(result.out)["options"].items() >= expected.items()


@pytest.mark.parametrize(
    ("provider", "interleaved", "message"),
    [
        (LLAMA31_PROVIDER, "true", "another model would result, without model.rotary_interleaved"),
        ("mamba.mamba_provider.MambaModelProvider", "false", "MambaModelProvider: lt-train has no such model"),
    ],
)
def test_other_models_of_megatron_bridge_are_refused(tmp_path: Path, provider: str, interleaved: str, message: str) -> None:
    file = tmp_path / "run_config.yaml"
    file.write_text(RUN_CONFIG.format(provider=provider, interleaved=interleaved))
    result = train("import", str(file))
    assert (result.code, result.out) == (65, "") and message in result.err
