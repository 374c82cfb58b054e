"""Run the embedded AWS on the loopback interface.

Usage: python -m infra.local.emulator --port N [--account A] [--region R]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys

LOOPBACK = "127.0.0.1"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.emulator", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--account", default="123456789012")
    parser.add_argument("--region", default="us-west-2")
    options = parser.parse_args()
    # ministack reads its settings from the environment while it is imported.
    os.environ |= {
        "BIND_HOST": LOOPBACK,
        "GATEWAY_PORT": str(options.port),
        "MINISTACK_HOST": LOOPBACK,
        "MINISTACK_ACCOUNT_ID": options.account,
        "MINISTACK_REGION": options.region,
        "EKS_BASE_PORT": str(_free_port()),
    }
    from . import guard

    try:
        guard.check()
    except guard.UnsuitableMinistack as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    asyncio.run(_serve(options.port))
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def _serve(port: int) -> None:
    from hypercorn.asyncio import serve  # type: ignore[import-not-found]
    from hypercorn.config import Config  # type: ignore[import-not-found]

    from . import conditions, control, exports, gateway, lifecycle, s3, services

    assert services  # imported for what its modules register
    gateway.install()
    conditions.install()
    exports.install()
    lifecycle.install()
    s3.install()
    config = Config()
    config.bind = [f"{LOOPBACK}:{port}"]
    config.keep_alive_timeout = 75
    await serve(control.application(), config)


if __name__ == "__main__":
    sys.exit(main())
