"""What is baked into an AMI, as Image Builder components: data, and the scripts that they run.

Driver option and huge pages are the scripts of user data themselves, so that both ways to a node write the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from infra.config.bake_plan import BakePlan
from infra.config.user_data import GPU_DIRECT_BOOTHOOK, HUGE_PAGES_BOOTHOOK, LUSTRE_SCRIPT

STEP_SECONDS = 1800

# The keys come from the same place as the tarball and prove nothing; the fingerprint, which the EC2 guide prints, does.
# The last field of VALIDSIG is the primary key.
EFA_INSTALL = """set -euo pipefail
cd "$(mktemp -d)"
tarball=aws-efa-installer-{efa_installer}.tar.gz
for file in "$tarball" "$tarball.sig" aws-efa-installer.key; do
  curl --fail --silent --show-error --proto '=https' --tlsv1.2 --retry 3 --remote-name \\
    "https://efa-installer.amazonaws.com/$file"
done
# The image's small GnuPG cannot import keys (amazon-linux-2023 issue 243).
dnf swap --assumeyes gnupg2-minimal gnupg2-full
export GNUPGHOME="$PWD/keys"
mkdir --mode=0700 "$GNUPGHOME"
gpg --batch --quiet --import aws-efa-installer.key
gpg --batch --status-file status --verify "$tarball.sig" "$tarball"
grep --quiet '^\\[GNUPG:\\] VALIDSIG .* {efa_key_fingerprint}$' status
tar --extract --gzip --file "$tarball"
cd aws-efa-installer
./efa_installer.sh --minimal -y
dnf swap --assumeyes gnupg2-full gnupg2-minimal
"""
# On disk here; what is loaded shows when a node has booted from the image, and preflight reads that.
EFA_VALIDATE = """set -euo pipefail
found="$(modinfo --field version efa)"
echo "EFA driver $found, {efa_driver} or later wanted"
[[ "$(printf '%s\\n' {efa_driver} "${{found%[a-z]}}" | sort --version-sort | head --lines=1)" == {efa_driver} ]]
"""

# EKS's image keeps the driver's modules packed, and unpacks the set that fits when a GPU node boots; a CPU builder has none.
# Since 20260917 that is one of two trees under /opt/nvidia, prebuilt, with the sources in a package of the tree: gdrdrv is
# built for each, and goes among its modules, which the first boot loads. Before, kmod-util unpacks the one set there is,
# which is taken away again, or the node would find it in its way. The module is inserted by a unit, since it needs the
# NVIDIA driver, and a device file in each boot's /dev; a boot that has done both already is left as it is.
GDRDRV_BUILD = """set -euo pipefail
shopt -s nullglob
kernel="$(uname --kernel-release)"
[[ -d "/lib/modules/$kernel/build" ]] || dnf install --assumeyes "kernel-devel-uname-r = $kernel"
dnf install --assumeyes cpio gcc git make
work="$(mktemp -d)"
git init --quiet "$work/gdrcopy"
git -C "$work/gdrcopy" fetch --quiet --depth 1 {gdrcopy_repository} {gdrcopy_commit}
git -C "$work/gdrcopy" checkout --quiet --detach FETCH_HEAD
# Its Makefile goes by $PWD, which `make -C` does not set.
module="$work/gdrcopy/src/gdrdrv"
trees=(/opt/nvidia/*/.version)
if (( ${{#trees[@]}} )); then
  for tree in "${{trees[@]%/.version}}"; do
    packages=("$tree"/{{.rpms,flavors/open/.rpms}}/kmod-nvidia-open-dkms-*.rpm)
    modules="$tree/flavors/open/lib/modules/$kernel/extra"
    if (( ${{#packages[@]}} != 1 )) || [[ ! -d "$modules" ]]; then
      echo "$tree holds ${{#packages[@]}} packages with sources, one is needed, and modules for $kernel"
      exit 1
    fi
    mkdir "$work/driver"
    rpm2cpio "${{packages[0]}}" | (cd "$work/driver" && cpio --extract --make-directories --quiet)
    sources="$(find "$work/driver" -name nv-p2p.c -printf '%h' -quit)"
    cd "$module"
    make clean
    make KVER="$kernel" NVIDIA_SRC_DIR="${{sources:?no nv-p2p.c in ${{packages[0]}}}}"
    rm -f "$modules"/gdrdrv.ko*
    install --mode=0644 gdrdrv.ko "$modules"
    rm -rf "$work/driver"
  done
elif command -v kmod-util > /dev/null; then
  kmod-util load nvidia-open
  cd "$module"
  make install
  kmod-util remove nvidia-open
  rm -rf /usr/src/nvidia-open-*
  depmod --all "$kernel"
else
  echo "this image keeps its NVIDIA driver neither in /opt/nvidia nor with kmod-util: bake on a release that does"
  exit 1
fi
cd /
rm -rf "$work"
cat > /usr/local/sbin/moerl-gdrdrv <<'PROGRAM'
#!/bin/sh
# Pages stay pinned over a driver's free callback, which RDMA needs (insmod.sh of gdrcopy).
set -eu
modprobe gdrdrv dbg_enabled=0 info_enabled=0 use_persistent_mapping=1
major="$(awk '$2 == "gdrdrv" {{ print $1 }}' /proc/devices)"
[ -c /dev/gdrdrv ] || mknod --mode=0666 /dev/gdrdrv c "$major" 0
PROGRAM
chmod 0755 /usr/local/sbin/moerl-gdrdrv
cat > /etc/systemd/system/moerl-gdrdrv.service <<'UNIT'
[Unit]
Description=gdrdrv, through which NCCL's device-side networking reaches GPU memory
After=nvidia-setup.service nvidia-kmod-load.service
Before=nodeadm-run.service
ConditionPathExists=/sys/module/nvidia

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/usr/local/sbin/moerl-gdrdrv

[Install]
WantedBy=multi-user.target
UNIT
systemctl enable moerl-gdrdrv.service
"""
GDRDRV_VALIDATE = """set -euo pipefail
shopt -s nullglob
modules=(gdrdrv)
trees=(/opt/nvidia/*/.version)
if (( ${{#trees[@]}} )); then
  modules=("${{trees[@]/%.version/flavors/open/lib/modules/$(uname --kernel-release)/extra/gdrdrv.ko}}")
fi
for module in "${{modules[@]}}"; do
  found="$(modinfo --field version "$module")"
  echo "gdrdrv $found in $module, {gdrcopy} wanted"
  [[ "$found" == {gdrdrv} || "$found" == {gdrdrv}.* ]]
done
systemctl is-enabled moerl-gdrdrv.service
"""

HOST_VALIDATE = """set -euo pipefail
grep --quiet PeerMappingOverride=1 /etc/modprobe.d/*.conf
[[ "$(cat /proc/sys/vm/nr_hugepages)" -ge {huge_pages} ]]
rpm --query lustre-client
modinfo lustre > /dev/null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One Image Builder component. The version follows from what it does: Image Builder takes each version once."""

    name: str
    description: str
    data: str
    """The document (AWSTOE schema 1.0) as YAML."""

    @property
    def version(self) -> str:
        return content_version(self.data)


def components(plan: BakePlan) -> tuple[Component, ...]:
    """In the order in which they run."""
    values: dict[str, Any] = {
        "efa_installer": plan.efa_installer,
        "efa_key_fingerprint": plan.efa_key_fingerprint,
        "efa_driver": plan.efa_driver,
        "gdrcopy": plan.gdrcopy,
        # The module gives its version as 2.5 where the release is 2.5.2.
        "gdrdrv": ".".join(plan.gdrcopy.split(".")[:2]),
        "gdrcopy_repository": plan.gdrcopy_repository,
        "gdrcopy_commit": plan.gdrcopy_commit,
        "huge_pages": plan.huge_pages,
    }
    return (
        _component(
            "efa",
            f"EFA driver of installer {plan.efa_installer}",
            build=[("Install", EFA_INSTALL.format(**values))],
            validate=EFA_VALIDATE.format(**values),
        ),
        _component(
            "gdrdrv",
            f"gdrdrv of gdrcopy {plan.gdrcopy}",
            build=[("Build", GDRDRV_BUILD.format(**values))],
            validate=GDRDRV_VALIDATE.format(**values),
        ),
        _component(
            "host",
            "NVIDIA driver option for GPU-direct EFA, huge pages, Lustre client",
            build=[
                ("DriverOption", GPU_DIRECT_BOOTHOOK),
                ("HugePages", HUGE_PAGES_BOOTHOOK.format(pages=plan.huge_pages)),
                ("Lustre", LUSTRE_SCRIPT),
            ],
            validate=HOST_VALIDATE.format(**values),
        ),
    )


def content_version(*texts: str) -> str:
    """A semantic version that is another one for other texts."""
    digest = hashlib.sha256("\n".join(texts).encode()).digest()
    return f"1.0.{int.from_bytes(digest[:4]) % 10**9}"


def _component(name: str, description: str, *, build: Sequence[tuple[str, str]], validate: str) -> Component:
    steps = [_step(step, commands) for step, commands in build]
    # A module that was replaced is loaded by the reboot, and what validation reads has survived one.
    phases = [
        {"name": "build", "steps": [*steps, {"name": "Reboot", "action": "Reboot", "onFailure": "Abort"}]},
        {"name": "validate", "steps": [_step("Validate", validate)]},
    ]
    document = {"name": name, "description": description, "schemaVersion": 1.0, "phases": phases}
    return Component(name=name, description=description, data=yaml.safe_dump(document, sort_keys=False, width=10_000))


def _step(name: str, commands: str) -> dict[str, Any]:
    return {
        "name": name,
        "action": "ExecuteBash",
        "timeoutSeconds": STEP_SECONDS,
        "onFailure": "Abort",
        "inputs": {"commands": [commands]},
    }
