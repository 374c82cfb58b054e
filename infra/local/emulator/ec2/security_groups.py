"""Security groups and their rules. One rule is one entry with its own id, as DescribeSecurityGroupRules shows it."""

from __future__ import annotations

from typing import Any

from .. import state
from ..errors import ServiceError
from ..registry import Created, Params, begun, call, operation, resource
from . import common
from .network import VPC_MISSING, VPCS

GROUPS = common.store("sg")
RULES = common.store("sgr")

GROUP_MISSING = "InvalidGroup.NotFound"
_ALL = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


@operation("ec2", "CreateSecurityGroup")
def create_security_group(params: Params) -> Params:
    common.require(VPCS, params.get("VpcId"), VPC_MISSING, "vpc")
    if any((g["VpcId"], g["GroupName"]) == (params["VpcId"], params["GroupName"]) for g in GROUPS.values()):
        raise ServiceError(
            "InvalidGroup.Duplicate",
            f"The security group '{params['GroupName']}' already exists for VPC '{params['VpcId']}'",
        )
    group_id = state.hex_id("sg")
    GROUPS[group_id] = {
        "GroupId": group_id,
        "SecurityGroupArn": state.arn("ec2", f"security-group/{group_id}"),
        "GroupName": params["GroupName"],
        "Description": params["Description"],
        "VpcId": params["VpcId"],
        "OwnerId": state.account(),
        "Tags": common.new_tags(params, "security-group"),
    }
    _add_rules(group_id, [_ALL], is_egress=True)
    return {"GroupId": group_id}


@operation("ec2", "DescribeSecurityGroups")
def describe_security_groups(params: Params) -> Params:
    groups = [_with_rules(group) for group in GROUPS.values()]
    for wanted, field in ((params.get("GroupIds"), "GroupId"), (params.get("GroupNames"), "GroupName")):
        if wanted:
            missing = set(wanted) - {group[field] for group in groups}
            if missing:
                raise ServiceError(GROUP_MISSING, f"The security group '{sorted(missing)[0]}' does not exist")
            groups = [group for group in groups if group[field] in wanted]
    filters = params.get("Filters", [])
    return {"SecurityGroups": [group for group in groups if all(common.matches(group, one) for one in filters)]}


def _with_rules(group: dict[str, Any]) -> dict[str, Any]:
    rules = [rule for rule in RULES.values() if rule["GroupId"] == group["GroupId"]]
    return {
        **group,
        "IpPermissions": [_as_permission(rule) for rule in rules if not rule["IsEgress"]],
        "IpPermissionsEgress": [_as_permission(rule) for rule in rules if rule["IsEgress"]],
    }


def _as_permission(rule: dict[str, Any]) -> dict[str, Any]:
    permission: dict[str, Any] = {"IpProtocol": rule["IpProtocol"]}
    if rule["IpProtocol"] != "-1":
        permission |= {"FromPort": rule["FromPort"], "ToPort": rule["ToPort"]}
    note = {"Description": rule["Description"]} if rule.get("Description") else {}
    if "CidrIpv4" in rule:
        permission["IpRanges"] = [{"CidrIp": rule["CidrIpv4"], **note}]
    if "CidrIpv6" in rule:
        permission["Ipv6Ranges"] = [{"CidrIpv6": rule["CidrIpv6"], **note}]
    if "PrefixListId" in rule:
        permission["PrefixListIds"] = [{"PrefixListId": rule["PrefixListId"], **note}]
    if "ReferencedGroupInfo" in rule:
        permission["UserIdGroupPairs"] = [{**rule["ReferencedGroupInfo"], **note}]
    return permission


common.describe(
    "DescribeSecurityGroupRules",
    "SecurityGroupRules",
    RULES,
    ids="SecurityGroupRuleIds",
    id_field="SecurityGroupRuleId",
    missing="InvalidSecurityGroupRuleId.NotFound",
)


