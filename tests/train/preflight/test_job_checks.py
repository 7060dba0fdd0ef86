from pathlib import Path

from situations import said, situation, write

from lt_train.preflight import job_checks


def test_image_under_another_name(tmp_path: Path) -> None:
    """The image is built as aws-megatron-lm.sqsh, and the script starts megatron-training.sqsh."""
    (tmp_path / "aws-megatron-lm.sqsh").touch()
    found = said(job_checks.image, situation(tmp_path, image=str(tmp_path / "megatron-training.sqsh")))
    assert f"does not exist; there is {tmp_path}/aws-megatron-lm.sqsh" in found[0]
    assert not said(job_checks.image, situation(tmp_path, image=str(tmp_path / "aws-megatron-lm.sqsh")))
    assert said(job_checks.image, situation(tmp_path, image="nvcr.io/nvidia/pytorch:25.06-py3")) == [
        "not checked: --image is in a registry"
    ]


def test_nodes_of_slurm(tmp_path: Path) -> None:
    assert not said(job_checks.slurm_nodes, situation(tmp_path, SLURM_JOB_ID="1", SLURM_JOB_NUM_NODES="2"))
    assert "is not set" in said(job_checks.slurm_nodes, situation(tmp_path, SLURM_JOB_ID="1"))[0]
    wrong = situation(tmp_path, SLURM_JOB_ID="1", SLURM_JOB_NUM_NODES="2", NODES="4")
    assert "4, but the job has 2 nodes" in said(job_checks.slurm_nodes, wrong)[0]
    assert said(job_checks.slurm_nodes, situation(tmp_path)) == ["not checked: not in a job of Slurm"]


def test_auto_resume_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "opt/sagemaker_cluster").mkdir(parents=True)
    assert "begins at 0" in said(job_checks.auto_resume, situation(tmp_path))[0]
    assert not said(job_checks.auto_resume, situation(tmp_path, "--save", "run"))


def test_key_of_wandb(tmp_path: Path) -> None:
    asked = ("--wandb-project", "p")
    assert "no key" in said(job_checks.wandb_key, situation(tmp_path, *asked, HOME=str(tmp_path)))[0]
    assert not said(job_checks.wandb_key, situation(tmp_path, *asked, HOME=str(tmp_path), WANDB_API_KEY="x"))
    assert not said(job_checks.wandb_key, situation(tmp_path, *asked, HOME=str(tmp_path), WANDB_MODE="offline"))
    write(tmp_path, "/.netrc", "machine api.wandb.ai\n")
    assert not said(job_checks.wandb_key, situation(tmp_path, *asked, HOME=str(tmp_path)))


def test_trainium_has_no_backend(tmp_path: Path) -> None:
    assert said(job_checks.trainium, situation(tmp_path, INSTANCE_TYPE="p5.48xlarge")) == ["not checked: not on Trainium"]
    assert (
        "trn1.32xlarge: lt-train has no backend"
        in said(job_checks.trainium, situation(tmp_path, INSTANCE_TYPE="trn1.32xlarge"))[0]
    )
    write(tmp_path, "/dev/neuron0", "")
    assert "/dev/neuron0: lt-train has no backend" in said(job_checks.trainium, situation(tmp_path))[0]


def test_variables_that_name_no_option(tmp_path: Path) -> None:
    variables = {"LT_TRAIN_GLOBAL_BATCHSIZE": "8", "LT_TRAIN_XYZZY": "1"}
    right = {"LT_TRAIN_GLOBAL_BATCH_SIZE": "8", "LT_TRAIN_NODES": "2", "LT_TRAIN_BENCH_STEPS": "3", "LT_TRAIN_CONFIG": "a"}
    found = said(job_checks.unknown_variables, situation(tmp_path, **variables, **right))
    assert found == [
        "warning: LT_TRAIN_GLOBAL_BATCHSIZE: is no option of lt-train, and changes nothing;"
        " did you mean LT_TRAIN_GLOBAL_BATCH_SIZE?",
        "warning: LT_TRAIN_XYZZY: is no option of lt-train, and changes nothing; unset it; see lt-train --help",
    ]
