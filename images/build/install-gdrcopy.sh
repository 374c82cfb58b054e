#!/bin/bash
# libgdrapi, which NCCL's device-side networking opens in every mode, and the sources of its kernel module: `moerl_runtime
# load-gdrdrv` builds that against the running kernel of a node whose AMI lacks it.
# Needs: GDRCOPY (version)
set -euo pipefail

prefix=/opt/gdrcopy
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

apt-get update
# libelf: the kernel's own build tools on a node are linked to it.
apt-get install -y --no-install-recommends build-essential git kmod libelf-dev
rm -rf /var/lib/apt/lists/*
git clone --quiet --depth 1 --branch "v${GDRCOPY}" https://github.com/NVIDIA/gdrcopy.git "$work/gdrcopy"
make -C "$work/gdrcopy" prefix="$prefix" lib lib_install
mkdir -p "$prefix/src"
# Not below /usr/src: the loader's pod has the node's own there.
cp -r "$work/gdrcopy/src/gdrdrv" "$prefix/src/gdrdrv"
# Its Makefile asks these, two folders up, what the kernel has.
cp -r "$work/gdrcopy/scripts" "$prefix/scripts"
echo "$prefix/lib" >/etc/ld.so.conf.d/100-gdrcopy.conf
ldconfig
