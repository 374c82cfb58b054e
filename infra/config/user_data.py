"""User data of a node: one MIME document whose declared boundary is the one used, with exactly one NodeConfig.

The boundary is fixed, so that the same plan gives the same bytes. The email library writes and reads the document:
a boundary typed by hand that differs from the declared one is ignored by nodeadm without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.nonmultipart import MIMENonMultipart
from email.parser import Parser

import yaml

BOUNDARY = "==MOERL-NODE=="

# Boothooks run before anything else of cloud-init and on every boot, scripts once, before nodeadm-run.service starts the
# kubelet: that is ordered after cloud-final.service (amazon-eks-ami, systemd units of the AL2023 image).
GPU_DIRECT_BOOTHOOK = """#!/bin/sh
# GPU-direct EFA maps the GPU's doorbell into the NIC's page tables. The driver reads its options once, when it is loaded.
# Images before 20260917 load it after this (nvidia-kmod-load.service, after network-online.target); later ones load it at
# the same time (nvidia-setup.service), perhaps without the option. Whatever holds the driver by then cannot be unloaded
# safely, so such a node starts anew, once, before it has a kubelet.
option='options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"'
file=/etc/modprobe.d/50-moerl-nvidia.conf
params=/proc/driver/nvidia/params
rebooted=/var/lib/moerl-rebooted-for-driver-option
say() {
  echo "moerl: $1"
  echo "moerl: $1" > /dev/console
}
# In one step: the driver may be reading it.
if ! grep -q -s -x -F "$option" "$file"; then
  echo "$option" > "$file.new" && mv "$file.new" "$file"
