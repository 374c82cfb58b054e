#!/bin/bash
# Builds one of the trainer's extensions into /wheels, against the torch that is installed here.
# Use: build-extension.sh tools, then build-extension.sh transformer-engine|flash-attn|apex VERSION (apex: its commit)
# Needs: CUDA_ARCHS ("9.0;10.0"), CUDA (version), BUILD_TOOLS ("ninja==1.13.2 wheel==0.48.0")
set -euo pipefail

mkdir -p /wheels
# 9.0 as Flash Attention writes it: 90.
numbers=${CUDA_ARCHS//./}
build() { pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels "$@"; }
# As many compilers as there are cores, and no more than fit into memory at so many GiB each.
jobs() {
  local cores fit
  cores=$(nproc)
  fit=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) / 1048576 / $1))
  echo $((fit < 1 ? 1 : fit < cores ? fit : cores))
}

case $1 in
  tools)
    # They stay in this stage.
    read -ra tools <<<"$BUILD_TOOLS"
    pip install --no-cache-dir "${tools[@]}"
    ;;
  transformer-engine)
    # The first two come as NVIDIA's wheels, for all architectures. The third is C++ against this torch, cuDNN and NCCL; forced,
    # since it would otherwise fetch a wheel from a release page. torch's headers alone take g++ 1.5 GiB.
    cudnn=$(python3 -c 'import nvidia.cudnn; print(nvidia.cudnn.__path__[0])')
    export CPATH=$cudnn/include:/opt/nccl/include MAX_JOBS NVTE_PYTORCH_FORCE_BUILD=TRUE
    MAX_JOBS=$(jobs 4)
    build "transformer-engine==$2" "transformer-engine-cu${CUDA%%.*}==$2" "transformer-engine-torch==$2"
    ;;
  flash-attn)
    # It has code for 100, which 103 runs too. Forced, as above. A job with its four threads of nvcc takes 8 to 9 GB (its
    # setup.py), by which it limits itself only where nothing is set.
    export FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS=${numbers//103/100} MAX_JOBS
    MAX_JOBS=$(jobs 9)
    build "flash-attn==$2"
    ;;
  apex)
    # Kernels of a few hundred lines: torch's headers are the most of it, once more for each architecture.
    export TORCH_CUDA_ARCH_LIST=$CUDA_ARCHS MAX_JOBS
    MAX_JOBS=$(jobs 4)
    build --config-settings '--build-option=--cpp_ext --cuda_ext' "git+https://github.com/NVIDIA/apex.git@$2"
    ;;
  *)
    echo "no extension $1" >&2
    exit 2
    ;;
esac
