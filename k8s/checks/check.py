"""Every check over one render, each under its id. `moerl render` writes nothing when one finds something.

They hold where no schema looks: between objects, between objects and the Plan, and between pods and the nodes of every pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from infra.config.faults import Finding
from infra.config.plan import Plan
from k8s.checks import (
    lifecycle,
    names,
    network,
    packing,
    placement,
    queues,
    references,
    resources,
    run,
    security,
    selectors,
)
from k8s.checks.tree import Check, tree
from k8s.render import Rendered

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "name.unique": names.unique_names,
        "name.valid": names.valid_names,
        "name.label": names.valid_labels,
        "name.namespace": names.namespaces_exist,
        "resources.quantity": resources.quantities_parse,
        "resources.stated": resources.requests_are_limits,
        "resources.gpu": resources.gpu_request_is_limit,
        "resources.efa": resources.efa_is_whole,
        "resources.huge-pages": resources.huge_pages_are_there,
        "resources.memory-volume": resources.memory_volumes_fit,
        "nodes.room": packing.nodes_hold_their_pods,
        "nodes.daemonset-budget": packing.daemonsets_keep_their_budget,
        "placement.daemonset": placement.daemonsets_reach_their_pools,
        "placement.run": placement.run_pods_keep_to_their_pool,
        "placement.pool": placement.pods_reach_a_pool,
        "reference.service-account": references.service_accounts_exist,
        "reference.role": references.roles_exist,
        "reference.config-map": references.config_maps_exist,
        "reference.secret": references.secrets_exist,
        "reference.claim": references.claims_exist,
        "reference.priority-class": references.priorities_exist,
        "reference.queue": references.queues_exist,
        "reference.scale-target": references.scale_targets_exist,
        "selector.workload": selectors.workloads_select_their_pods,
        "selector.service": selectors.services_select_pods,
        "selector.disruption-budget": selectors.disruption_budgets_select_pods,
        "selector.monitor": selectors.monitors_find_metrics,
        "disruption.trainer": selectors.trainers_are_not_disrupted,
        "disruption.spot": selectors.spot_pods_have_no_budget,
        "queue.suspended": queues.queued_work_starts_suspended,
        "queue.covered": queues.queues_cover_requests,
        "queue.quota": queues.queue_quota_is_enough,
        "quota.covers": queues.quotas_cover_requests,
        "security.image": security.images_by_digest,
        "security.host": security.nothing_of_the_host,
        "security.privilege": security.privileges_are_named,
        "security.locked-memory": security.efa_can_lock_memory,
        "security.host-path": security.host_paths_are_named,
        "pod.grace": lifecycle.grace_is_stated,
        "pod.probe": lifecycle.probes_hold,
        "pod.start": lifecycle.gpu_containers_start_in_peace,
        "pod.volume": lifecycle.volumes_are_mounted,
        "pod.value": lifecycle.pod_values_are_known,
        "scale.count": lifecycle.autoscaled_has_no_count,
        "network.covered": network.run_pods_have_a_policy,
        "network.selector": network.policies_select_pods,
        "network.value": network.policy_values_parse,
        "trainer.once": run.trainer_runs_once,
        "trainer.workers": run.trainer_has_its_workers,
        "trainer.head": run.head_offers_no_gpu,
        "rollout.group": run.rollout_groups_fit_the_plan,
        "rollout.sidecar": run.engines_are_sidecars,
        "run.transport": run.transport_is_stated,
    }
)


def check(rendered: Rendered, plan: Plan) -> tuple[Finding, ...]:
    """Every finding of every check, in the order of CHECKS; `key` is where it is in the render."""
    found = tree(rendered.files, complete=not rendered.left_out)
    return tuple(
        Finding(rule=name, key=problem.where, value=problem.value, why=problem.why, fix=problem.fix)
        for name, run_check in CHECKS.items()
        for problem in run_check(found, plan)
    )
