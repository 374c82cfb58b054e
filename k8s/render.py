"""Plan → every Kubernetes object of an environment, in files whose names give the order of their application.

Namespaces come first, since controllers live in them; then what needs no custom resource; then the controllers' own
CustomResourceDefinitions, which Helm installs; then the rest. What is created and never applied (the trainer, and jobs that
people start) stands below `jobs/`, Helm values and the install script below `helm/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.outputs import Outputs
from infra.config.plan import Plan
from k8s.charts import (
    admission,
    devices,
    exporters,
    identities,
    jobs,
    namespaces,
    network_policies,
    observability,
    priorities,
    queueing,
    quotas,
    rollout,
    run_config,
    scaling,
    storage,
    trainer,
    workers,
)
from k8s.helm import helm_files
from k8s.manifest import ManifestFile, Object, to_yaml
from k8s.readme import readme

NAMESPACES, TRAINER_FILE = "0100-namespaces", "jobs/trainer.yaml"
_BY_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    files: tuple[ManifestFile, ...]
    """In the order of their application, then those below `jobs/`."""
    texts: Mapping[str, str]
    """Files that hold no objects: README.md, Helm values, the install script."""
    left_out: tuple[str, ...]
    """What the environment has and this render has not, each with the reason."""

    def contents(self) -> dict[str, str]:
        """Path below the render's folder to text, sorted. Same plan and arguments, same bytes."""
        written = {file.name: to_yaml(file.objects) for file in self.files}
        return dict(sorted({**written, **self.texts}.items()))


def manifests(plan: Plan, *, image: str | None, outputs: Outputs | None = None) -> Rendered:
    """All objects of the plan. `image` is the run's, REPOSITORY@sha256:DIGEST; without it whatever runs it is left out, and
    without `outputs` whatever mounts a file system that only a deploy makes.

    Raises ValueError for an image without a digest, and EnvironmentFault for trainer flags that cannot work.
    """
    if image is not None and not _BY_DIGEST.search(image):
        raise ValueError(f"the image {image!r} is not named by digest: write REPOSITORY@sha256:DIGEST")
    left_out = [*devices.left_out(plan, image=image), *exporters.left_out(plan, image=image)]
    applied: list[tuple[str, tuple[Object, ...]]] = [
        (NAMESPACES, namespaces.objects(plan)),
        ("0110-priorities", priorities.objects(plan)),
        ("0120-identities", identities.objects(plan)),
        ("0130-admission", admission.objects(plan)),
        ("0140-quotas", quotas.objects(plan)),
        ("0150-network-policies", network_policies.objects(plan)),
        ("0200-devices", devices.objects(plan, image=image)),
        ("0210-exporters", exporters.objects(plan, image=image)),
        ("0300-queueing", queueing.objects(plan)),
        ("0400-run-config", run_config.objects(plan, outputs)),
        ("0410-storage", storage.objects(plan, outputs)),
    ]
    by_hand: tuple[ManifestFile, ...] = ()
    if image is None:
        left_out.append("engines, workers, their autoscaling, the trainer and all jobs: the run's image is not known")
    else:
        applied += [
            ("0500-workers", workers.objects(plan, image=image)),
            ("0510-rollout", rollout.objects(plan, image=image)),
            ("0520-scaling", scaling.objects(plan)),
            ("0530-trainer", trainer.budget(plan)),
        ]
        by_hand = jobs.files(plan, image=image)
        if storage.ready(plan, outputs):
            run = trainer.objects(plan, image=image, outputs=outputs)
            by_hand = (*by_hand, ManifestFile(name=TRAINER_FILE, objects=run))
        else:
            left_out.append("the trainer: the id of its scratch file system is known after the deploy")
    applied.append(("0600-observability", observability.objects(plan)))
    files = (*(ManifestFile(name=f"{name}.yaml", objects=objects) for name, objects in applied if objects), *by_hand)
    names = tuple(file.name for file in files)
    text = readme(plan, namespaces=f"{NAMESPACES}.yaml", files=names, left_out=left_out)
    return Rendered(files=files, texts=helm_files(plan) | {"README.md": text}, left_out=tuple(left_out))
