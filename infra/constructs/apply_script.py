"""What the apply project runs: checks its input, fetches kubectl by digest, applies a rendered folder in order."""

from __future__ import annotations

import json

RENDERED_PREFIX = "rendered/"
KUBECTL_PREFIX = "kubectl/"
PUBLIC_KUBECTL_BUCKET, PUBLIC_KUBECTL_REGION = "amazon-eks", "us-west-2"
"""Where EKS publishes its kubectl builds, for every region (EKS user guide, set up kubectl)."""
FIELD_MANAGER = "moerl"

# Every value comes in by the environment and is quoted where it is used; the two that a caller sets are matched whole.
# The key is the archive's own digest, so what is applied is what was rendered. CustomResourceDefinitions are waited
# for before the next file, which may hold their first objects.
SCRIPT = rf"""set -euo pipefail
export LC_ALL=C
shopt -s nullglob
fail() {{ echo "apply: $1" >&2; exit 1; }}
[[ "$SOURCE_KEY" =~ ^{RENDERED_PREFIX}[0-9a-f]{{64}}\.zip$ ]] || fail "SOURCE_KEY is not a key that moerl apply writes"
[[ "$ACTION" == apply || "$ACTION" == diff ]] || fail "ACTION is neither apply nor diff"
[[ -n "$KUBECTL_KEY" ]] || fail "no kubectl is pinned: run moerl lock, deploy the access stack, and apply again"
cd "$(mktemp -d)"
aws s3 cp --only-show-errors "s3://$SOURCE_BUCKET/$SOURCE_KEY" rendered.zip
digest="${{SOURCE_KEY#{RENDERED_PREFIX}}}"
echo "${{digest%.zip}}  rendered.zip" | sha256sum --check --status || fail "the archive is not the one that its key names"
options=()
if [[ "$KUBECTL_BUCKET" == {PUBLIC_KUBECTL_BUCKET} ]]; then
  options=(--no-sign-request --region {PUBLIC_KUBECTL_REGION})
fi
aws s3 cp --only-show-errors ${{options[@]+"${{options[@]}}"}} "s3://$KUBECTL_BUCKET/$KUBECTL_KEY" kubectl
echo "$KUBECTL_SHA256  kubectl" | sha256sum --check --status || fail "kubectl does not have the pinned digest"
chmod 0700 kubectl
aws eks update-kubeconfig --name "$CLUSTER" --kubeconfig kubeconfig > /dev/null
export KUBECONFIG="$PWD/kubeconfig"
mkdir manifests
unzip -q rendered.zip -d manifests
files=(manifests/[0-9]*.yaml)
(( ${{#files[@]}} > 0 )) || fail "the archive holds no numbered manifest"
differs=0
for file in "${{files[@]}}"; do
  echo "apply: ${{file#manifests/}}"
  if [[ "$ACTION" == diff ]]; then
    status=0
    ./kubectl diff --server-side --field-manager={FIELD_MANAGER} -f "$file" || status=$?
    (( status <= 1 )) || fail "kubectl diff of ${{file#manifests/}} ended with $status"
    (( status == 0 )) || differs=1
    continue
  fi
  ./kubectl apply --server-side --field-manager={FIELD_MANAGER} -f "$file"
  if grep -q '^kind: CustomResourceDefinition' "$file"; then
    ./kubectl wait --for=condition=Established --timeout=120s customresourcedefinitions --all
  fi
done
if [[ "$ACTION" == diff ]]; then
  if (( differs )); then echo "apply: the cluster differs"; else echo "apply: the cluster has it all"; fi
else
  echo "apply: ${{#files[@]}} files applied"
fi
"""


def buildspec() -> str:
    """The project's build specification, as JSON, which CodeBuild reads like YAML."""
    return json.dumps(
        {"version": "0.2", "env": {"shell": "bash"}, "phases": {"build": {"commands": [SCRIPT]}}},
        indent=1,
    )
