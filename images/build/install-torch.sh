#!/bin/bash
# The stack's torch in the place of the base image's, with the companions that are built for it.
# Needs: TORCH, CUDA (versions)
set -euo pipefail

index=https://download.pytorch.org/whl/cu${CUDA/./}
pip install --no-cache-dir "torch==${TORCH}" torchvision torchaudio --index-url "$index"