@operation("ec2", "DeleteSecurityGroup")
def delete_security_group(params: Params) -> Params:
    group = common.require(GROUPS, params.get("GroupId"), GROUP_MISSING, "security group")
    group_id = group["GroupId"]
    referring = [rule for rule in RULES.values() if rule.get("ReferencedGroupInfo", {}).get("GroupId") == group_id]
    interfaces = [one for one in common.store("eni").values() if group_id in {g["GroupId"] for g in one["Groups"]}]
    if any(rule["GroupId"] != group_id for rule in referring) or interfaces:
        raise ServiceError("DependencyViolation", f"resource {group_id} has a dependent object")
    for rule_id, rule in list(RULES.items()):
        if rule["GroupId"] == group_id:
            RULES.pop(rule_id)
    GROUPS.pop(group_id)
    return {"Return": True, "GroupId": group_id}


# ---- rules ------------------------------------------------------------------------------------------------------


@operation("ec2", "AuthorizeSecurityGroupIngress")
def authorize_ingress(params: Params) -> Params:
    return {"Return": True, "SecurityGroupRules": _authorize(params, is_egress=False)}


@operation("ec2", "AuthorizeSecurityGroupEgress")
def authorize_egress(params: Params) -> Params:
    return {"Return": True, "SecurityGroupRules": _authorize(params, is_egress=True)}


def _authorize(params: Params, *, is_egress: bool) -> list[dict[str, Any]]:
    group = common.require(GROUPS, params.get("GroupId"), GROUP_MISSING, "security group")
    permissions = params.get("IpPermissions") or [_from_flat(params)]
    return _add_rules(group["GroupId"], permissions, is_egress=is_egress)


def _from_flat(params: Params) -> dict[str, Any]:
    permission: Params = {key: params[key] for key in ("IpProtocol", "FromPort", "ToPort") if key in params}
    return {**permission, "IpRanges": [{"CidrIp": params["CidrIp"]}]}


def _add_rules(group_id: str, permissions: list[dict[str, Any]], *, is_egress: bool) -> list[dict[str, Any]]:
    made = [rule for permission in permissions for rule in _split(group_id, permission, is_egress=is_egress)]
    for rule in made:
        if any(_identity(other) == _identity(rule) for other in RULES.values()):
            raise ServiceError("InvalidPermission.Duplicate", "the specified rule already exists")
    for rule in made:
        RULES[rule["SecurityGroupRuleId"]] = rule
    return made


def _identity(rule: dict[str, Any]) -> tuple[Any, ...]:
    peer = rule.get("ReferencedGroupInfo", {}).get("GroupId")
    names = ("GroupId", "IsEgress", "IpProtocol", "FromPort", "ToPort", "CidrIpv4", "CidrIpv6", "PrefixListId")
    return (*(rule.get(name) for name in names), peer)


def _split(group_id: str, permission: dict[str, Any], *, is_egress: bool) -> list[dict[str, Any]]:
    protocol = str(permission["IpProtocol"])
    base = {
        "GroupId": group_id,
        "GroupOwnerId": state.account(),
        "IsEgress": is_egress,
        "IpProtocol": protocol,
        "FromPort": -1 if protocol == "-1" else int(permission["FromPort"]),
        "ToPort": -1 if protocol == "-1" else int(permission["ToPort"]),
    }
    peers: list[dict[str, Any]] = []
    for item in permission.get("IpRanges", []):
        peers.append({"CidrIpv4": item["CidrIp"], "Description": item.get("Description")})
    for item in permission.get("Ipv6Ranges", []):
        peers.append({"CidrIpv6": item["CidrIpv6"], "Description": item.get("Description")})
    for item in permission.get("PrefixListIds", []):
        peers.append({"PrefixListId": item["PrefixListId"], "Description": item.get("Description")})
    for item in permission.get("UserIdGroupPairs", []):
        peer = common.require(GROUPS, item.get("GroupId"), GROUP_MISSING, "security group")
        reference = {"GroupId": peer["GroupId"], "UserId": state.account()}
        peers.append({"ReferencedGroupInfo": reference, "Description": item.get("Description")})
    if not peers:
        raise ServiceError("InvalidParameterValue", "a rule needs a CIDR, a prefix list or a security group")
    ids = [state.hex_id("sgr") for _ in peers]
    rules = [{**base, "SecurityGroupRuleId": one, **peer} for one, peer in zip(ids, peers, strict=True)]
    return [{key: value for key, value in rule.items() if value is not None} for rule in rules]


