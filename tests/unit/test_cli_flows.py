"""The commands about flows, against an API that a test writes."""

from __future__ import annotations

import json

from tests.unit.test_cli import Api, api, rolecall

__all__ = ["api"]

VERSIONS = {
    "items": [
        {"versionId": "v2", "number": 2, "createdAt": "2026-11-30T21:40:00Z"},
        {"versionId": "v1", "number": 1, "createdAt": "2026-11-29T21:40:00Z"},
    ]
}
DEPLOYMENTS = {
    "items": [
        {"id": "shop", "variants": [
            {"label": "main", "weight": 9, "targetRoles": ["worker", "gpu"]},
            {"label": "old", "weight": 1, "versionId": "v1"},
        ]}
    ]
}  # fmt: skip
ROLES = {"roles": {"gpu": {"eligible": False, "fault": "missing_handler"}, "worker": {"eligible": True}}}


def offer(api: Api, **flow: object) -> None:
    api.answers["GET", "/api/v1/flows/mail"] = {"flowId": "mail", "title": "Mail", "versions": 2} | flow
    api.answers["GET", "/api/v1/flows/mail/versions"] = VERSIONS
    api.answers["GET", "/api/v1/flows/mail/deployments"] = DEPLOYMENTS
    api.answers["GET", "/api/v1/flows/mail/roles"] = ROLES


def test_flow_shows_versions_users_and_roles(api: Api) -> None:
    offer(api, publishedVersionId="v1")
    result = rolecall("flow", "mail", api=api)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "mail: Mail, 2 versions",
        "",
        "VERSION  NUMBER  PUBLISHED  CREATED",
        "v2       2       no         2026-11-30T21:40:00Z",
        "v1       1       yes        2026-11-29T21:40:00Z",
        "",
        "DEPLOYMENT  VARIANT  VERSION    WEIGHT  ROLES",
        "shop        main     published  9       worker, gpu",
        "shop        old      v1         1       any",
        "",
        "ROLE    CAN RUN IT  WHY NOT",
        "gpu     no          missing_handler",
        "worker  yes         -",
    ]


def test_a_flow_without_a_published_version_has_no_roles_to_ask_about(api: Api) -> None:
    offer(api)
    result = rolecall("flow", "mail", "--json", api=api)
    assert json.loads(result.stdout)["roles"] == {}
    assert all("/roles" not in path for _, path, _ in api.asked)


def test_diff_shows_one_line_for_each_change(api: Api) -> None:
    api.answers["GET", "/api/v1/flows/mail/versions/v1/diff/v2"] = {
        "changes": [
            {"at": "/flows/mail/nodes/a/settings/text", "change": "changed", "before": "Hi", "after": None},
            {"at": "/flows/mail/nodes/b", "change": "added", "after": {"kind": "terminal"}},
            {"at": "/flows/mail/edges/0", "change": "removed", "before": {"from": "a", "to": "c"}},
            {"at": "/flows/mail/edges", "change": "moved"},
        ]
    }
    result = rolecall("diff", "mail", "v1", "v2", api=api)
    assert result.stdout.splitlines() == [
        '~ /flows/mail/nodes/a/settings/text: "Hi" -> null',
        '+ /flows/mail/nodes/b: {"kind": "terminal"}',
        '- /flows/mail/edges/0: {"from": "a", "to": "c"}',
        "> /flows/mail/edges",
    ]
