"""FSx for Lustre file systems and their data repository associations: a small in-memory service."""

from __future__ import annotations

from typing import Any

from . import registry, shapes, state
from .ec2 import interfaces
from .ec2.network import SUBNETS
from .ec2.security_groups import GROUPS
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

FILE_SYSTEMS = state.Store()
ASSOCIATIONS = state.Store()


def _file_system(file_system_id: str) -> dict[str, Any]:
    found: dict[str, Any] | None = FILE_SYSTEMS.get(file_system_id)
    if found is None:
        raise ServiceError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")
    return found


@operation("fsx", "CreateFileSystem")
def create_file_system(params: Params) -> Params:
    if params["FileSystemType"] != "LUSTRE":
        raise ServiceError("BadRequest", f"the emulator implements LUSTRE, not {params['FileSystemType']}")
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
            **_shown_lustre(params.get("LustreConfiguration", {})),
        },
    }
    kept = ("StorageCapacity", "KmsKeyId", "FileSystemTypeVersion")
    system |= {key: params[key] for key in kept if key in params}
    FILE_SYSTEMS[file_system_id] = system
    return {"FileSystem": system}


_REPOSITORY_KEYS = ("AutoImportPolicy", "ExportPath", "ImportPath", "ImportedFileChunkSize")


def _shown_lustre(asked: dict[str, Any]) -> dict[str, Any]:
    """A request's Lustre settings where the description shows them."""
    shown = {key: value for key, value in asked.items() if key not in _REPOSITORY_KEYS}
    repository = {key: asked[key] for key in _REPOSITORY_KEYS if key in asked}
    return {**shown, **({"DataRepositoryConfiguration": repository} if repository else {})}


@operation("fsx", "DescribeFileSystems")
def describe_file_systems(params: Params) -> Params:
    wanted = params.get("FileSystemIds")
    return {"FileSystems": [_file_system(one) for one in wanted] if wanted else list(FILE_SYSTEMS.values())}


@operation("fsx", "UpdateFileSystem")
def update_file_system(params: Params) -> Params:
    system = _file_system(params["FileSystemId"])
    if params.get("StorageCapacity", system.get("StorageCapacity", 0)) < system.get("StorageCapacity", 0):
        raise ServiceError("BadRequest", "Storage capacity can only be increased")
    system |= {key: params[key] for key in ("StorageCapacity", "FileSystemTypeVersion") if key in params}
    system["LustreConfiguration"] |= _shown_lustre(params.get("LustreConfiguration", {}))
    return {"FileSystem": system}


@operation("fsx", "DeleteFileSystem")
def delete_file_system(params: Params) -> Params:
    system = _file_system(params["FileSystemId"])
    for association_id, one in list(ASSOCIATIONS.items()):
        if one["FileSystemId"] == system["FileSystemId"]:
            ASSOCIATIONS.pop(association_id)
    interfaces.detach(system["NetworkInterfaceIds"])
    FILE_SYSTEMS.pop(system["FileSystemId"])
    return {"FileSystemId": system["FileSystemId"], "Lifecycle": "DELETING"}


@operation("fsx", "CreateDataRepositoryAssociation")
def create_association(params: Params) -> Params:
    system = _file_system(params["FileSystemId"])
    if str(system["LustreConfiguration"]["DeploymentType"]).startswith("SCRATCH"):
        raise ServiceError("BadRequest", "Data repository associations need a PERSISTENT_2 or newer Lustre file system")
    association_id = state.hex_id("dra")
    names = ("FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate", "ImportedFileChunkSize", "S3")
    association = {
        "AssociationId": association_id,
        "ResourceARN": state.arn("fsx", f"association/{system['FileSystemId']}/{association_id}"),
        "FileSystemId": system["FileSystemId"],
        "Lifecycle": "AVAILABLE",
        "CreationTime": state.now(),
        "Tags": list(params.get("Tags", [])),
        **{name: params[name] for name in names if name in params},
    }
    ASSOCIATIONS[association_id] = association
    return {"Association": association}


def _association(association_id: str) -> dict[str, Any]:
    found: dict[str, Any] | None = ASSOCIATIONS.get(association_id)
    if found is None:
        raise ServiceError("DataRepositoryAssociationNotFound", f"'{association_id}' does not exist.")
    return found


@operation("fsx", "DescribeDataRepositoryAssociations")
def describe_associations(params: Params) -> Params:
    wanted = params.get("AssociationIds")
    return {"Associations": [_association(one) for one in wanted] if wanted else list(ASSOCIATIONS.values())}


@operation("fsx", "UpdateDataRepositoryAssociation")
def update_association(params: Params) -> Params:
    association = _association(params["AssociationId"])
    association |= {key: params[key] for key in ("ImportedFileChunkSize", "S3") if key in params}
    return {"Association": association}


@operation("fsx", "DeleteDataRepositoryAssociation")
def delete_association(params: Params) -> Params:
    _association(params["AssociationId"])
    ASSOCIATIONS.pop(params["AssociationId"])
    return {"AssociationId": params["AssociationId"], "Lifecycle": "DELETING"}


def _tagged(arn: str) -> dict[str, Any]:
    for kept in (FILE_SYSTEMS, ASSOCIATIONS):
        for item in kept.values():
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
    " LustreConfiguration/DriveCacheType LustreConfiguration/ExportPath LustreConfiguration/ImportPath"
    " LustreConfiguration/ImportedFileChunkSize LustreConfiguration/CopyTagsToBackups LustreConfiguration/EfaEnabled",
)


def _association_create(_name: str, props: Params) -> Created:
    sent = shapes.to_api("fsx", "CreateDataRepositoryAssociationRequest", props)
    made = call("fsx", "CreateDataRepositoryAssociation", sent)["Association"]
    return made["AssociationId"], {"AssociationId": made["AssociationId"], "ResourceARN": made["ResourceARN"]}


def _association_update(association_id: str, old: Params, new: Params) -> dict[str, Any]:
    differs = shapes.changed(old, new) & {"ImportedFileChunkSize", "S3"}
    if differs:
        own = {name: new[name] for name in differs if name in new}
        sent = shapes.to_api("fsx", "UpdateDataRepositoryAssociationRequest", own)
        call("fsx", "UpdateDataRepositoryAssociation", {"AssociationId": association_id, **sent})
    association = _association(association_id)
    _retag(association["ResourceARN"], old, new)
    return {"AssociationId": association_id, "ResourceARN": association["ResourceARN"]}


resource(
    "AWS::FSx::DataRepositoryAssociation",
    create=_association_create,
    update=_association_update,
    delete=lambda one, _props: call("fsx", "DeleteDataRepositoryAssociation", {"AssociationId": one}),
    properties="FileSystemId FileSystemPath DataRepositoryPath BatchImportMetaDataOnCreate ImportedFileChunkSize S3 Tags",
    replaces="FileSystemId FileSystemPath DataRepositoryPath BatchImportMetaDataOnCreate",
)
