"""FlowDSL 1.0.0: reading documents, checking them, compiling their flows. ``docs/flowdsl.md`` lists every field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from app.flowdsl.compiler import compile_flow, flow_names
from app.flowdsl.plan import Plan
from app.flowdsl.reading import read
from app.models.json_value import canonical

__all__ = ["Plan", "compile_flow", "content_hash", "flow_names", "read"]


def content_hash(document: Mapping[str, Any], flow_name: str) -> str:
    """Return the SHA-256, in hex, of a document and the name of one of its flows; the order of keys does not count."""
    return hashlib.sha256(canonical(document) + b"\0" + flow_name.encode()).hexdigest()
