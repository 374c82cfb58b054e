#!/bin/bash
# NVSHMEM, to which DeepEP's legacy sources link though its v2 kernels do not call it, and cuDNN, for Transformer Engine. Like
# NCCL, torch asks for versions of its own, which pip steps bring back: this runs again after the last of them.
# Needs: NVSHMEM, NVIDIA_CUDNN_CU13, CUDA (versions)
set -euo pipefail

pip install --no-cache-dir --no-deps --force-reinstall "nvidia-nvshmem-cu${CUDA%%.*}==${NVSHMEM}" \
  "nvidia-cudnn-cu13==${NVIDIA_CUDNN_CU13}"
lib=$(python3 -c 'import nvidia.nvshmem; print(nvidia.nvshmem.__path__[0])')/lib
# Like NCCL's, the package has the library under its versioned name alone.
host=$(find "$lib" -name 'libnvshmem_host.so.*' -print -quit)
ln -sf "$(basename "$host")" "$lib/libnvshmem_host.so"
