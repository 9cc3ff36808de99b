"""The settings of an admin process. Imported before gevent patches the standard library, so it imports little."""

from __future__ import annotations

import os
from collections.abc import Mapping

from app.config import Settings, load_settings
from app.errors import SettingError
from app.models.names import ADMIN


def admin_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; the role is ``admin-api`` unless the environment names another.

    A wrong one ends the process with the reason: this is read when an operator starts something.
    """
    environ = os.environ if environ is None else environ
    try:
        return load_settings({**environ, "SERVICE_ROLE": environ.get("SERVICE_ROLE") or ADMIN})
    except SettingError as error:
        raise SystemExit(f"rolecall: {error}") from None
