#!/bin/bash
# Userspace of EFA: libfabric, rdma-core and the NCCL plugin, from AWS's installer, whose signature is checked.
# Needs: EFA_INSTALLER (version), EFA_KEY_FINGERPRINT (of the primary key)
set -euo pipefail

base=https://efa-installer.amazonaws.com
tarball=aws-efa-installer-${EFA_INSTALLER}.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

apt-get update
apt-get install -y --no-install-recommends ca-certificates curl gnupg
for file in "$tarball" "$tarball.sig" aws-efa-installer.key; do
  curl --fail --silent --show-error --proto '=https' --tlsv1.2 --retry 3 --remote-name "$base/$file"
done

export GNUPGHOME=$work/keys
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --import aws-efa-installer.key
gpg --batch --status-file status --verify "$tarball.sig" "$tarball"
# The last field is the primary key; the file of keys came from the same place as the tarball and proves nothing.
if ! grep -q "^\[GNUPG:\] VALIDSIG .* ${EFA_KEY_FINGERPRINT}\$" status; then
  echo "$tarball is not signed by key ${EFA_KEY_FINGERPRINT}" >&2
  exit 1
fi

tar --extract --gzip --file "$tarball"
cd aws-efa-installer
# The driver and the limits are the node's. Since 1.48 the installer takes CUDA images for NVIDIA's own and leaves the
# plugin out (--disable-ngc). It needs the package lists, which go last.
./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify --disable-ngc

plugin=$(find /opt/amazon/ofi-nccl -name libnccl-net-ofi.so -print -quit)
if [[ -z "$plugin" ]]; then
  echo "EFA installer ${EFA_INSTALLER} has installed no NCCL plugin below /opt/amazon/ofi-nccl" >&2
  exit 1
fi
# NCCL looks the plugin up by name, so the loader has to know its folder.
dirname "$plugin" >/etc/ld.so.conf.d/100-ofi-nccl.conf
ldconfig
rm -rf /var/lib/apt/lists/*
