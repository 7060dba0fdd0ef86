"""What to use in place of options of other trainers, by their names there without leading dashes.

The names are those of transformers' TrainingArguments, TorchTitan, nanoGPT, nanochat, torchtune, litgpt and Lightning, and what
people try first. Options of Megatron-LM are lt-train's own, or `lt-train import` reads them from a script.
"""

_STEPS = "--train-iters 1000 for steps, or --train-tokens 20000000000 for tokens"

_REMEDIES = (
    (
        "epochs num-epochs n-epochs num-train-epochs max-epochs train.epochs",
        f"lt-train counts steps or tokens, not epochs: {_STEPS}",
    ),
    (
        "steps max-steps num-steps max-iters num-iterations training.steps train-steps tokens max-tokens train.max-tokens "
        "target-tokens",
        _STEPS,
    ),
    (
        "batch-size per-device-train-batch-size device-batch-size local-batch-size training.local-batch-size "
        "train.micro-batch-size training.batch-size mbs",
        "--micro-batch-size for the samples of a device, --global-batch-size for a step's samples of all devices",
    ),
    ("total-batch-size training.global-batch-size train.global-batch-size gbs", "--global-batch-size"),
    (
        "gradient-accumulation-steps accumulate-grad-batches grad-accum-steps gradient-accumulation",
        "lt-train computes it: --global-batch-size is micro batch size x data-parallel ranks x accumulation",
    ),
    (
        "dtype precision torch-dtype mixed-precision amp fp32 tf32 float32 bfloat16 fp16-mixed",
        "--bf16, --fp16 or --fp8-recipe; without one of them float32",
    ),
    ("fp8", "--fp8-recipe blockwise, or another of its recipes"),
    ("learning-rate max-lr optimizer.lr train.learning-rate base-lr peak-lr", "--lr"),
    ("min-learning-rate lr-min train.min-lr", "--min-lr"),
    ("warmup warmup-steps warmup-iters lr-warmup-steps num-warmup-steps lr-scheduler.warmup-steps", "--lr-warmup-iters"),
    ("warmup-ratio", "--lr-warmup-fraction"),
    ("lr-scheduler-type lr-scheduler scheduler lr-schedule", "--lr-decay-style"),
    ("max-grad-norm grad-clip gradient-clip-val training.max-norm max-norm", "--clip-grad"),
    ("optim optimizer.name", "--optimizer"),
    ("beta1 optimizer.beta1", "--adam-beta1"),
    ("beta2 optimizer.beta2", "--adam-beta2"),
    ("adam-epsilon epsilon eps optimizer.eps", "--adam-eps"),
    ("wd optimizer.weight-decay", "--weight-decay"),
    (
        "output-dir out-dir checkpoint-dir save-dir ckpt-dir checkpoint.folder job.dump-folder",
        "--save DIRECTORY; the same command continues from the newest checkpoint there",
    ),
    ("save-steps save-every checkpoint.interval checkpoint-interval save-freq", "--save-interval"),
    ("save-total-limit checkpoint.keep-latest-k keep-latest-k", "--keep-last"),
    (
        "resume resume-from-checkpoint resume-from init-from checkpoint load-dir",
        "--load DIRECTORY; without it a run continues from the newest checkpoint in --save",
    ),
    ("model-name-or-path model-name model-tag model.name model.flavor hf-model", "--model"),
    ("tokenizer-name tokenizer-path model.tokenizer-path hf-assets-path", "--tokenizer"),
    (
        "max-seq-len max-seq-length seq-len sequence-length block-size max-length context-length training.seq-len "
        "sequence-len train.max-seq-length",
        "--seq-length",
    ),
    ("n-layer n-layers num-hidden-layers depth", "--num-layers"),
    ("n-head n-heads num-heads", "--num-attention-heads"),
    ("n-kv-head n-kv-heads num-key-value-heads", "--num-query-groups"),
    ("n-embd dim d-model embed-dim model-dim", "--hidden-size"),
    ("intermediate-size hidden-dim d-ff", "--ffn-hidden-size"),
    ("rope-theta rotary-theta", "--rotary-base"),
    (
        "gpus num-gpus n-gpus ngpus nproc-per-node gpus-per-node devices nodes num-nodes nnodes",
        "--ranks is the number of processes on this node; srun or torchrun start the nodes",
    ),
    (
        "tp tp-size tensor-parallel-size parallelism.tensor-parallel-degree",
        "--tensor-model-parallel-size, or --parallel tp=2,pp=2",
    ),
    (
        "pp pp-size pipeline-parallel-size parallelism.pipeline-parallel-degree",
        "--pipeline-model-parallel-size, or --parallel tp=2,pp=2",
    ),
    ("cp cp-size context-parallel parallelism.context-parallel-degree", "--context-parallel-size"),
    ("ep ep-size expert-parallel-size parallelism.expert-parallel-degree", "--expert-model-parallel-size"),
    (
        "fsdp deepspeed zero-stage strategy accelerator parallelism.data-parallel-shard-degree",
        "--use-torch-fsdp2 shards weights, gradients and optimizer state, --use-distributed-optimizer the optimizer state",
    ),
    (
        "gradient-checkpointing activation-checkpointing activation-checkpoint.mode recompute enable-activation-checkpointing",
        "--recompute-granularity selective or full",
    ),
    ("compile torch-compile training.compile compile.enable", "nothing: kernels are chosen by trials; see lt-train help kernels"),
    ("flash-attn flash-attention attn-implementation", "--attention-backend"),
    (
        "dataset dataset-name dataset-path train-file train-data data-dir data training.dataset",
        "name the datasets without an option: lt-train data/web_text_document; lt-preprocess makes them from text",
    ),
    ("validation-file val-data eval-dataset", "--valid-data-path"),
    ("dataloader-num-workers workers", "--num-workers"),
    ("logging-steps log-freq log-every metrics.log-freq log-steps", "--log-interval"),
    (
        "eval-steps eval-every val-check-interval eval-freq validation.freq evaluation-strategy",
        "--eval-interval and --eval-iters",
    ),
    ("report-to wandb wandb-log use-wandb", "--wandb-project NAME, --tensorboard-dir DIRECTORY"),
    ("run-name wandb-run-name run", "--wandb-exp-name"),
    ("tensorboard logging-dir log-dir tb-dir", "--tensorboard-dir"),
    ("job.config-file", "lt-train import FILE translates a configuration of TorchTitan"),
    ("config-name", "lt-train import FILE translates a recipe"),
    ("tie-word-embeddings", "weights are tied unless --untie-embeddings-and-output-weights"),
    ("random-seed", "--seed"),
    ("max-time", "--exit-duration-in-mins"),
)
FOREIGN_OPTIONS = {
    name: f"use {remedy}" if remedy.startswith("--") else remedy for names, remedy in _REMEDIES for name in names.split()
}
