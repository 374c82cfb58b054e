"""EKS, in place of ministack's: clusters, managed node groups, add-ons, access entries and Pod Identity."""

from . import access, addons, clusters, nodegroup_type, nodegroups

__all__ = ["access", "addons", "clusters", "nodegroup_type", "nodegroups"]
