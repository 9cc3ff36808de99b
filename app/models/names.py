"""The grammars of roles and ids, and the one place that words their refusal."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

ROLE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
IDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

ROLE_RULE = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit, for example 'gpu-worker'"
IDENT_RULE = "1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with a letter or digit, for example 'checkout'"

DISPATCHER = "dispatcher"
ADMIN = "admin-api"


def _reserved(role: str) -> bool:
    # Celery and kombu keep keys and queues of these names beside the roles' queues.
    return role.startswith(("celery", "unacked")) or role.endswith(".pidbox")


def check_role(role: str) -> str:
    """Return ``role`` if a variant may name it.

    Raises:
        ValueError: it breaks the grammar or is reserved; the text has the rule.
    """
    if check_service_role(role) == DISPATCHER:
        raise ValueError(f"{role!r} is reserved: dispatchers run no flows")
    return role


def check_service_role(role: str) -> str:
    """Return ``role`` if a process may answer for it; as :func:`check_role`, but ``dispatcher`` is allowed."""
    if not ROLE.fullmatch(role):
        raise ValueError(f"{_shorten(role)} is not a role: it must be {ROLE_RULE}")
    if _reserved(role):
        raise ValueError(
            f"{role!r} is reserved: names beginning with celery or unacked or ending in .pidbox are Celery's"
        )
    return role


def check_ident(value: str) -> str:
    """Return ``value`` if it may be the id of a flow, deployment or version.

    Raises:
        ValueError: it breaks the grammar; the text has the rule.
    """
    if not IDENT.fullmatch(value):
        raise ValueError(f"{_shorten(value)} is not an id: it must be {IDENT_RULE}")
    return value


def _shorten(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:77] + "...")


Role = Annotated[str, AfterValidator(check_role)]
ServiceRole = Annotated[str, AfterValidator(check_service_role)]
Ident = Annotated[str, AfterValidator(check_ident)]
