"""The part of EC2 that the stacks use, in place of ministack's; every other EC2 call stays ministack's own."""

from . import gateways, interfaces, launch_templates, network, routes, security_groups

__all__ = ["gateways", "interfaces", "launch_templates", "network", "routes", "security_groups"]
