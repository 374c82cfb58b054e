"""FSx for Lustre file systems, without data repositories: a small in-memory service."""

from __future__ import annotations

from typing import Any

from . import registry, shapes, state
from .ec2 import interfaces
from .ec2.network import SUBNETS
from .ec2.security_groups import GROUPS
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

FILE_SYSTEMS = state.Store()


def _file_system(file_system_id: str) -> dict[str, Any]:
    found: dict[str, Any] | None = FILE_SYSTEMS.get(file_system_id)
    if found is None:
        raise ServiceError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")
    return found


@operation("fsx", "CreateFileSystem")
def create_file_system(params: Params) -> Params:
    if params["FileSystemType"] != "LUSTRE":
        raise ServiceError("BadRequest", f"the emulator implements LUSTRE, not {params['FileSystemType']}")
    lustre = _lustre(params)
    for subnet_id in params["SubnetIds"]:
        if subnet_id not in SUBNETS:
            raise ServiceError("InvalidNetworkSettings", f"The subnet ID '{subnet_id}' does not exist")
    for group_id in params.get("SecurityGroupIds", []):
        if group_id not in GROUPS:
            raise ServiceError("InvalidNetworkSettings", f"The security group '{group_id}' does not exist")
    file_system_id = state.hex_id("fs")
    system: dict[str, Any] = {
        "OwnerId": state.account(),
        "CreationTime": state.now(),
        "FileSystemId": file_system_id,
        "FileSystemType": "LUSTRE",
        "Lifecycle": "AVAILABLE",
        "StorageType": params.get("StorageType", "SSD"),
        "VpcId": SUBNETS[params["SubnetIds"][0]]["VpcId"],
        "SubnetIds": params["SubnetIds"],
        "NetworkInterfaceIds": [
            interfaces.attach(params["SubnetIds"][0], params.get("SecurityGroupIds", []), file_system_id)
        ],
        "DNSName": f"{file_system_id}.fsx.{state.region()}.amazonaws.com",
        "ResourceARN": state.arn("fsx", f"file-system/{file_system_id}"),
        "Tags": list(params.get("Tags", [])),
        "LustreConfiguration": {
            "DeploymentType": "SCRATCH_1",
            "MountName": file_system_id[-8:],
            **lustre,
        },
    }
    kept = ("StorageCapacity", "KmsKeyId", "FileSystemTypeVersion")
    system |= {key: params[key] for key in kept if key in params}
    FILE_SYSTEMS[file_system_id] = system
    return {"FileSystem": system}


_REPOSITORY_KEYS = ("AutoImportPolicy", "ExportPath", "ImportPath", "ImportedFileChunkSize")


def _lustre(params: Params) -> dict[str, Any]:
    """A request's Lustre settings. Those of a link to S3 are refused: FSx shows them elsewhere, and nothing here asks."""
    asked: dict[str, Any] = params.get("LustreConfiguration", {})
    linked = [key for key in _REPOSITORY_KEYS if key in asked]
    if linked:
        raise ServiceError("BadRequest", f"the emulator implements no data repositories: {', '.join(linked)}")
    return asked


@operation("fsx", "DescribeFileSystems")
def describe_file_systems(params: Params) -> Params:
    wanted = params.get("FileSystemIds")
    return {"FileSystems": [_file_system(one) for one in wanted] if wanted else list(FILE_SYSTEMS.values())}


@operation("fsx", "UpdateFileSystem")
def update_file_system(params: Params) -> Params:
    system, lustre = _file_system(params["FileSystemId"]), _lustre(params)
    if params.get("StorageCapacity", system.get("StorageCapacity", 0)) < system.get("StorageCapacity", 0):
        raise ServiceError("BadRequest", "Storage capacity can only be increased")
    system |= {key: params[key] for key in ("StorageCapacity", "FileSystemTypeVersion") if key in params}
    system["LustreConfiguration"] |= lustre
    return {"FileSystem": system}


@operation("fsx", "DeleteFileSystem")
def delete_file_system(params: Params) -> Params:
    system = _file_system(params["FileSystemId"])
    interfaces.detach(system["NetworkInterfaceIds"])
    FILE_SYSTEMS.pop(system["FileSystemId"])
    return {"FileSystemId": system["FileSystemId"], "Lifecycle": "DELETING"}


def _tagged(arn: str) -> dict[str, Any]:
    for item in FILE_SYSTEMS.values():
        if item["ResourceARN"] == arn:
            found: dict[str, Any] = item
            return found
    raise ServiceError("ResourceNotFound", f"{arn} does not exist")


@operation("fsx", "TagResource")
def tag_resource(params: Params) -> None:
    item = _tagged(params["ResourceARN"])
    fresh = {tag["Key"]: tag["Value"] for tag in params["Tags"]}
    kept = [tag for tag in item["Tags"] if tag["Key"] not in fresh]
    item["Tags"] = kept + [{"Key": key, "Value": value} for key, value in fresh.items()]


@operation("fsx", "UntagResource")
def untag_resource(params: Params) -> None:
    item = _tagged(params["ResourceARN"])
    item["Tags"] = [tag for tag in item["Tags"] if tag["Key"] not in params["TagKeys"]]


# ---- CloudFormation ---------------------------------------------------------------------------------------------


def _retag(arn: str, old: Params, new: Params) -> None:
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        call("fsx", "UntagResource", {"ResourceARN": arn, "TagKeys": gone})
    if fresh:
        call("fsx", "TagResource", {"ResourceARN": arn, "Tags": shapes.tag_list(fresh)})


def _system_create(_name: str, props: Params) -> Created:
    system = call("fsx", "CreateFileSystem", shapes.to_api("fsx", "CreateFileSystemRequest", props))["FileSystem"]
    return system["FileSystemId"], _system_attributes(system)


def _system_attributes(system: dict[str, Any]) -> dict[str, Any]:
    return {
        "Id": system["FileSystemId"],
        "DNSName": system["DNSName"],
        "ResourceARN": system["ResourceARN"],
        "LustreMountName": system["LustreConfiguration"]["MountName"],
    }


def _system_update(file_system_id: str, old: Params, new: Params) -> dict[str, Any]:
    differs = shapes.changed(old, new) & {"StorageCapacity", "FileSystemTypeVersion", "LustreConfiguration"}
    own = {name: new[name] for name in differs if name in new}
    if "LustreConfiguration" in own:
        before = old.get("LustreConfiguration") or {}
        own["LustreConfiguration"] = {
            key: item for key, item in own["LustreConfiguration"].items() if before.get(key) != item
        }
    if own:
        sent = shapes.to_api("fsx", "UpdateFileSystemRequest", own)
        registry.call("fsx", "UpdateFileSystem", {"FileSystemId": file_system_id, **sent})
    system = _file_system(file_system_id)
    _retag(system["ResourceARN"], old, new)
    return _system_attributes(system)


resource(
    "AWS::FSx::FileSystem",
    create=_system_create,
    update=_system_update,
    delete=lambda system_id, _props: call("fsx", "DeleteFileSystem", {"FileSystemId": system_id}),
    properties="FileSystemType FileSystemTypeVersion StorageCapacity StorageType SubnetIds SecurityGroupIds KmsKeyId"
    " LustreConfiguration Tags",
    # The registry schema names the first five; the nested ones are from the resource reference.
    replaces="KmsKeyId SecurityGroupIds FileSystemType SubnetIds StorageType LustreConfiguration/DeploymentType"
    " LustreConfiguration/DriveCacheType LustreConfiguration/CopyTagsToBackups LustreConfiguration/EfaEnabled",
)
