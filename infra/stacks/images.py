"""Images: the project that turns a folder under `images/` into an image in the environment's repository.

How 18 GB reach a node before a run waits for them:
- Nodes pull from ECR in their own region. On GPU nodes with an EKS image nodeadm's FastImagePull is on
  (`pools.NAME.fast_image_pull`): the SOCI snapshotter downloads a layer in chunks and unpacks layers side by side, onto the
  local disks, from ordinary images.
- A DaemonSet (`image-pull`, k8s/charts/devices.py) pulls as soon as a node is there and keeps a container of the image, so
  that the kubelet never collects it. On fixed pools that is ahead of every run. On a Spot pool the pod that made the
  autoscaler add the node asks for the image at the same moment; containerd then downloads it once, for both.
- The kubelet pulls different images side by side, by nodeadm's own setting (serializeImagePulls false, no maximum), so
  the small images of the system agents do not wait for the large one.
- No SOCI index is built. It serves lazy loading: a container starts before its files are there and fetches them as they
  are read. An engine reads most of its image while it starts (CUDA, torch, kernels), so it would wait for the same bytes,
  one read after the other, while it holds GPUs; and the index would have to be built, pushed and kept for every image.
"""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.image_project import image_project, image_role
from infra.constructs.stack import PlanStack


class ImagesStack(PlanStack):
    """The image project and its role; `moerl image build` uses it with the access stack's bucket.

    The parameters that hold the digests are not here: builds write them, and a second owner would undo that.
    """

    def __init__(self, scope: Construct, plan: Plan) -> None:
        super().__init__(scope, "images", plan, description="Builds the run's image")
        self.role = image_role(self, plan)
        self.project = image_project(self, plan, role=self.role)
        cdk.CfnOutput(self, "ImageProjectName", value=self.project.ref)
