"""`image check`: the last step of every Dockerfile."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from moerl_runtime import train_script
from moerl_runtime.image.capabilities import CAPABILITIES_FILE, read
from moerl_runtime.image.checks import check_image
from moerl_runtime.image.observed import observe, programs
from moerl_runtime.preflight.check import document, exit_code

EPILOG = """exit codes: 0 the image is what its arguments say, 1 it is not, 2 wrong input
output: one line a check, then one line of JSON

example:
  python -m moerl_runtime image check --stack efa-gda
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "image",
        help="static checks at the end of an image build",
        epilog=EPILOG,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="hold the image against the arguments that it was built with",
        description="Holds this image against the arguments that it was built with. Needs no GPU and no driver.",
        epilog=EPILOG,
    )
    check.add_argument("--stack", required=True, help="software stack of the Dockerfile")
    check.add_argument(
        "--capabilities",
        type=Path,
        default=Path(CAPABILITIES_FILE),
        help="document of the build (default: %(default)s)",
    )
    check.set_defaults(handler=_check)


def _check(arguments: argparse.Namespace) -> int:
    wanted = read(arguments.capabilities, stack=arguments.stack)
    seen = observe(
        wanted,
        run=programs(arguments.variables),
        library_path=arguments.variables.get("LD_LIBRARY_PATH", ""),
        train_script=arguments.variables.get(train_script.VARIABLE),
    )
    checks = check_image(wanted, seen)
    for check in checks:
        print(check.line())
    code = exit_code(checks)
    print(json.dumps({"stack": wanted.stack, "verdict": "failed" if code else "ok", "checks": document(checks)}))
    return code
