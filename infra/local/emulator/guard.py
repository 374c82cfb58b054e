"""Refuses to run on a ministack that this package was not written against: it patches private names."""

from __future__ import annotations

import importlib
import importlib.metadata

PINNED_VERSION = "1.5.33"

# module -> the names that this package reads or replaces there
HOOKS = {
    "ministack.app": ("SERVICE_HANDLERS", "app"),
    "ministack.core.responses": ("get_account_id", "get_region"),
    "ministack.core.router": ("SERVICE_PATTERNS",),
    "ministack.services.cloudformation": ("_exports", "_stacks", "_stack_events"),
    "ministack.services.cloudformation.changesets": ("_add_event", "_deploy_stack_async"),
    "ministack.services.cloudformation.engine": ("_evaluate_conditions", "_resolve_refs"),
    "ministack.services.cloudformation.handlers": ("_add_event", "_deploy_stack_async", "_imported_export_names"),
    "ministack.services.cloudformation.provisioners": (
        "_CUSTOM_NAME_REPLACEMENT",
        "_RESOURCE_HANDLERS",
        "_STACK_TAG_PROPERTY",
        "_delete_resource",
        "_physical_name",
        "_property_recreation",
        "_provision_resource",
        "_replacing_change",
        "_update_resource",
    ),
    "ministack.services.cloudformation.stacks": (
        "_add_event",
        "_delete_resource",
        "_deploy_stack_async",
        "_property_recreation",
        "_provision_resource",
        "_replacing_change",
        "_resolve_stack_outputs",
        "_update_resource",
    ),
    "ministack.services.codebuild": ("_projects",),
    "ministack.services.s3": ("_resolve_sse_write_headers",),
}


class UnsuitableMinistack(RuntimeError):
    """The installed ministack is not the one whose private names this package patches."""


def check() -> None:
    """Raises UnsuitableMinistack with what is wrong and what to install."""
    try:
        found = importlib.metadata.version("ministack")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsuitableMinistack(f"ministack is not installed, this emulator needs {PINNED_VERSION}") from error
    if found != PINNED_VERSION:
        raise UnsuitableMinistack(f"ministack {found} is installed, this emulator needs exactly {PINNED_VERSION}")
    missing = [
        f"{module}.{name}"
        for module, names in HOOKS.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    if missing:
        raise UnsuitableMinistack(f"ministack {found} lacks {', '.join(missing)}: reinstall {PINNED_VERSION}")
