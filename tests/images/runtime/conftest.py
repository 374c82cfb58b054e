"""A local S3 and SQS over HTTP for the runtime's unit tests, moto's server, one for the whole run; and a place for what killed
processes leave."""

from __future__ import annotations

import tempfile
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


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Below pytest's own, which it removes: programs that a test kills leave their temporary files, and torch its caches."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def at_local_aws(local_aws: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Endpoint URL; programs under test find it as they would find any: in their environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", local_aws)
    return local_aws