@operation("ec2", "RevokeSecurityGroupIngress")
def revoke_ingress(params: Params) -> Params:
    return _revoke(params, is_egress=False)


@operation("ec2", "RevokeSecurityGroupEgress")
def revoke_egress(params: Params) -> Params:
    return _revoke(params, is_egress=True)


def _revoke(params: Params, *, is_egress: bool) -> Params:
    group = common.require(GROUPS, params.get("GroupId"), GROUP_MISSING, "security group")
    ids = list(params.get("SecurityGroupRuleIds", []))
    for permission in params.get("IpPermissions", []):
        wanted = [_identity(one) for one in _split(group["GroupId"], permission, is_egress=is_egress)]
        ids += [rule_id for rule_id, rule in RULES.items() if _identity(rule) in wanted]
    for rule_id in ids:
        common.require(RULES, rule_id, "InvalidSecurityGroupRuleId.NotFound", "security group rule")
        RULES.pop(rule_id)
    return {"Return": True}


@operation("ec2", "UpdateSecurityGroupRuleDescriptionsIngress")
def update_descriptions_ingress(params: Params) -> Params:
    return _update_descriptions(params)


@operation("ec2", "UpdateSecurityGroupRuleDescriptionsEgress")
def update_descriptions_egress(params: Params) -> Params:
    return _update_descriptions(params)


def _update_descriptions(params: Params) -> Params:
    for item in params.get("SecurityGroupRuleDescriptions", []):
        rule = common.require(
            RULES, item["SecurityGroupRuleId"], "InvalidSecurityGroupRuleId.NotFound", "security group rule"
        )
        rule["Description"] = item.get("Description", "")
    return {"Return": True}


# ---- CloudFormation ---------------------------------------------------------------------------------------------


def _permission(rule: Params) -> dict[str, Any]:
    """One CloudFormation rule (inline or its own resource) as an IpPermission."""
    permission: dict[str, Any] = {"IpProtocol": str(rule["IpProtocol"])}
    permission |= {key: int(rule[key]) for key in ("FromPort", "ToPort") if key in rule}
    note = {"Description": rule["Description"]} if "Description" in rule else {}
    peer = rule.get("SourceSecurityGroupId") or rule.get("DestinationSecurityGroupId")
    prefix_list = rule.get("SourcePrefixListId") or rule.get("DestinationPrefixListId")
    if "CidrIp" in rule:
        permission["IpRanges"] = [{"CidrIp": rule["CidrIp"], **note}]
    if "CidrIpv6" in rule:
        permission["Ipv6Ranges"] = [{"CidrIpv6": rule["CidrIpv6"], **note}]
    if peer:
        permission["UserIdGroupPairs"] = [{"GroupId": peer, **note}]
    if prefix_list:
        permission["PrefixListIds"] = [{"PrefixListId": prefix_list, **note}]
    return permission


_RULE_KEYS = frozenset(
    {
        "IpProtocol",
        "FromPort",
        "ToPort",
        "CidrIp",
        "CidrIpv6",
        "Description",
        "SourceSecurityGroupId",
        "DestinationSecurityGroupId",
        "SourcePrefixListId",
        "DestinationPrefixListId",
    }
)


def _inline(props: Params, name: str) -> list[dict[str, Any]]:
    rules = props.get(name) or []
    for rule in rules:
        unknown = sorted(rule.keys() - _RULE_KEYS)
        if unknown:
            raise ValueError(f"{name}: extraneous key [{unknown[0]}] is not permitted")
    return [_permission(rule) for rule in rules]


