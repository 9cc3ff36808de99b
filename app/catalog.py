"""What there is to run: importing and publishing flows, deployments, and the versions and plans that runs need."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from app.clock import Clock, to_rfc3339
from app.errors import BadRequest, Conflict, Fault, InvalidDocument, NotFound, RevConflict
from app.flowdsl import Plan, compile_flow, content_hash, flow_names, read
from app.flowdsl.diff import Change, diff
from app.models.base import parse
from app.models.deployment import Deployment, DeploymentIn
from app.models.flow import Flow, FlowVersion
from app.models.json_value import check_json
from app.models.names import check_ident
from app.nodes.registry import HandlerRegistry
from app.ports import Page, Store
from app.resolver import VersionRef
from app.roles import Needs

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

REFS_KEPT: Final = 10_000
PLANS_KEPT: Final = 200
"""A plan is as large as its document; a worker executes few different versions at a time."""


@dataclass(frozen=True, slots=True)
class ImportedFlow:
    """What became of one flow of an imported document."""

    flow_id: str
    version_id: str
    number: int
    published: bool
    """Whether this version is the published one now."""
    changed: bool
    """Whether the import made the version or published it."""
    warnings: tuple[Fault, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "flowId": self.flow_id,
            "versionId": self.version_id,
            "number": self.number,
            "published": self.published,
            "warnings": [warning.to_wire() for warning in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What became of an imported document: 201 if ``changed``, else 200."""

    flows: tuple[ImportedFlow, ...]

    @property
    def changed(self) -> bool:
        return any(flow.changed for flow in self.flows)

    def to_wire(self) -> dict[str, Any]:
        return {"flows": [flow.to_wire() for flow in self.flows]}


