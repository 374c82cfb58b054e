"""What a bench is told by the plan: links of the pool, shapes of expert traffic, floors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moerl_runtime import plan as plans
from moerl_runtime.arguments import digits, host_port
from moerl_runtime.bench import verdict
from moerl_runtime.bench.settings import INDEX_VARIABLE, Backend, Case, Kind, Links, Settings, Shape
from moerl_runtime.bench.verdict import Floor
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node

SMS_BETWEEN_NODES = 12
"""As in the published numbers; DeepEP cannot derive it where it does not see EFA's rate."""
DEFAULT_TOKENS = (verdict.PREFILL_TOKENS, verdict.DECODE_TOKENS)
SMALL = Shape(hidden=1024, experts=0, top_k=2)
"""For a dense model; the experts follow from the number of ranks."""


def settings(
    plan: Node,
    pool_name: str,
    *,
    kind: Kind,
    backend: Backend,
    host: str,
    port: int,
    nodes: int,
    node: int,
    ranks: int | None = None,
    cases: tuple[Case, ...] = (),
    sms: int | None = None,
) -> Settings:
    """`ranks` of a node stand for the pool's GPUs, `sms` for what is published. Raises InputFault for what cannot run."""
    pool = plans.pool(plan, pool_name)
    ranks_per_node = ranks or pool["gpus_per_node"].number
    if ranks_per_node < 1:
        raise InputFault("--pool", pool_name, "has no GPUs", "Name a GPU pool, or give --ranks with --backend gloo.")
    return Settings(
        kind=kind,
        backend=backend,
        pool=pool_name,
        host=host,
        port=port,
        nodes=nodes,
        node=node,
        ranks_per_node=ranks_per_node,
        links=Links(
            gpus=max(1, pool["gpus_per_node"].number),
            efa_devices=pool["efa_per_node"].number,
            efa_gbps=pool["needs"]["efa_gbps"].number,
            nvlink_gb_per_second=pool["needs"]["nvlink_gb_per_second"].number,
        ),
        transport=pool["transport"].text,
        cases=cases,
        num_sms=sms if sms is not None else (SMS_BETWEEN_NODES if nodes > 1 else 0),
        num_contexts=plan["image"]["deepep_contexts"].number if nodes > 1 else 0,
    )


def cases_of(plan: Node, pool: str, tokens: Sequence[int] | None, ranks: int) -> tuple[Case, ...]:
    """The run's own MoE layer, and the shape of published numbers where the plan has floors for it."""
    shapes = {"model": _shape(plan["workload"]["shape"])}
    needs = _dispatch_needs(plan, pool)
    if needs is not None:
        shapes["published"] = _shape(needs["shape"])
    cases = []
    for name, shape in shapes.items():
        if shape.experts == 0:
            continue
        if shape.experts % ranks:
            raise InputFault(
                "--nodes",
                ranks,
                f"ranks do not divide the {shape.experts} experts of shape {name!r}",
                "Choose nodes and --ranks whose product divides them.",
            )
        cases += [Case(name=f"{name}-{count}", shape=shape, tokens=count) for count in tokens or DEFAULT_TOKENS]
    if not cases:
        raise InputFault(
            "workload.model", plan["workload"]["model"].text, "is dense", "There is no expert traffic to measure."
        )
    return tuple(cases)


def floors_of(plan: Node, settings: Settings) -> tuple[Floor, ...]:
    """Floors of the published shape; none where the group is not what the plan has them for."""
    needs = _dispatch_needs(plan, settings.pool)
    if needs is None or settings.nodes == 1:
        return ()
    return (
        Floor(
            case=f"published-{verdict.PREFILL_TOKENS}",
            logical_gb_per_second=float(needs["logical_gb_per_second"].value),
        ),
        Floor(case=f"published-{verdict.DECODE_TOKENS}", latency_us=float(needs["latency_us"].value)),
    )


def fitting(shape: Shape, ranks: int) -> Shape:
    """The shape, or a small one where its experts do not spread evenly over the ranks."""
    if shape.experts and shape.experts % ranks == 0:
        return shape
    return Shape(hidden=SMALL.hidden, experts=SMALL.top_k * ranks, top_k=SMALL.top_k)


def address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair. Raises InputFault otherwise."""
    found = host_port(text)
    if found is None or not all(found):
        raise InputFault("address", text, "is not HOST:PORT", "Write for example 127.0.0.1:29500.")
    return found


def node_index(variables: Mapping[str, str], nodes: int) -> int:
    """Which of `nodes` this one is, as its job says; 0 outside one. Raises InputFault for none of them."""
    if nodes < 1:
        raise InputFault("--nodes", nodes, "is not a number of nodes", "Write 1 or more.")
    text = variables.get(INDEX_VARIABLE, "0")
    index = digits(text)
    if index is None or index >= nodes:
        raise InputFault(INDEX_VARIABLE, text, f"is not one of {nodes} nodes", "Start it as the rendered job does.")
    return index


def _dispatch_needs(plan: Node, pool: str) -> Node | None:
    for place, rollout in enumerate(plan["workload"]["rollouts"].value):
        if rollout["pool"] == pool and rollout["dispatch"] is not None:
            return plan["workload"]["rollouts"][place]["dispatch"]
    return None


def _shape(node: Node) -> Shape:
    return Shape(hidden=node["hidden"].number, experts=node["experts"].number, top_k=node["top_k"].number)
