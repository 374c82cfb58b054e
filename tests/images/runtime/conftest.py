"""A local S3 and SQS over HTTP for the runtime's unit tests, moto's server, one for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer


@pytest.fixture(scope="session")
def local_aws() -> Iterator[str]:
    """Endpoint URL. Over HTTP since answers then have what S3's have: a Date header, for one."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