class Catalog:
    """Flows, versions and deployments, as callers and workers ask for them. Thread-safe; one a process.

    What can never change is kept: the needs and the plan of a version. Deployments and published versions are read
    from the store each time.
    """

    def __init__(self, store: Store, clock: Clock, handlers: HandlerRegistry) -> None:
        self._store = store
        self._clock = clock
        self._handlers = handlers
        self._refs: _Kept[tuple[str, str], VersionRef] = _Kept(REFS_KEPT)
        self._plans: _Kept[tuple[str, str], Plan] = _Kept(PLANS_KEPT)
        self._changes = 0
        self._changing = threading.Lock()

    @property
    def changes(self) -> int:
        """How often this process has changed deployments, versions or what is published; counted when it is done.

        Whoever keeps an answer compares the number from before the question with the number of now.
        """
        return self._changes

    @contextmanager
    def _change(self) -> Iterator[None]:
        try:
            yield
        finally:
            # Also after an error: a server that did not answer may have done it.
            with self._changing:
                self._changes += 1

    # --- flows ---------------------------------------------------------------------------------------------------

    def import_document(
        self,
        raw: bytes,
        *,
        media_type: str | None = None,
        flow: str | None = None,
        publish: bool = False,
        announced: frozenset[str] = frozenset(),
    ) -> ImportResult:
        """Save the flows of a FlowDSL document, or only ``flow``; nothing is saved unless every one of them is sound.

        ``announced`` are the handlers of living workers: what they have needs no warning, though this process lacks it.

        Raises:
            InvalidDocument: with every fault of every flow that was to be imported.
        """
        document = read(raw, media_type)
        names = _chosen(flow_names(document), flow)
        plans = self._compile_all(document, names)
        versions = {name: self._save(document, name, plan) for name, plan in plans.items()}
        before = self._store.get_flows(names)
        imported = []
        for name, (version, created) in versions.items():
            was_published = name in before and before[name].published_version_id == version.version_id
            if publish and not was_published:
                self.publish(name, version.version_id)
            imported.append(
                ImportedFlow(
                    flow_id=name,
                    version_id=version.version_id,
                    number=version.number,
                    published=publish or was_published,
                    changed=created or (publish and not was_published),
                    warnings=tuple(plans[name].warnings(self._handlers.refs | announced)),
                )
            )
        return ImportResult(tuple(imported))

    def _compile_all(self, document: dict[str, Any], names: list[str]) -> dict[str, Plan]:
        plans: dict[str, Plan] = {}
        faults: list[Fault] = []
        warnings: list[Fault] = []
        for name in names:
            try:
                plans[name] = compile_flow(document, name, handlers=self._handlers)
            except InvalidDocument as error:
                faults += error.faults
                warnings += error.warnings
        if faults:
            # Flows share components, and each of them finds the faults there.
            raise InvalidDocument.of(faults, warnings)
        return plans

    def _save(self, document: dict[str, Any], name: str, plan: Plan) -> tuple[FlowVersion, bool]:
        with self._change():
            return self._store.save_version(
                name,
                flow_name=name,
                document=document,
                content_hash=content_hash(document, name),
                needs=plan.needs,
                title=plan.title,
                now=self._now(),
            )

    def publish(self, flow_id: str, version_id: str) -> Flow:
        """Make a version the published one: runs that start from now on use it.

        Raises:
            NotFound: ``flow_not_found`` or ``version_not_found``.
        """
        with self._change():
            return self._store.publish(flow_id, version_id, now=self._now())

    def flow(self, flow_id: str) -> Flow:
        """Return a flow.

        Raises:
            NotFound: ``flow_not_found``.
        """
        flow = self._store.get_flow(flow_id)
        if flow is None:
            raise NotFound.of("flow", flow_id)
        return flow

    def flows(self, *, after: str | None = None, limit: int = 100) -> Page[Flow]:
        """List flows by id."""
        return self._store.list_flows(after=after, limit=limit)

    def version(self, flow_id: str, version_id: str) -> FlowVersion:
        """Return a version.

        Raises:
            NotFound: ``version_not_found``.
        """
        version = self._store.get_version(flow_id, version_id)
        if version is None:
            raise NotFound.of("version", f"{flow_id}/{version_id}")
        return version

    def versions(self, flow_id: str, *, after: str | None = None, limit: int = 100) -> Page[FlowVersion]:
        """List a flow's versions, newest first.

        Raises:
            NotFound: ``flow_not_found``.
        """
        page = self._store.list_versions(flow_id, after=after, limit=limit)
        if not page.items:
            self.flow(flow_id)
        return page

    def version_to_run(self, flow_id: str, version_id: str | None = None) -> FlowVersion:
        """Return a version, or the one that is published.

        Raises:
            NotFound: ``flow_not_found`` or ``version_not_found``.
            Conflict: ``flow_not_published``: none was named and none is published.
        """
        if version_id is None:
            version_id = self.flow(flow_id).published_version_id
            if version_id is None:
                raise Conflict(f"flow {flow_id!r} has no published version; name one", code="flow_not_published")
        return self.version(flow_id, version_id)

    def compare(self, flow_id: str, before: str, after: str) -> tuple[FlowVersion, FlowVersion, list[Change]]:
        """Return two versions of a flow, and what is different in the second.

        Raises:
            NotFound: ``version_not_found``.
        """
        old, new = self.version(flow_id, before), self.version(flow_id, after)
        return old, new, diff(old.document, new.document, new.flow_name)

    def plan(self, flow_id: str, version_id: str) -> Plan:
        """Return a version, ready to execute.

        Raises:
            NotFound: ``version_not_found``.
            InvalidDocument: this process's handlers refuse what was sound when it was imported.
        """
        return self._plans.get((flow_id, version_id), lambda: self._compile(self.version(flow_id, version_id)))

    def _compile(self, version: FlowVersion) -> Plan:
        return compile_flow(version.document, version.flow_name, handlers=self._handlers)

    # --- deployments ---------------------------------------------------------------------------------------------

    def put_deployment(self, ident: str, body: Mapping[str, Any]) -> tuple[Deployment, bool]:
        """Create a deployment, or replace the one whose ``rev`` the body has; return it and whether it is new.

        Its first rev is 1, unless the id belonged to a deployment that was deleted: then revs count on, so that
        nobody who read the old one can overwrite the new one.

        Raises:
            BadRequest: with every fault of ``body``.
            RevConflict: there is one, and the body has no ``rev`` or another.
        """
        wanted = _read_deployment(ident, body)
        # In this order: a deployment that somebody creates in between is then either seen or in the way of the write.
        seen = self._store.deployment_rev(ident)
        current = self._store.get_deployment(ident)
        found = None if current is None else current.rev
        if wanted.rev != found:
            raise RevConflict(ident, current=found, given=wanted.rev)
        now = self._now()
        deployment = Deployment.create(
            ident,
            wanted,
            rev=1 + (seen if current is None else current.rev),
            created_at=now if current is None else current.created_at,
            updated_at=now,
        )
        with self._change():
            self._store.put_deployment(deployment)
        return deployment, current is None

    def deployment(self, ident: str) -> Deployment:
        """Return a deployment.

        Raises:
            NotFound: ``deployment_not_found``.
        """
        deployment = self._store.get_deployment(ident)
        if deployment is None:
            raise NotFound.of("deployment", ident)
        return deployment

    def deployments(self, *, flow: str | None = None, after: str | None = None, limit: int = 100) -> Page[Deployment]:
        """List deployments by id, or those of them that use ``flow``."""
        return self._store.list_deployments(flow=flow, after=after, limit=limit)

    def delete_deployment(self, ident: str) -> None:
        """Delete a deployment; its runs stay.

        Raises:
            NotFound: ``deployment_not_found``.
        """
        with self._change():
            if not self._store.delete_deployment(ident):
                raise NotFound.of("deployment", ident)

    def versions_for(self, deployment: Deployment) -> dict[str, VersionRef | None]:
        """Return by label the version that each variant would run now: its own, else the published one of its flow.

        ``None`` where there is none. Costs one read for what is published, and one for each version seen first.
        """
        unpinned = {variant.flow_id for variant in deployment.variants if variant.version_id is None}
        flows = self._store.get_flows(unpinned) if unpinned else {}
        refs: dict[str, VersionRef | None] = {}
        for variant in deployment.variants:
            version_id = variant.version_id
            if version_id is None and variant.flow_id in flows:
                version_id = flows[variant.flow_id].published_version_id
            refs[variant.label] = None if version_id is None else self._ref(variant.flow_id, version_id)
        return refs

    def needs(self, flow_id: str, version_id: str) -> Needs:
        """Return the handlers that a version needs.

        Raises:
            NotFound: ``version_not_found``.
        """
        return self._refs.get((flow_id, version_id), lambda: _ref_of(self.version(flow_id, version_id))).needs

    def _ref(self, flow_id: str, version_id: str) -> VersionRef | None:
        try:
            return self._refs.get((flow_id, version_id), lambda: _ref_of(self.version(flow_id, version_id)))
        except NotFound:
            return None

    def _now(self) -> str:
        return to_rfc3339(self._clock())


def _chosen(names: list[str], flow: str | None) -> list[str]:
    if flow is None:
        return names
    if flow not in names:
        raise InvalidDocument.of([Fault("/flows", f"has no flow {flow!r}", f"name one of {', '.join(names)}")])
    return [flow]


def _read_deployment(ident: str, body: Mapping[str, Any]) -> DeploymentIn:
    try:
        check_ident(ident)
    except ValueError as error:
        raise BadRequest.of([Fault("/id", str(error))]) from None
    check_json(body)
    wanted = parse(DeploymentIn, body)
    if wanted.id not in (None, ident):
        raise BadRequest.of([Fault("/id", f"is {wanted.id!r}, and the deployment is called {ident!r}", "leave it out")])
    return wanted


def _ref_of(version: FlowVersion) -> VersionRef:
    return VersionRef(version.flow_id, version.version_id, version.needs)


class _Kept(Generic[K, V]):
    """Keeps the values that were asked for last. What several threads miss at once may be made several times."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            value = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
