"""EC2 Image Builder: what pipelines are made of. Nothing is ever baked; starting a pipeline is not implemented.

As in AWS, a component and a recipe exist once for each name and version, what a pipeline or recipe names must exist, and
what is named cannot be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import shapes, state
from .ec2.network import SUBNETS
from .ec2.security_groups import GROUPS
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

SERVICE = "imagebuilder"
RESOURCES = state.Store()  # ARN -> resource, of every kind


@dataclass(frozen=True, slots=True)
class Kind:
    """name: as in the API's operations. member: of a Get reply. arn_key: how requests and replies name its ARN.
    versioned: whether it is never updated, and exists once for each version."""

    name: str
    member: str
    arn_key: str
    path: str
    versioned: bool = False

    def arn(self, params: Params) -> str:
        tail = f"/{params['semanticVersion']}" if self.versioned else ""
        build = "/1" if self.name == "Component" else ""
        return state.arn(SERVICE, f"{self.path}/{params['name'].lower()}{tail}{build}")


KINDS = (
    Kind("Component", "component", "componentBuildVersionArn", "component", versioned=True),
    Kind("ImageRecipe", "imageRecipe", "imageRecipeArn", "image-recipe", versioned=True),
    Kind(
        "InfrastructureConfiguration",
        "infrastructureConfiguration",
        "infrastructureConfigurationArn",
        "infrastructure-configuration",
    ),
    Kind(
        "DistributionConfiguration",
        "distributionConfiguration",
        "distributionConfigurationArn",
        "distribution-configuration",
    ),
    Kind("ImagePipeline", "imagePipeline", "imagePipelineArn", "image-pipeline"),
)


def _found(arn: str) -> dict[str, Any]:
    found: dict[str, Any] | None = RESOURCES.get(arn)
    if found is None:
        raise ServiceError("ResourceNotFoundException", f"The resource {arn} does not exist.", 404)
    return found


def _named(params: Params) -> Iterator[str]:
    """ARNs of resources that this one is made of."""
    yield from (component["componentArn"] for component in params.get("components", []))
    keys = ("imageRecipeArn", "infrastructureConfigurationArn", "distributionConfigurationArn")
    yield from (params[key] for key in keys if key in params)


def _check(params: Params) -> None:
    for arn in _named(params):
        if arn not in RESOURCES:
            raise ServiceError("InvalidParameterValueException", f"The resource {arn} does not exist.", 400)
    for group in params.get("securityGroupIds", []):
        if group not in GROUPS:
            raise ServiceError("InvalidParameterValueException", f"The security group '{group}' does not exist", 400)
    if "subnetId" in params and params["subnetId"] not in SUBNETS:
        raise ServiceError("InvalidParameterValueException", f"The subnet '{params['subnetId']}' does not exist", 400)


def _register(kind: Kind) -> None:
    @operation(SERVICE, f"Create{kind.name}")
    def create(params: Params) -> Params:
        arn = kind.arn(params)
        if arn in RESOURCES:
            raise ServiceError("ResourceAlreadyExistsException", f"{kind.name} {arn} already exists.", 400)
        kept = {key: value for key, value in params.items() if key not in ("clientToken", "semanticVersion")}
        _check(kept)
        version = {"version": params["semanticVersion"]} if kind.versioned else {}
        RESOURCES[arn] = {"tags": {}, **kept, **version, "arn": arn, "dateCreated": state.now().isoformat()}
        return {kind.arn_key: arn}

    @operation(SERVICE, f"Get{kind.name}")
    def get(params: Params) -> Params:
        return {kind.member: _found(params[kind.arn_key])}

    @operation(SERVICE, f"Delete{kind.name}")
    def delete(params: Params) -> Params:
        arn = params[kind.arn_key]
        _found(arn)
        users = [key for key, other in RESOURCES.items() if arn in _named(other)]
        if users:
            raise ServiceError("ResourceDependencyException", f"{arn} is in use by {users[0]}.", 400)
        del RESOURCES[arn]
        return {kind.arn_key: arn}

    if not kind.versioned:

        @operation(SERVICE, f"Update{kind.name}")
        def update(params: Params) -> Params:
            found = _found(params[kind.arn_key])
            _check(params)
            # The whole configuration is sent: what is absent is cleared.
            fixed = {key: found[key] for key in ("arn", "name", "tags", "dateCreated")}
            sent = {key: value for key, value in params.items() if key not in ("clientToken", kind.arn_key)}
            RESOURCES[found["arn"]] = {**sent, **fixed, "dateUpdated": state.now().isoformat()}
            return {kind.arn_key: found["arn"]}


@operation(SERVICE, "TagResource")
def tag_resource(params: Params) -> None:
    _found(params["resourceArn"])["tags"] |= params["tags"]


@operation(SERVICE, "UntagResource")
def untag_resource(params: Params) -> None:
    tags = _found(params["resourceArn"])["tags"]
    for key in params["tagKeys"]:
        tags.pop(key, None)


@operation(SERVICE, "ListTagsForResource")
def list_tags_for_resource(params: Params) -> Params:
    return {"tags": _found(params["resourceArn"])["tags"]}


def _sent(kind: Kind, operation_name: str, props: Params) -> Params:
    renamed = {("SemanticVersion" if key == "Version" else key): value for key, value in props.items() if key != "Tags"}
    sent: Params = shapes.to_api(SERVICE, f"{operation_name}{kind.name}Request", renamed)
    return {**sent, "clientToken": state.hex_id("cfn", 16)}


def _resource(kind: Kind, properties: str, replaces: str) -> None:
    def create(_name: str, props: Params) -> Created:
        sent = _sent(kind, "Create", props) | {"tags": shapes.tag_map(props.get("Tags"))}
        arn = call(SERVICE, f"Create{kind.name}", sent)[kind.arn_key]
        return arn, {"Arn": arn, "Name": props["Name"]}

    def update(arn: str, old: Params, new: Params) -> dict[str, Any]:
        if shapes.changed(old, new) - {"Tags"}:
            own = {key: value for key, value in new.items() if key != "Name"}
            call(SERVICE, f"Update{kind.name}", _sent(kind, "Update", own) | {kind.arn_key: arn})
        gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
        if gone:
            call(SERVICE, "UntagResource", {"resourceArn": arn, "tagKeys": gone})
        if fresh:
            call(SERVICE, "TagResource", {"resourceArn": arn, "tags": fresh})
        return {"Arn": arn, "Name": new["Name"]}

    resource(
        f"AWS::ImageBuilder::{kind.name}",
        create=create,
        update=update,
        delete=lambda arn, _props: call(SERVICE, f"Delete{kind.name}", {kind.arn_key: arn}),
        properties=f"Name Tags {properties}",
        replaces=f"Name {replaces}".strip(),
        tags="map",
    )


for _kind in KINDS:
    _register(_kind)

# (properties besides Name and Tags, those of them whose change replaces)
_COMPONENT = "Data Description Platform SupportedOsVersions Version"
_RECIPE = "BlockDeviceMappings Components Description ParentImage Version"
_PROPERTIES = {
    "Component": (_COMPONENT, _COMPONENT),
    "ImageRecipe": (_RECIPE, _RECIPE),
    "InfrastructureConfiguration": (
        "Description InstanceMetadataOptions InstanceProfileName InstanceTypes SecurityGroupIds SubnetId"
        " TerminateInstanceOnFailure",
        "",
    ),
    "DistributionConfiguration": ("Description Distributions", ""),
    "ImagePipeline": (
        "Description DistributionConfigurationArn ImageRecipeArn ImageTestsConfiguration InfrastructureConfigurationArn"
        " LoggingConfiguration Status",
        "",
    ),
}
for _kind in KINDS:
    _resource(_kind, *_PROPERTIES[_kind.name])
