# The four lt tools for clusters of NVIDIA GPUs, with EFA for AWS. From the root of the repository:
#
#   docker build -t lt -f tools/train/containers/gpu.Dockerfile .
#
# For Slurm with pyxis, onto the filesystem that all nodes share:
#
#   enroot import -o /fsx/lt.sqsh dockerd://lt:latest
#
# The base brings PyTorch, NCCL and TransformerEngine that were built for each other, and its pip keeps to these versions.
FROM nvcr.io/nvidia/pytorch:25.06-py3

ARG EFA_INSTALLER_VERSION=1.43.2

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# libfabric and the NCCL plugin come from AWS; the kernel module is the host's. Another Open MPI than the base's stays out.
# hadolint ignore=DL3003,DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-server pciutils xz-utils \
    && curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz" | tar -xz -C /tmp \
    && (cd /tmp/aws-efa-installer && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify) \
    && mkdir -p /run/sshd \
    && rm -rf /tmp/aws-efa-installer /var/lib/apt/lists/*

ENV LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH \
    PATH=/opt/amazon/efa/bin:$PATH

COPY shared /opt/lt/shared
COPY tools /opt/lt/tools
# The base has torch, numpy and the like in its constraint file.
RUN pip install --no-cache-dir /opt/lt/shared /opt/lt/tools/preprocess "/opt/lt/tools/train[tensorboard,wandb,s3]" \
        /opt/lt/tools/convert /opt/lt/tools/monitor \
    && lt-train --version && lt-preprocess --version && lt-convert --version && lt-monitor --version
