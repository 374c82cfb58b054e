#!/usr/bin/env python3
"""CDK entry: `npx cdk deploy --all -c environment=NAME`. Wiring only.

Context: `environment` (a name under environments/ or a path), `pins` (a lock file other than the one beside it),
`validate=true` (CDK's built-in CloudFormation checks, about five seconds).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from infra.interrupt import interruptible
from infra.node import use_pinned_node

ROOT = Path(__file__).resolve().parent


def main() -> int:
    use_pinned_node(os.environ)
    # jsii starts Node when aws_cdk is imported, so these come after.
    from infra.config.faults import EnvironmentFault, addressed
    from infra.config.loader import load_named
    from infra.config.plan import build_plan
    from infra.rendered_faults import rendered_faults
    from infra.stacks.deploy_gate import refusals, show_warnings
    from infra.stacks.platform import build_app, build_platform

    context = json.loads(os.environ.get("CDK_CONTEXT_JSON", "{}"))
    name = context.get("environment")
    if not name:
        print("Say which environment: npx cdk deploy --all -c environment=NAME", file=sys.stderr)
        return 2
    try:
        lock = Path(context["pins"]) if context.get("pins") else None
        loaded = load_named(name, ROOT, lock=lock, further=rendered_faults)
    except EnvironmentFault as fault:
        print(fault, file=sys.stderr)
        return 2
    plan = build_plan(loaded.environment, loaded.pins, loaded.warnings)
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", "")).hostname
    refused = refusals(plan, embedded=endpoint in {"127.0.0.1", "localhost", "::1"})
    if refused:
        print(addressed("\n".join(refused), name), file=sys.stderr)
        return 2
    app = build_app(validate=str(context.get("validate", "")).lower() == "true")
    build_platform(app, plan)
    show_warnings(app, plan)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(interruptible(main))
