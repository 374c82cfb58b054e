"""Kubernetes quantities, and what a pod requests by the scheduler's own sum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from k8s.pods import Spec

_QUANTITY = re.compile(
    r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+|)$"
)
_BINARY = {unit: Fraction(1024) ** power for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {
    unit: Fraction(1000) ** power
    for power, unit in zip(range(-3, 7), ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), strict=True)
}


def quantity(text: object) -> Fraction | None:
    """The value in cores, bytes or pieces; None for what is no quantity, booleans and floats included."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        return None
    match = _QUANTITY.match(str(text))
    if match is None:
        return None
    number, unit = Fraction(match[1].rstrip(".")), match[2]
    if unit in _BINARY:
        return number * _BINARY[unit]
    if unit in _DECIMAL:
        return number * _DECIMAL[unit]
    return number * Fraction(10) ** int(unit[1:])


def amounts(resources: Mapping[str, Any] | None, key: str) -> dict[str, Fraction]:
    """`requests` or `limits` of one container, those that are quantities; `resources.quantity` reports the others."""
    written = (resources or {}).get(key) or {}
    return {name: value for name, text in written.items() if (value := quantity(text)) is not None}


def is_sidecar(container: Spec) -> bool:
    """A native sidecar: an init container that is never done."""
    return container.get("restartPolicy") == "Always"


def pod_requests(spec: Spec) -> dict[str, Fraction]:
    """What the scheduler takes the pod for: main containers and sidecars together, or an init container with the
    sidecars started before it where that is more (Kubernetes, "Sidecar containers", resource sharing)."""
    total: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers", ()):
        requests = amounts(container.get("resources"), "requests")
        if is_sidecar(container):
            _add(total, requests)
        else:
            for name, value in requests.items():
                peak[name] = max(peak.get(name, Fraction(0)), value + total.get(name, Fraction(0)))
    for container in spec["containers"]:
        _add(total, amounts(container.get("resources"), "requests"))
    return {name: max(total.get(name, Fraction(0)), peak.get(name, Fraction(0))) for name in sorted(total | peak)}


def _add(total: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Fraction(0)) + value
