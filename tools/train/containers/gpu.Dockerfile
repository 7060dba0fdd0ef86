# The four lt tools for clusters of NVIDIA GPUs, with EFA for AWS. From the root of the repository:
#
#   docker build -t lt -f tools/train/containers/gpu.Dockerfile .
#
# For Slurm with pyxis, onto the filesystem that all nodes share:
#
#   enroot import -o /fsx/lt.sqsh dockerd://lt:latest
#
# PyTorch's wheels bring CUDA 13, cuDNN and NCCL; the driver is the host's, 580 or newer.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04

ARG EFA_INSTALLER_VERSION=1.48.0
# Of the speed figures in tools/train/README.md.
ARG TORCH_VERSION=2.11.0

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Triton compiles a launcher with gcc for each kernel. libfabric and the NCCL plugin come from AWS; the kernel module is the host's.
# hadolint ignore=DL3003,DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl gcc libc6-dev pciutils python3-dev python3-venv xz-utils \
    && curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz" | tar -xz -C /tmp \
    && (cd /tmp/aws-efa-installer && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify) \
    && rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*

ENV LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH \
    PATH=/opt/lt/python/bin:/opt/amazon/efa/bin:$PATH

COPY CHANGELOG.md constraints.txt /opt/lt/
COPY shared /opt/lt/shared
COPY tools /opt/lt/tools
# The versions of constraints.txt, but PyTorch's own and what belongs to it.
RUN python3 -m venv /opt/lt/python \
    && sed -E '/^(torch|triton|setuptools|cuda-toolkit|nvidia-(cu(blas|da|dnn|f|rand|so|sp)|n)[^=]*)=/d' /opt/lt/constraints.txt > /opt/lt/image-constraints.txt \
    && pip install --no-cache-dir -c /opt/lt/image-constraints.txt "torch==${TORCH_VERSION}" "/opt/lt/shared[s3]" \
        "/opt/lt/tools/preprocess[parquet,s3,hf,lz4,language]" "/opt/lt/tools/train[flash,muon,s3,tensorboard,wandb]" \
        /opt/lt/tools/convert /opt/lt/tools/monitor \
    && lt-train --version && lt-preprocess --version && lt-convert --version && lt-monitor --version
