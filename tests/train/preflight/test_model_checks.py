from pathlib import Path

from situations import said, situation

from lt_train.preflight import model_checks


def test_all_problems_of_the_plan(tmp_path: Path) -> None:
    wrong = situation(tmp_path, "--tensor-model-parallel-size", "3", "--ranks", "3", "--min-lr", "1", "--seq-length", "4096")
    found = said(model_checks.settings, wrong)
    assert len(found) >= 4
    assert all(text.startswith("error: options: ") for text in found)
    assert not said(model_checks.settings, situation(tmp_path))


def test_head_size(tmp_path: Path) -> None:
    sizes = ("--num-attention-heads", "2", "--num-query-groups", "2")
    assert "heads of 82" in said(model_checks.head_size, situation(tmp_path, *sizes, "--kv-channels", "82"))[0]
    assert not said(model_checks.head_size, situation(tmp_path, *sizes))


def test_a_known_model_with_megatrons_feed_forward_size(tmp_path: Path) -> None:
    """Llama 2 70B as a script has it that leaves the size out."""
    sizes = ("--num-layers", "80", "--hidden-size", "8192", "--num-attention-heads", "64", "--num-query-groups", "8")
    style = ("--position-embedding-type", "rope", "--untie-embeddings-and-output-weights", "--model", "")
    (found,) = said(model_checks.feed_forward, situation(tmp_path, *sizes, *style))
    assert "feed-forward size is 28672, not 21824" in found
    assert "--model llama2-70b" in found
    assert not said(model_checks.feed_forward, situation(tmp_path, *sizes, *style, "--ffn-hidden-size", "28672"))


def test_precision_of_gpus_elsewhere(tmp_path: Path) -> None:
    assert "bfloat16" in said(model_checks.capability, situation(tmp_path, "--bf16", gpu="v100-32gb"))[0]
    assert not said(model_checks.capability, situation(tmp_path, "--bf16", gpu="a10g-24gb"))


def test_recomputation_on_gpus_elsewhere(tmp_path: Path) -> None:
    again = ("--bf16", "--recompute-granularity", "selective", "--recompute-modules", "swiglu")
    assert "a Hopper GPU" in said(model_checks.capability, situation(tmp_path, *again, gpu="a100-80gb"))[0]
    assert not said(model_checks.capability, situation(tmp_path, *again, gpu="h200-141gb"))


def test_memory(tmp_path: Path) -> None:
    large = ("--model", "llama3.1-8b", "--bf16", "--seq-length", "2048")
    (found,) = said(model_checks.fits, situation(tmp_path, *large, gpu="h100-80gb"))
    assert found.startswith("error: h100-80gb: weights, gradients and optimizer alone take 119.7 GiB of 79.6")
    split = ("--ranks", "8", "--use-distributed-optimizer", "--global-batch-size", "8")
    (found,) = said(
        model_checks.fits, situation(tmp_path, *large, *split, "--micro-batch-size", "1", "--seq-length", "8192", gpu="h100-80gb")
    )
    assert found.startswith("warning: h100-80gb: about ")
    assert not said(model_checks.fits, situation(tmp_path, *large, *split, gpu="h200-141gb"))
    few = ("--use-distributed-optimizer", "--num-distributed-optimizer-instances", "3")
    assert not [text for text in said(model_checks.fits, situation(tmp_path, *few, gpu="h200-141gb")) if "error" in text]
    deep = situation(tmp_path, "--pipeline-model-parallel-size", "64", "--recompute-granularity", "full", gpu="h200-141gb")
    assert said(model_checks.fits, deep) == ["not checked: the layout does not divide the model and the ranks"]
    assert said(model_checks.fits, situation(tmp_path)) == ["not checked: the memory of the GPUs is not known"]
