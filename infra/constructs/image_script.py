"""What the image project runs: checks its input, builds, lists what is inside, pushes, waits for the scan, and only then
names the image to the rest of the environment.

The tag follows from the context archive, which holds every build argument, so one source has one tag. Tags cannot be
moved (the repository's own setting): a build of a source that is there already goes straight to the scan.

A build machine is new each time, so layers come from the stack's last image that passed the gate, which the parameter names by
digest, and every image carries what the next build needs to know of its layers (BuildKit's inline cache). It knows the layers
of the image itself and none of the stages whose wheels it got: a moved pin of an extension compiles all of them again. A
cache of its own would hold those too, but takes tags that move, or Docker's store of another kind and tags that pile up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

CONTEXT_PREFIX, SBOM_PREFIX = "images/", "sbom/"
ARGUMENTS_FILE, CONTEXT_FOLDER, ANEW_FILE = "build-arguments", "context", "anew"
"""The archive: build arguments, NAME=VALUE in each line, and the folder that Docker gets; with the third, whose text gives the
source another tag, no layer comes from an older image."""
TAG_DIGITS = 20

# Values come in by the environment and are quoted where they are used; the two that a caller sets are matched whole.
# Docker's own builder stays in place: a builder in a container would need an image of its own, which nobody pins here.
_SCRIPT = r"""set -euo pipefail
export LC_ALL=C DOCKER_BUILDKIT=1 BUILDKIT_PROGRESS=plain BUILDX_NO_DEFAULT_ATTESTATIONS=1
fail() {{ echo "image: $1" >&2; exit 1; }}
[[ "$SOURCE_KEY" =~ ^{context_prefix}[0-9a-f]{{64}}\.zip$ ]] \
  || fail "SOURCE_KEY is not a key that moerl image build writes"
[[ "$STACK" =~ ^({stacks})$ ]] || fail "STACK is no software stack"
[[ "$SYFT_IMAGE" =~ @sha256:[0-9a-f]{{64}}$ ]] \
  || fail "no syft image is pinned: run moerl lock, deploy the images stack, and build again"
digest="${{SOURCE_KEY#{context_prefix}}}"
digest="${{digest%.zip}}"
tag="$STACK-${{digest:0:{tag_digits}}}"
reference="$REPOSITORY_URI:$tag"
here="$(mktemp -d)"
cd "$here"

ask_ecr() {{ # ask_ecr OPERATION OPTION ERROR QUERY: the answer in $answer; false when ECR ends with that error
  local status=0
  answer="$(aws ecr "$1" --no-paginate --repository-name "$REPOSITORY" "$2" "imageTag=$tag" \
    --query "$4" --output text 2> error)" || status=$?
  (( status == 0 )) && return 0
  grep -q "($3)" error && return 1
  cat error >&2
  fail "aws ecr $1 ended with $status"
}}
digest_of_tag() {{ ask_ecr describe-images --image-ids ImageNotFoundException 'imageDetails[0].imageDigest'; }}
ask_scan() {{ ask_ecr describe-image-scan-findings --image-id ScanNotFoundException "$1"; }}

if digest_of_tag; then
  echo "image: $reference is there already"