fi
# A driver that is being loaded may have read its options before that, and does not show yet.
if systemctl is-enabled --quiet nvidia-setup.service && grep -q -s -x 0x10de /sys/bus/pci/devices/*/vendor; then
  waited=0
  while [ ! -e "$params" ] && [ "$waited" -lt 300 ]; do
    sleep 1
    waited=$((waited + 1))
  done
fi
[ -e "$params" ] || exit 0
grep -q PeerMappingOverride=1 "$params" && exit 0
if [ -e "$rebooted" ]; then
  say "the NVIDIA driver has no PeerMappingOverride even after a reboot: preflight refuses GPU-direct EFA on this node"
elif touch "$rebooted" && sync; then
  say "the NVIDIA driver was loaded before its option was written: rebooting once"
  systemctl --no-block reboot
  # Until this ends cloud-init does not, and the kubelet waits for cloud-init.
  sleep 600
  say "the node did not reboot and has no PeerMappingOverride: preflight refuses GPU-direct EFA on it"
fi
"""

DRIVER_SOURCES_SCRIPT = """#!/bin/bash
# `load-gdrdrv` builds against the driver's sources in /usr/src. Images since 20260917 keep them in packages alone, under
# the driver that the first boot chose.
shopt -s nullglob
[[ -d /opt/nvidia ]] || exit 0
for attempt in {1..60}; do
  [[ -e /opt/nvidia/current/.driver-flavor ]] && break
  sleep 1
done
packages=(/opt/nvidia/current/{.rpms,flavors/open/.rpms}/kmod-nvidia-open-dkms-*.rpm)
for package in "${packages[@]}"; do
  rpm2cpio "$package" | (cd / && cpio --extract --make-directories --unconditional --quiet '*usr/src/*')
done
sources=(/usr/src/nvidia-*)
if (( ! ${#sources[@]} )); then
  echo "moerl: no sources of the NVIDIA driver: without gdrdrv in the image, DeepEP cannot start here" > /dev/console
  exit 1
fi
"""

# How many pages the EFA packages of an image reserve by themselves differs between installers and modes of installation,
# so the number that allocatable memory was computed with is set here.
HUGE_PAGES_BOOTHOOK = """#!/bin/sh
# While memory is still in one piece, and before the kubelet counts pages.
echo 'vm.nr_hugepages = {pages}' > /etc/sysctl.d/90-moerl-huge-pages.conf
sysctl --quiet --load /etc/sysctl.d/90-moerl-huge-pages.conf
got="$(cat /proc/sys/vm/nr_hugepages)"
[ "$got" -ge {pages} ] || echo "moerl: $got of {pages} huge pages: pods that ask for them stay pending" > /dev/console
"""

LUSTRE_SCRIPT = """#!/bin/bash
# The FSx CSI driver mounts with the node's own module and tools, and the EKS image has neither installed.
for attempt in 1 2 3 4 5; do
  rpm --query --quiet lustre-client || dnf install --assumeyes --quiet lustre-client
  modprobe lustre && exit 0
  sleep "$((attempt * 5))"
done
echo "moerl: no Lustre client: pods that mount the FSx file system cannot start on this node" > /dev/console
exit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinData:
    """What a custom AMI needs to join; EKS merges it by itself for its own AMIs. Values may be deploy-time references."""

    cluster: str
    endpoint: str
    certificate_authority: str
    service_cidr: str


def node_config(
    *,
    max_pods: int,
    raid0: bool,
    labels: dict[str, str],
    taints: tuple[str, ...],
    join: JoinData | None,
    fast_image_pull: bool = False,
) -> str:
    """The NodeConfig document (node.eks.aws/v1alpha1) as YAML.

    `labels` and `taints` (`key=value:Effect`) go in for a custom AMI only; on EKS's own AMIs the node group sets them.
    """
    kubelet: dict[str, object] = {"config": {"maxPods": max_pods}}
    spec: dict[str, object] = {"kubelet": kubelet}
    if join is not None:
        spec["cluster"] = {
            "name": join.cluster,
            "apiServerEndpoint": join.endpoint,
            "certificateAuthority": join.certificate_authority,
            "cidr": join.service_cidr,
        }
        flags = [f"--node-labels={','.join(f'{key}={value}' for key, value in sorted(labels.items()))}"]
        if taints:
            flags.append(f"--register-with-taints={','.join(taints)}")
        kubelet["flags"] = flags
    if fast_image_pull:
        spec["featureGates"] = {"FastImagePull": True}
    if raid0:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    document = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return yaml.safe_dump(document, sort_keys=False, width=10_000)


def user_data(
    node_configuration: str,
    extra: str | None,
    *,
    gpu_direct: bool,
    driver_sources: bool = False,
    huge_pages: int = 0,
    lustre_client: bool = False,
) -> str:
    """The whole document.

    `gpu_direct` prepares the NVIDIA driver for GPU-direct EFA; `driver_sources` unpacks what gdrdrv is built against;
    `huge_pages` of 2 MiB are reserved, none with 0; `lustre_client` installs what FSx volumes are mounted with. `extra` is
    a shell script (`#!` first) or a MIME multipart document, added as further parts.

    Raises ValueError for any other `extra`.
    """
    document = MIMEMultipart("mixed", boundary=BOUNDARY)
    if gpu_direct:
        document.attach(_part("text", "cloud-boothook", GPU_DIRECT_BOOTHOOK))
    if huge_pages:
        document.attach(_part("text", "cloud-boothook", HUGE_PAGES_BOOTHOOK.format(pages=huge_pages)))
    document.attach(_part("application", "node.eks.aws", node_configuration))
    if driver_sources:
        document.attach(_part("text", "x-shellscript", DRIVER_SOURCES_SCRIPT))
    if lustre_client:
        document.attach(_part("text", "x-shellscript", LUSTRE_SCRIPT))
    for part in _extra_parts(extra):
        document.attach(part)
    return document.as_string()


def parts(document: str) -> list[tuple[str, str]]:
    """(content type, text) of every part, read back by the standard parser. ValueError when it is not multipart."""
    parsed = Parser().parsestr(document)
    if not parsed.is_multipart() or parsed.defects:
        raise ValueError("the user data is not a well-formed MIME multipart document")
    return [
        (part.get_content_type(), str(part.get_payload())) for part in parsed.get_payload() if isinstance(part, Message)
    ]


def _extra_parts(extra: str | None) -> list[Message]:
    if extra is None:
        return []
    if extra.startswith("#!"):
        return [_part("text", "x-shellscript", extra)]
    parsed = Parser().parsestr(extra)
    if not parsed.is_multipart():
        raise ValueError("extra user data is neither a shell script nor a MIME multipart document")
    return [part for part in parsed.get_payload() if isinstance(part, Message)]


def _part(main: str, subtype: str, text: str) -> Message:
    part = MIMENonMultipart(main, subtype, charset="utf-8")
    part["Content-Transfer-Encoding"] = "8bit"
    part.set_payload(text)
    return part
