#!/bin/bash
# Builds one of the trainer's extensions into /wheels, against the torch that is installed here.
# Use: build-extension.sh tools, then build-extension.sh transformer-engine|flash-attn|apex VERSION (apex: its commit)
# Needs: CUDA_ARCHS ("9.0;10.0"), CUDA (version)
set -euo pipefail

mkdir -p /wheels
export TORCH_CUDA_ARCH_LIST=$CUDA_ARCHS MAX_JOBS=${MAX_JOBS:-$(nproc)}
# 9.0 as these two write it: 90.
numbers=${CUDA_ARCHS//./}
build() { pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels "$@"; }

case $1 in
  tools)
    # They stay in this stage.
    pip install --no-cache-dir ninja pybind11 packaging psutil setuptools wheel nvidia-ml-py
    ;;
  transformer-engine)
    cudnn=$(python3 -c 'import nvidia.cudnn; print(nvidia.cudnn.__path__[0])')
    export CUDNN_PATH=$cudnn CPATH=$cudnn/include NVTE_FRAMEWORK=pytorch NVTE_CUDA_ARCHS=$numbers
    build "transformer-engine==$2" "transformer-engine-cu${CUDA%%.*}==$2" "transformer-engine-torch==$2"
    ;;
  flash-attn)
    # It has code for 100, which 103 runs too. Forced, since it would otherwise fetch a wheel from a release page.
    FLASH_ATTN_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS=${numbers//103/100} build "flash-attn==$2"
    ;;
  apex)
    build --config-settings '--build-option=--cpp_ext --cuda_ext' "git+https://github.com/NVIDIA/apex.git@$2"
    ;;
  *)
    echo "no extension $1" >&2
    exit 2
    ;;
esac
