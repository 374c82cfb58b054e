from infra.catalog.addons import ADDONS


def test_order_is_network_and_identity_first_then_what_needs_nodes() -> None:
    ordered = sorted(ADDONS.values(), key=lambda addon: addon.order)
    assert [addon.name for addon in ordered] == [
        "vpc-cni",
        "kube-proxy",
        "eks-pod-identity-agent",
        "coredns",
        "metrics-server",
        "aws-ebs-csi-driver",
        "eks-node-monitoring-agent",
        "aws-fsx-csi-driver",
        "amazon-cloudwatch-observability",
    ]
    assert [addon.after_nodes for addon in ordered] == [False] * 3 + [True] * 6
    assert len({addon.order for addon in ordered}) == len(ordered)


def test_addons_that_call_aws_have_an_account_and_a_policy_and_no_other_does() -> None:
    calling = {addon.name: addon.service_account for addon in ADDONS.values() if addon.needs_identity}
    assert calling == {
        "vpc-cni": "aws-node",
        "aws-ebs-csi-driver": "ebs-csi-controller-sa",
        "aws-fsx-csi-driver": "fsx-csi-controller-sa",
        "amazon-cloudwatch-observability": "cloudwatch-agent",
    }
    for addon in ADDONS.values():
        assert addon.needs_identity == (addon.managed_policy is not None) == (addon.service_account is not None)


def test_only_the_lustre_driver_depends_on_fsx() -> None:
    assert {addon.name for addon in ADDONS.values() if addon.fsx_only} == {"aws-fsx-csi-driver"}


def test_versions_are_looked_up_per_addon_and_never_guessed() -> None:
    for addon in ADDONS.values():
        assert f"--addon-name {addon.name} " in addon.version.command
        assert "<version>" in addon.version.command
    elsewhere = {addon.name: addon.namespace for addon in ADDONS.values() if addon.namespace != "kube-system"}
    assert elsewhere == {"amazon-cloudwatch-observability": "amazon-cloudwatch"}