else
  aws s3 cp --only-show-errors "s3://$SOURCE_BUCKET/$SOURCE_KEY" source.zip
  echo "$digest  source.zip" | sha256sum --check --status || fail "the archive is not the one that its key names"
  unzip -q source.zip
  options=()
  while IFS= read -r argument; do
    options+=(--build-arg "$argument")
  done < {arguments_file}
  if [[ -n "${{DOCKER_HUB_TOKEN:-}}" ]]; then
    docker login --username "$DOCKER_HUB_USER" --password-stdin <<< "$DOCKER_HUB_TOKEN"
  fi
  aws ecr get-login-password | docker login --username AWS --password-stdin "${{REPOSITORY_URI%%/*}}"
  options+=(--build-arg BUILDKIT_INLINE_CACHE=1)
  if [[ -e {anew_file} ]]; then
    echo "image: take no layer from an older image"
  elif last="$(aws ssm get-parameter --name "$PARAMETERS/$STACK" --query Parameter.Value --output text 2> error)"; then
    [[ "$last" == "$REPOSITORY_URI@sha256:"* ]] || fail "the parameter $PARAMETERS/$STACK names no image of the repository"
    echo "image: take unchanged layers from $last"
    options+=(--cache-from "$last")
  else
    grep -q '(ParameterNotFound)' error || {{ cat error >&2; fail "the stack's last image cannot be looked up"; }}
  fi
  echo "image: build $reference"
  docker build --file "{context_folder}/$STACK/Dockerfile" --tag "$reference" "${{options[@]}}" {context_folder}
  echo "image: list what is inside"
  docker run --rm --network none --volume /var/run/docker.sock:/var/run/docker.sock "$SYFT_IMAGE" \
    scan "docker:$reference" --output spdx-json > sbom.spdx.json
  [[ -s sbom.spdx.json ]] || fail "syft wrote nothing"
  aws s3 cp --only-show-errors sbom.spdx.json "s3://$SOURCE_BUCKET/{sbom_prefix}$tag.spdx.json"
  echo "image: push $reference"
  docker push --quiet "$reference"
  digest_of_tag || fail "ECR does not show what was pushed"
fi
image_digest="$answer"

scan=PENDING
for (( attempt = 0; attempt < SCAN_ATTEMPTS; attempt++ )); do
  if ask_scan imageScanStatus.status; then scan="$answer"; fi
  case "$scan" in
    COMPLETE) break ;;
    PENDING | IN_PROGRESS) sleep "$SCAN_WAIT_SECONDS" ;;
    ACTIVE) fail "this registry has enhanced scanning, whose findings are Amazon Inspector's; this gate reads ECR's own" ;;
    *) ask_scan imageScanStatus.description; fail "ECR could not scan the image ($scan): $answer" ;;
  esac
done
[[ "$scan" == COMPLETE ]] || fail "the scan has not ended in time ($scan); build again to wait on"
ask_scan imageScanFindings.findingSeverityCounts.CRITICAL
counted="$answer"
: > critical
if [[ "$counted" != None ]]; then
  # As JSON, since text is written page by page.
  aws ecr describe-image-scan-findings --repository-name "$REPOSITORY" --image-id "imageTag=$tag" \
    --query "imageScanFindings.findings[?severity=='CRITICAL'].name" --output json \
    | tr -d '[]", \t' | sed '/^$/d' | sort -u > critical
  [[ -s critical ]] || fail "ECR counts $counted critical findings and lists none"
fi
tr ' ' '\n' <<< "$ACCEPTED" | sort -u > accepted
comm -12 critical accepted | sed 's/^/image: accepted /'
comm -23 critical accepted > open
if [[ -s open ]]; then
  sed 's/^/image: critical /' open >&2
  fail "critical findings; mend them, or accept each with its reason under images.accepted_vulnerabilities"
fi
aws ssm put-parameter --name "$PARAMETERS/$STACK" --type String --overwrite \
  --value "$REPOSITORY_URI@$image_digest" > put-parameter.json
echo "image: $REPOSITORY_URI@$image_digest"
"""


def script(stacks: Sequence[str]) -> str:
    """The script, for the software stacks that may be built."""
    return _SCRIPT.format(
        context_prefix=CONTEXT_PREFIX,
        sbom_prefix=SBOM_PREFIX,
        arguments_file=ARGUMENTS_FILE,
        context_folder=CONTEXT_FOLDER,
        anew_file=ANEW_FILE,
        tag_digits=TAG_DIGITS,
        stacks="|".join(stacks),
    )


def buildspec(stacks: Sequence[str]) -> str:
    """The project's build specification, as JSON, which CodeBuild reads like YAML."""
    return json.dumps(
        {"version": "0.2", "env": {"shell": "bash"}, "phases": {"build": {"commands": [script(stacks)]}}},
        indent=1,
    )


def tag(stack: str, context_digest: str) -> str:
    """The tag that the script gives an image of that context."""
    return f"{stack}-{context_digest[:TAG_DIGITS]}"