def _group_create(name: str, props: Params) -> Created:
    sent = {
        "GroupName": props.get("GroupName", name),
        "Description": props["GroupDescription"],
        "VpcId": props.get("VpcId"),
        "TagSpecifications": common.tag_specification(props, "security-group"),
    }
    group_id = call("ec2", "CreateSecurityGroup", sent)["GroupId"]
    begun(group_id)
    ingress, egress = _inline(props, "SecurityGroupIngress"), _inline(props, "SecurityGroupEgress")
    if ingress:
        call("ec2", "AuthorizeSecurityGroupIngress", {"GroupId": group_id, "IpPermissions": ingress})
    if egress and egress != [_ALL]:
        call("ec2", "RevokeSecurityGroupEgress", {"GroupId": group_id, "IpPermissions": [_ALL]})
        call("ec2", "AuthorizeSecurityGroupEgress", {"GroupId": group_id, "IpPermissions": egress})
    return group_id, _group_attributes(group_id)


def _group_attributes(group_id: str) -> dict[str, Any]:
    return {"GroupId": group_id, "Id": group_id, "VpcId": GROUPS[group_id]["VpcId"]}


def _group_update(group_id: str, old: Params, new: Params) -> dict[str, Any]:
    for side in ("Ingress", "Egress"):
        name = f"SecurityGroup{side}"
        before, after = _inline(old, name), _inline(new, name)
        if side == "Egress":  # no inline egress means EC2's allow-all default
            before, after = before or [_ALL], after or [_ALL]
        gone = [one for one in before if one not in after]
        fresh = [one for one in after if one not in before]
        if gone:
            call("ec2", f"RevokeSecurityGroup{side}", {"GroupId": group_id, "IpPermissions": gone})
        if fresh:
            call("ec2", f"AuthorizeSecurityGroup{side}", {"GroupId": group_id, "IpPermissions": fresh})
    common.retag(group_id, old, new)
    return _group_attributes(group_id)


resource(
    "AWS::EC2::SecurityGroup",
    create=_group_create,
    update=_group_update,
    delete=lambda group_id, _props: call("ec2", "DeleteSecurityGroup", {"GroupId": group_id}),
    properties="GroupName GroupDescription VpcId SecurityGroupIngress SecurityGroupEgress Tags",
    replaces="GroupName GroupDescription VpcId",
)


def _revoke_allow_all(group_id: str) -> None:
    """CloudFormation takes every allow-all egress rule from a group before it adds an egress rule of its own resource,
    whoever wrote the allow-all (aws-cdk issue 22140): a stack that gets the order wrong loses it in silence."""
    gone = [
        rule["SecurityGroupRuleId"]
        for rule in RULES.values()
        if (rule["GroupId"], rule["IsEgress"], rule["IpProtocol"], rule.get("CidrIpv4"))
        == (group_id, True, "-1", "0.0.0.0/0")
    ]
    if gone:
        call("ec2", "RevokeSecurityGroupEgress", {"GroupId": group_id, "SecurityGroupRuleIds": gone})


def _rule_type(side: str, peers: str) -> None:
    def create(_name: str, props: Params) -> Created:
        if side == "Egress":
            _revoke_allow_all(props["GroupId"])
        sent = {"GroupId": props["GroupId"], "IpPermissions": [_permission(props)]}
        rule_id = call("ec2", f"AuthorizeSecurityGroup{side}", sent)["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return rule_id, {"Id": rule_id}

    def update(rule_id: str, _old: Params, new: Params) -> dict[str, Any]:
        description = {"SecurityGroupRuleId": rule_id, "Description": new.get("Description", "")}
        sent = {"GroupId": new["GroupId"], "SecurityGroupRuleDescriptions": [description]}
        call("ec2", f"UpdateSecurityGroupRuleDescriptions{side}", sent)
        return {"Id": rule_id}

    def delete(rule_id: str, props: Params) -> None:
        call("ec2", f"RevokeSecurityGroup{side}", {"GroupId": props["GroupId"], "SecurityGroupRuleIds": [rule_id]})

    fixed = f"GroupId IpProtocol FromPort ToPort CidrIp CidrIpv6 {peers}"
    resource(
        f"AWS::EC2::SecurityGroup{side}",
        create=create,
        update=update,
        delete=delete,
        properties=f"{fixed} Description",
        replaces=fixed,
        tags=None,
    )


_rule_type("Ingress", "SourceSecurityGroupId SourcePrefixListId")
_rule_type("Egress", "DestinationSecurityGroupId DestinationPrefixListId")
