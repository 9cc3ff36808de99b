"""``core/http-request``: one call of an HTTP API, kept away from addresses that a flow has no business with."""

from __future__ import annotations

import json
import socket
import ssl
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Final, Literal
from urllib.parse import urljoin

import httpx
from pydantic import Field, field_validator

from app.nodes.api import Code, HandlerError, HandlerSettings, handler
from app.nodes.step import Step
from app.nodes.template import TemplateText

MAX_REDIRECTS: Final = 5
MAX_BYTES: Final = 10_000_000
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
NAT64: Final = IPv6Network("64:ff9b::/96")
# Cloud metadata services live on link-local addresses, except for this one.
METADATA: Final = frozenset({ip_address("fd00:ec2::254"), ip_address("168.63.129.16")})

Address = IPv4Address | IPv6Address


class HttpSettings(HandlerSettings):
    url: TemplateText
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, TemplateText] = Field(default_factory=dict)
    body: TemplateText | None = None
    """Text to send; absent: with POST, PUT and PATCH the packet as JSON."""
    timeout_ms: Annotated[int, Field(ge=1, le=120_000)] = 10_000
    max_bytes: Annotated[int, Field(ge=0, le=MAX_BYTES)] = 1_000_000
    output_key: Annotated[str, Field(min_length=1)] = "response"
    allow: list[str] = Field(default_factory=list)
    """Addresses or networks that are allowed though they are private, such as ``10.1.0.0/16``."""
    fail_on_status: bool = True
    """Whether an answer of 400 and above fails the node."""

    @field_validator("allow")
    @classmethod
    def _networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network, strict=False)
        return networks


@handler("core/http-request", settings=HttpSettings)
def http_request(step: Step) -> dict[str, Any]:
    """Add ``{"status", "headers", "body"}`` under ``outputKey``; a JSON answer becomes a value, another text.

    Every name is looked up once and the connection goes to the address that was checked, so that neither a redirect nor
    a second answer of a name server leads to a loopback, link-local, private or metadata address.
    """
    if not isinstance(step.input, dict):
        raise HandlerError("the packet is no object, so nothing can be added to it", code=Code.VALIDATION)
    settings: HttpSettings = step.settings
    try:
        with httpx.Client(trust_env=False, timeout=settings.timeout_ms / 1000, verify=_trusted()) as client:
            answer = _follow(client, step, settings)
    except httpx.TimeoutException as error:
        raise HandlerError(f"no answer in time: {error}", code=Code.TIMEOUT) from error
    except httpx.InvalidURL as error:
        raise HandlerError(f"no URL: {error}", code=Code.VALIDATION) from error
    except httpx.HTTPError as error:
        raise HandlerError(f"{type(error).__name__}: {error}", code=Code.NETWORK_ERROR) from error
    if settings.fail_on_status and answer["status"] >= 400:
        raise HandlerError(f"the server answered {answer['status']}", code=_code_of(answer["status"]))
    return step.input | {settings.output_key: answer}


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """Return the certificate authorities that are trusted; reading them takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=False)


def _follow(client: httpx.Client, step: Step, settings: HttpSettings) -> dict[str, Any]:
    until = step.now() + settings.timeout_ms / 1000
    url = settings.url.render(step.input).strip()
    method: str = settings.method
    headers = {name: value.render(step.input) for name, value in settings.headers.items()}
    content = _content(step, settings)
    for _ in range(MAX_REDIRECTS + 1):
        request = _request(client, method, httpx.URL(url), headers, content, settings)
        response = client.send(request, stream=True)
        try:
            location = response.headers.get("location")
            if response.status_code not in REDIRECTS or location is None:
                return _read(response, step, settings, until)
        finally:
            response.close()
        before, url = httpx.URL(url), urljoin(url, location)
        if (httpx.URL(url).host, httpx.URL(url).scheme) != (before.host, before.scheme):
            # What was meant for one server is not for another.
            headers = {
                name: value for name, value in headers.items() if name.lower() not in ("authorization", "cookie")
            }
        if response.status_code == 303 or (response.status_code in (301, 302) and method == "POST"):
            method, content = "GET", None
        if step.now() >= until:
            raise HandlerError("no answer in time: too many redirects", code=Code.TIMEOUT)
    raise HandlerError(f"more than {MAX_REDIRECTS} redirects", code=Code.PERMANENT)


def _content(step: Step, settings: HttpSettings) -> bytes | None:
    if settings.body is not None:
        return settings.body.render(step.input).encode()
    return json.dumps(step.input).encode() if settings.method in ("POST", "PUT", "PATCH") else None


def _request(
    client: httpx.Client, method: str, url: httpx.URL, headers: dict[str, str], content: bytes | None,
    settings: HttpSettings,
) -> httpx.Request:  # fmt: skip
    """Build a request that goes to an address that was checked, and still names the host it is meant for."""
    if url.scheme not in ("http", "https") or not url.host:
        raise HandlerError(f"{str(url)[:200]!r} is no http or https URL", code=Code.VALIDATION)
    address = _address(url.host, url.port or (443 if url.scheme == "https" else 80), settings.allow)
    default_type = {} if settings.body is not None or content is None else {"content-type": "application/json"}
    return client.build_request(
        method,
        url.copy_with(host=address),
        headers={**default_type, **headers, "host": url.netloc.decode("ascii")},
        content=content,
        extensions={"sni_hostname": url.host} if url.scheme == "https" else {},
    )


def _address(host: str, port: int, allow: list[str]) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HandlerError(f"{host!r} cannot be looked up: {error}", code=Code.NETWORK_ERROR) from error
    addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    networks = [ip_network(network, strict=False) for network in allow]
    for address in addresses:
        if not any(address in network for network in networks) and not is_public(address):
            raise HandlerError(
                f"{host!r} is at {address}, which is not public; name it under 'allow' if it is meant",
                code=Code.PERMANENT,
            )
    return str(addresses[0])


def is_public(address: Address) -> bool:
    """Return whether an address is on the open internet, seen through IPv6 wrappings of IPv4 addresses too."""
    if isinstance(address, IPv6Address):
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if wrapped is None and address in NAT64:
            wrapped = IPv4Address(int(address) & 0xFFFF_FFFF)
        if wrapped is not None and not is_public(wrapped):
            return False
    return address.is_global and not address.is_multicast and address not in METADATA


def _read(response: httpx.Response, step: Step, settings: HttpSettings, until: float) -> dict[str, Any]:
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > settings.max_bytes:
            raise HandlerError(f"the answer has more than {settings.max_bytes:,} bytes", code=Code.PERMANENT)
        if step.now() >= until:
            raise HandlerError("no complete answer in time", code=Code.TIMEOUT)
        step.check()
    value: Any = body.decode(response.charset_encoding or "utf-8", errors="replace")
    if "json" in response.headers.get("content-type", ""):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise HandlerError(f"the answer is no JSON: {error}", code=Code.PERMANENT) from error
    return {"status": response.status_code, "headers": dict(response.headers), "body": value}


def _code_of(status: int) -> Code:
    if status == 429:
        return Code.RATE_LIMITED
    if status == 408:
        return Code.TIMEOUT
    return Code.TEMPORARY if status >= 500 else Code.PERMANENT
