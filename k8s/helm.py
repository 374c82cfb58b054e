"""What Helm needs to install the controllers: one values file each, and one script.

The script takes nothing but what the catalog pins: no value of an environment file is written into it. A chart is pulled
by its exact version, must have the pinned digest, and is installed from that file. CRDs that a chart carries in `crds/`
are applied first, server-side: Helm installs those once and never upgrades them, and client-side apply cannot take them
(KubeRay's are larger than the annotation that it would write).
"""

from __future__ import annotations

from typing import Any

import yaml

from infra.catalog.controllers import CONTROLLERS
from infra.config.pins import UNRESOLVED_TEXT
from infra.config.plan import Plan
from k8s.controllers import CONTROLLER_VALUES
from k8s.names import RUN_NAMESPACE

FOLDER, SCRIPT = "helm", "install.sh"
FIELD_MANAGER = "moerl"
HELM_FLOOR = "3.14"

_HEAD = rf"""#!/bin/sh
# Written by moerl render. Needs helm {HELM_FLOOR} or newer, kubectl, and a kubeconfig for the cluster; run it after the
# namespaces are applied. It may be run again: what is there already is upgraded in place.
set -eu

fail() {{
  printf 'install: %s\n' "$1" >&2
  exit 1
}}

sha256_of() {{
  if command -v sha256sum > /dev/null 2>&1; then
    sha256sum "$1" | cut -d ' ' -f 1
  else
    shasum -a 256 "$1" | cut -d ' ' -f 1
  fi
}}

# install_chart NAME CHART VERSION NAMESPACE SHA256 CRDS REPOSITORY
install_chart() {{
  [ "$5" != {UNRESOLVED_TEXT} ] || fail "chart $1 is not pinned: run moerl lock, render again, and use that script"
  printf 'install: %s %s into %s\n' "$1" "$3" "$4"
  case "$7" in
    oci://*) helm pull "$7/$2" --version "$3" --destination "$charts" ;;
    *) helm pull "$2" --repo "$7" --version "$3" --destination "$charts" ;;
  esac
  archive="$charts/$2-$3.tgz"
  [ "$(sha256_of "$archive")" = "$5" ] || fail "chart $1 $3 does not have the pinned digest"
  if [ "$6" = crds ]; then
    helm show crds "$archive" > "$charts/$1.crds.yaml"
    kubectl apply --server-side --force-conflicts --field-manager={FIELD_MANAGER} -f "$charts/$1.crds.yaml"
  fi
  helm upgrade --install "$1" "$archive" --namespace "$4" --values "$1.values.yaml" \
    --skip-crds --history-max 5 --wait --timeout 15m
}}

cd "$(dirname "$0")"
for tool in helm kubectl; do
  command -v "$tool" > /dev/null 2>&1 || fail "$tool is not there"
done
version="$(helm version --template '{{{{.Version}}}}')"
case "$version" in
  v3.1[4-9].* | v3.[2-9][0-9].* | v[4-9].*) ;;
  *) fail "helm {HELM_FLOOR} or newer is needed, this is $version" ;;
esac
kubectl get namespace {RUN_NAMESPACE} > /dev/null || fail "namespace {RUN_NAMESPACE} is missing: apply the manifests' first file"
charts="$(mktemp -d)"
trap 'rm -rf "$charts"' EXIT

"""


def helm_files(plan: Plan) -> dict[str, str]:
    """Path below the render's folder → text: `helm/NAME.values.yaml` for each controller, and the script."""
    files = {
        f"{FOLDER}/{name}.values.yaml": values_text(name, values(plan)) for name, values in CONTROLLER_VALUES.items()
    }
    return {**files, f"{FOLDER}/{SCRIPT}": install_script(plan)}


def values_text(name: str, values: dict[str, Any]) -> str:
    """A values file, without YAML anchors."""
    controller = CONTROLLERS[name]
    header = f"# Written by moerl render: values of chart {controller.chart} {controller.version}.\n"
    return header + yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, width=120)


def install_script(plan: Plan) -> str:
    """A POSIX shell script. While a chart is unresolved the script stops at it."""
    lines = []
    for name in CONTROLLER_VALUES:
        controller = CONTROLLERS[name]
        crds = "crds" if controller.crds_in_folder else "no-crds"
        lines.append(
            f"install_chart {name} {controller.chart} {controller.version} {controller.namespace} \\\n"
            f"  {plan.charts[name]} {crds} {controller.repository}\n"
        )
    return _HEAD + "".join(lines)


class _PlainDumper(yaml.SafeDumper):
    """No anchors, and a text of several lines as it reads."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_PlainDumper.add_representer(str, _text)
