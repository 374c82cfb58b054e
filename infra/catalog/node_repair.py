"""Node-health reasons for which EKS node repair would take a node from under a run that can go on."""

from dataclasses import dataclass
from datetime import date
from typing import Literal

from infra.catalog.facts import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftReason:
    """A reason that the EKS node monitoring agent reports as a condition, and why a trainer's node is kept."""

    condition: Literal["AcceleratedHardwareReady", "ContainerRuntimeReady", "NetworkingReady"]
    reason: str
    why: str


SOFT_REASONS: tuple[SoftReason, ...] = (
    SoftReason(
        condition="AcceleratedHardwareReady",
        reason="NvidiaXID13Error",
        why="a graphics engine exception is the program's fault far more often than the GPU's",
    ),
    SoftReason(
        condition="AcceleratedHardwareReady",
        reason="NvidiaXID31Error",
        why="a GPU page fault is the program's own; a reboot would only hide it",
    ),
    SoftReason(
        condition="AcceleratedHardwareReady",
        reason="NvidiaXID63Error",
        why="a remapped page is repaired by the next reset; the run may end first",
    ),
    SoftReason(
        condition="AcceleratedHardwareReady",
        reason="NvidiaXID94Error",
        why="a contained memory error ends one process, and the job's own retry starts it again",
    ),
    SoftReason(
        condition="ContainerRuntimeReady",
        reason="PodStuckTerminating",
        why="a trainer that saves on its way out takes longer than the agent's patience",
    ),
    SoftReason(
        condition="NetworkingReady",
        reason="IPAMDNotReady",
        why="the CNI loses the API server during control-plane upgrades, and running pods keep their addresses",
    ),
)

SOURCE = Source(
    title="Amazon EKS user guide, node monitoring agent (conditions, XID codes and their repair actions)",
    url="https://github.com/awsdocs/amazon-eks-user-guide/blob/518e5533e01ea8ad09df54a99b3accfbd4bec930/latest/ug/nodes/node-health-nma.adoc",
    as_of=date(2026, 6, 1),
)

MIN_REPAIR_WAIT_MINUTES = 30
"""EKS asks for a wait beside every override, also beside NoAction."""
