"""CodeBuild projects with every field kept. Builds stay ministack's: they share its project table and run nothing."""

from __future__ import annotations

from typing import Any

from ministack.services import codebuild

from . import shapes, state
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

_PROJECTS = codebuild._projects  # name -> Project; ministack's StartBuild looks projects up here


def _project(name: str) -> dict[str, Any]:
    found: dict[str, Any] | None = _PROJECTS.get(name.rpartition("/")[2])
    if found is None:
        raise ServiceError("ResourceNotFoundException", f"Project not found: {name}")
    return found


@operation("codebuild", "CreateProject")
def create_project(params: Params) -> Params:
    if params["name"] in _PROJECTS:
        raise ServiceError("ResourceAlreadyExistsException", f"Project already exists: {params['name']}")
    now = state.now()
    project = {
        "arn": state.arn("codebuild", f"project/{params['name']}"),
        "encryptionKey": state.arn("kms", "alias/aws/s3"),
        "timeoutInMinutes": 60,
        "queuedTimeoutInMinutes": 480,
        "created": now,
        "lastModified": now,
        "badge": {"badgeEnabled": False},
        **params,
    }
    _PROJECTS[params["name"]] = project
    return {"project": project}


@operation("codebuild", "UpdateProject")
def update_project(params: Params) -> Params:
    project = _project(params["name"])
    project |= {**params, "lastModified": state.now()}
    if project.get("concurrentBuildLimit") == -1:  # the API's way to say: no limit
        del project["concurrentBuildLimit"]
    return {"project": project}


@operation("codebuild", "DeleteProject")
def delete_project(params: Params) -> None:
    _PROJECTS.pop(_project(params["name"])["name"])


@operation("codebuild", "BatchGetProjects")
def batch_get_projects(params: Params) -> Params:
    found = [_PROJECTS.get(name.rpartition("/")[2]) for name in params["names"]]
    missing = [name for name, project in zip(params["names"], found, strict=True) if project is None]
    return {"projects": [project for project in found if project is not None], "projectsNotFound": missing}


def _parameters(name: str, props: Params) -> Params:
    tags = [{"key": tag["Key"], "value": tag["Value"]} for tag in shapes.tag_list(props.get("Tags"))]
    own = {key: value for key, value in props.items() if key != "Tags"}
    sent: Params = shapes.to_api("codebuild", "CreateProjectInput", {**own, "Name": name})
    return {**sent, "tags": tags}


def _create(name: str, props: Params) -> Created:
    project = call("codebuild", "CreateProject", _parameters(props.get("Name", name), props))["project"]
    return project["name"], {"Arn": project["arn"]}


# What UpdateProject needs to be sent to clear a property that a template no longer sets.
_CLEARED = {
    "Cache": {"type": "NO_CACHE"},
    "ConcurrentBuildLimit": -1,
    "Description": "",
    "LogsConfig": {},
    "QueuedTimeoutInMinutes": 480,
    "TimeoutInMinutes": 60,
    "VpcConfig": {},
}


def _update(name: str, old: Params, new: Params) -> dict[str, Any]:
    dropped = [key for key in _CLEARED if key in old and key not in new]
    cleared = {key[0].lower() + key[1:]: _CLEARED[key] for key in dropped}
    project = call("codebuild", "UpdateProject", {**_parameters(name, new), **cleared})["project"]
    return {"Arn": project["arn"]}


resource(
    "AWS::CodeBuild::Project",
    create=_create,
    update=_update,
    delete=lambda name, _props: call("codebuild", "DeleteProject", {"name": name}),
    properties="Name Description Artifacts Cache ConcurrentBuildLimit EncryptionKey Environment LogsConfig"
    " QueuedTimeoutInMinutes ServiceRole Source Tags TimeoutInMinutes VpcConfig",
    replaces="Name",
    name_length=150,
)
