"""core/http-request: what it answers, and where it does not go."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Thread
from typing import Any

import pytest

from app.nodes import HandlerError
from app.nodes.builtin import http_request
from app.nodes.http import is_public
from app.nodes.testing import try_handler

HERE = ["127.0.0.0/8"]


class Server(BaseHTTPRequestHandler):
    """Answers by path; what it was asked is in the answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, _, rest = self.path.lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        headers: dict[str, str] = {"content-type": "application/json"}
        status, answer = (
            200,
            json.dumps({"method": self.command, "path": self.path, "body": body, "headers": dict(self.headers)}),
        )
        if kind == "status":
            status = int(rest)
        elif kind == "text":
            headers["content-type"], answer = "text/plain; charset=utf-8", "größer"
        elif kind == "big":
            answer = "x" * 5_000
        elif kind == "broken":
            answer = "{"
        elif kind == "to":
            status, headers["location"] = 302, rest
        self.send_response(status)
        for name, value in (headers | {"content-length": str(len(answer.encode()))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.encode())

    do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None: ...


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is what some tests are about."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


@contextmanager
def serving() -> Iterator[str]:
    httpd = Listener(("127.0.0.1", 0), Server)
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def ask(url: str, input: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    answer: dict[str, Any] = try_handler(
        http_request, input or {}, settings={"url": url, "allow": HERE} | settings
    ).output["response"]
    return answer


def test_a_json_answer_becomes_a_value(server: str) -> None:
    tried = try_handler(
        http_request, {"id": 7}, settings={"url": server + "/item/{{ id }}", "allow": HERE, "outputKey": "got"}
    )
    assert tried.output["id"] == 7
    assert tried.output["got"]["status"] == 200
    assert tried.output["got"]["body"]["path"] == "/item/7"


def test_other_answers_are_text(server: str) -> None:
    assert ask(server + "/text")["body"] == "größer"


def test_a_post_sends_the_packet_or_a_body(server: str) -> None:
    sent = ask(server, {"n": 1}, method="POST", headers={"X-Who": "{{ n }}"})["body"]
    assert (sent["method"], json.loads(sent["body"]), sent["headers"]["X-Who"]) == ("POST", {"n": 1}, "1")
    assert ask(server, {"n": 1}, method="PUT", body="n={{ n }}")["body"]["body"] == "n=1"


@pytest.mark.parametrize(
    ("status", "code"), [(404, "PERMANENT"), (408, "TIMEOUT"), (429, "RATE_LIMITED"), (503, "TEMPORARY")]
)
def test_a_bad_status_is_a_failure_with_a_code(server: str, status: int, code: str) -> None:
    with pytest.raises(HandlerError, match=str(status)) as caught:
        ask(f"{server}/status/{status}")
    assert caught.value.code == code
    assert ask(f"{server}/status/{status}", failOnStatus=False)["status"] == status


def test_an_answer_over_the_cap_is_refused(server: str) -> None:
    with pytest.raises(HandlerError, match="more than 1,000 bytes"):
        ask(server + "/big", maxBytes=1_000)


def test_a_broken_answer_is_a_failure(server: str) -> None:
    with pytest.raises(HandlerError, match="no JSON"):
        ask(server + "/broken")


def test_redirects_are_followed_a_few_times(server: str) -> None:
    assert ask(f"{server}/to//end", method="POST")["body"]["method"] == "GET"
    with pytest.raises(HandlerError, match="more than 5 redirects"):
        ask(server + "/to/" * 7 + "end")


def test_a_redirect_to_a_forbidden_address_is_not_followed(server: str) -> None:
    with pytest.raises(HandlerError, match=r"is at 169\.254\.169\.254, which is not public"):
        ask(f"{server}/to/http://169.254.169.254/latest/meta-data")
    with pytest.raises(HandlerError, match="no http or https URL"):
        ask(f"{server}/to/file:///etc/passwd")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/",
        "http://[fd00:ec2::254]/",
    ],
)
def test_addresses_that_are_not_public_are_refused_however_they_are_written(url: str) -> None:
    with pytest.raises(HandlerError, match=r"not public|cannot be looked up"):
        ask(url, allow=[])


@pytest.mark.parametrize("url", ["ftp://example.com/", "/path", "", "http://", "http://exa mple/", "http://x:99999/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(HandlerError) as caught:
        ask(url)
    assert caught.value.code in ("VALIDATION", "NETWORK_ERROR")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("100.64.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("::ffff:10.0.0.1", False),
        ("168.63.129.16", False),
    ],
)
def test_public_means_the_open_internet(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) is public


def test_a_name_with_one_forbidden_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    with pytest.raises(HandlerError, match=r"at 10\.0\.0\.1"):
        ask("http://rebinding.example/", allow=[])


def test_a_server_that_is_away_is_a_network_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(HandlerError) as caught:
            ask(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert caught.value.code == "NETWORK_ERROR"
