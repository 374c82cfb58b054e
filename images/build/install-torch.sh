#!/bin/bash
# The stack's torch in the place of the base image's, with the companions that are built for it.
# Needs: TORCH, TORCHVISION, TORCHAUDIO, CUDA (versions)
set -euo pipefail

index=https://download.pytorch.org/whl/cu${CUDA/./}
pip install --no-cache-dir "torch==${TORCH}" "torchvision==${TORCHVISION}" "torchaudio==${TORCHAUDIO}" --index-url "$index"
