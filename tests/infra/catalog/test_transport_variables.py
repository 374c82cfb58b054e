import pytest

from infra.catalog.instances import Transport
from infra.catalog.transport_variables import explained, variables

CASES = pytest.mark.parametrize(
    ("transport", "crosses_nodes"),
    [(transport, crosses) for transport in ("gda", "proxy", "none") for crosses in (True, False)],
)


def test_gpu_direct_sets_its_two_variables_together() -> None:
    environment = variables("gda", deepep_over_efa=True)
    assert environment["NCCL_GIN_TYPE"] == "5"
    assert environment["NCCL_SYM_GIN_KERNELS_ENABLE"] == "0"


@CASES
def test_symmetric_kernels_are_off_exactly_when_the_type_is_gpu_direct(
    transport: Transport, crosses_nodes: bool
) -> None:
    environment = variables(transport, deepep_over_efa=crosses_nodes)
    assert (environment.get("NCCL_GIN_TYPE") == "5") == ("NCCL_SYM_GIN_KERNELS_ENABLE" in environment)


def test_proxy_is_asked_for_by_name_and_not_left_to_the_default() -> None:
    assert variables("proxy", deepep_over_efa=True)["NCCL_GIN_TYPE"] == "2"


@pytest.mark.parametrize("transport", ["gda", "proxy"])
def test_elastic_buffer_gets_symmetric_memory_and_its_own_communicator(transport: Transport) -> None:
    environment = variables(transport, deepep_over_efa=True)
    assert environment["NCCL_CUMEM_ENABLE"] == "1"
    assert environment["EP_REUSE_NCCL_COMM"] == "0"


@CASES
def test_nccl_always_goes_over_efa_and_fails_rather_than_use_tcp(transport: Transport, crosses_nodes: bool) -> None:
    environment = variables(transport, deepep_over_efa=crosses_nodes)
    assert environment["NCCL_NET"] == "Libfabric"
    assert environment["NCCL_NET_PLUGIN"] == environment["NCCL_TUNER_PLUGIN"] == "ofi"
    assert environment["FI_PROVIDER"] == "efa"
    assert environment["OFI_NCCL_PROTOCOL"] == "RDMA"


@CASES
def test_bootstrap_interface_is_an_exclusion_of_bridges_and_pod_links(
    transport: Transport, crosses_nodes: bool
) -> None:
    excluded = variables(transport, deepep_over_efa=crosses_nodes)["NCCL_SOCKET_IFNAME"]
    assert excluded.startswith("^")
    assert {"docker", "lo", "veth"} <= set(excluded[1:].split(","))


@pytest.mark.parametrize(
    ("transport", "crosses_nodes"), [("none", True), ("none", False), ("gda", False), ("proxy", False)]
)
def test_device_side_networking_is_left_alone_where_no_expert_group_crosses_nodes(
    transport: Transport, crosses_nodes: bool
) -> None:
    names = set(variables(transport, deepep_over_efa=crosses_nodes))
    assert not {name for name in names if "_GIN_" in name or name.startswith("EP_")}


@CASES
def test_every_variable_is_set_once_and_has_a_reason(transport: Transport, crosses_nodes: bool) -> None:
    rows = explained(transport, deepep_over_efa=crosses_nodes)
    assert len({row.name for row in rows}) == len(rows)
    assert all(len(row.reason) > 20 for row in rows)
    assert {row.name: row.value for row in rows} == variables(transport, deepep_over_efa=crosses_nodes)


def test_nothing_is_set_that_was_removed_from_or_never_in_the_plugin() -> None:
    stale = {"OFI_NCCL_GIN_TYPE", "OFI_NCCL_GIN_GDAKI", "EP_EFA_MAX_QPS", "FI_EFA_USE_DEVICE_RDMA", "NCCL_PROTO"}
    assert not stale & set(variables("gda", deepep_over_efa=True))
