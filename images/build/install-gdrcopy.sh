#!/bin/bash
# libgdrapi, which NCCL's device-side networking opens in every mode, and the sources of its kernel module: `moerl_runtime
# load-gdrdrv` builds that against the running kernel of a node whose AMI lacks it.
# Use: install-gdrcopy.sh SOURCES, a working tree (checkout.sh), which is removed
set -euo pipefail

sources=$1 prefix=/opt/gdrcopy
trap 'rm -rf "$sources"' EXIT

apt-get update
# libelf: the kernel's own build tools on a node are linked to it.
apt-get install -y --no-install-recommends build-essential git kmod libelf-dev
rm -rf /var/lib/apt/lists/*
make -C "$sources" prefix="$prefix" lib lib_install
mkdir -p "$prefix/src"
# Not below /usr/src: the loader's pod has the node's own there.
cp -r "$sources/src/gdrdrv" "$prefix/src/gdrdrv"
# Its Makefile asks these, two folders up, what the kernel has.
cp -r "$sources/scripts" "$prefix/scripts"
echo "$prefix/lib" >/etc/ld.so.conf.d/100-gdrcopy.conf
ldconfig
