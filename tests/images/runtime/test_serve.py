"""The small server: one address and no other, bounded bodies, many requests over one connection."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest
import urllib3

from moerl_runtime.faults import InputFault
from moerl_runtime.serve import BODY_BYTES_MAX, Answer, Request, address, serving


def echo(request: Request) -> Answer:
    if request.path != "/echo":
        return Answer(status=404)
    return Answer(body=f"{request.method} {request.query} {request.body.decode()}".encode(), content_type="text/plain")


def test_requests_reach_the_handler_and_answers_come_back() -> None:
    with serving("127.0.0.1:0", echo) as url, urllib3.PoolManager() as pool:
        answer = pool.request("PUT", f"{url}/echo?a=1", body=b"text")
        assert (answer.status, answer.data, answer.headers["Content-Type"]) == (200, b"PUT a=1 text", "text/plain")
        assert pool.request("GET", f"{url}/nothing").status == 404
        assert [pool.request("GET", f"{url}/echo").status for _ in range(3)] == [200, 200, 200]


def test_nothing_answers_after_the_block() -> None:
    with serving("127.0.0.1:0", echo) as url:
        port = urlsplit(url).port
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()


@pytest.mark.parametrize(("length", "status"), [(str(BODY_BYTES_MAX + 1), 413), ("-1", 400), ("ten", 400)])
def test_a_body_without_a_sound_length_is_refused_unread(length: str, status: int) -> None:
    with serving("127.0.0.1:0", echo) as url:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=5)
        connection.putrequest("POST", "/echo")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize(
    "listen",
    [
        "0.0.0.0:80",
        "[::]:80",
        ":::80",
        ":80",
        "*:80",
        "10.0.0.1",
        "10.0.0.1:x",
        "h:70000",
        "0:80",
        "0x0:80",
        "00.0:80",
        "h:²",
    ],
)
def test_no_address_means_every_interface(listen: str) -> None:
    with pytest.raises(InputFault, match="--listen"):
        address(listen)


def test_an_address_is_host_and_port() -> None:
    assert address("10.0.0.1:8090") == ("10.0.0.1", 8090)
    assert address("[fd00::1]:8090") == ("fd00::1", 8090)
