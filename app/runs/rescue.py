"""Seeing to it that every run goes on: lost workers, lost nudges, roles that are dead or full, old age.

Each job looks at what is, does the next right thing, and may be cut off anywhere: the next round does the rest. A pause
of Redis is not a death of all workers, so nothing is taken from anybody in or shortly after a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from app.catalog import Catalog
from app.clock import Monotonic
from app.errors import NotFound, ServerUnavailable
from app.models.role import QueueStats, RegisterSnapshot
from app.models.run import Run, RunError, RunStatus
from app.ports import Dispatcher, Live, Nudge, Register
from app.resolver import choose_role
from app.roles import RoleTable

logger = logging.getLogger(__name__)

PAUSES_MS = (1_000, 5_000, 25_000)
"""How long a run waits after losing its worker for the first, second, ... time."""

MOVE_AFTER_S = 10.0
"""How long a run waits for its role before another role of its variant may have it."""

NUDGE_AGAIN_S = 30.0
"""A run is nudged again at most once in this time, and has waited for so long when its nudge counts as overtaken."""

NUDGE_FIRST_S = 2.0
"""How long a run has waited when its nudge may count as lost. By then the ledger has it: a run that its caller was
told is refused, yet that Redis had stored before it went silent, has been cancelled and is told to nobody."""

OVERTAKEN = 10
"""So many of a role's longest waiting runs are told of again although as many messages as runs are there: a doubled
message for one may stand where the lost one of another is missed."""

BATCH = 200


@dataclass(frozen=True, slots=True)
class RescueRules:
    """What the settings say."""

    max_losses: int
    queue_timeout_s: float
    default_role: str | None


class NextRole:
    """Chooses the role that goes on with a run that has been accepted: one that its variant allows and that can now."""

    def __init__(self, *, live: Live, register: Register, catalog: Catalog, default_role: str | None) -> None:
        self._live = live
        self._register = register
        self._catalog = catalog
        self._default_role = default_role

    def role(self, run: Run, table: RoleTable) -> str | None:
        """Return the role, or ``None`` if no role can."""
        try:
            needs = self._catalog.needs(run.flow_id, run.version_id)
        except NotFound:
            return None
        choice = choose_role(run.target_roles, needs, table, self._default_role, run.target_role)
        return None if choice is None else choice.role

    def now(self, run: Run) -> str | None:
        """Return the role by who is alive at this moment (1 round trip, 2 if several can); ``None``: nobody knows."""
        try:
            snapshot = self._register.snapshot()
            return self.role(run, RoleTable(snapshot, self._live.queues)) if snapshot.known else None
        except ServerUnavailable:
            return None


class Rescue:
    """The jobs. One thread uses an instance.

    Round trips of a round in which nothing is to be done: register 1, expired leases 1, waiting roles 1; if runs wait,
    queues 1, expired 1, and for each role that runs wait for: too old 1, broker 2, due 1.
    """

    def __init__(
        self,
        *,
        live: Live,
        register: Register,
        dispatcher: Dispatcher,
        catalog: Catalog,
        rules: RescueRules,
        monotonic: Monotonic,
    ) -> None:
        self._live = live
        self._register = register
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._rules = rules
        self._next = NextRole(live=live, register=register, catalog=catalog, default_role=rules.default_role)
        self._monotonic = monotonic
        self._nudged = _Lately(NUDGE_AGAIN_S, monotonic)
        self._moved = _Lately(MOVE_AFTER_S, monotonic)

    def round(self) -> None:
        """Do every job once. Who is alive is asked once and holds for the round."""
        snapshot = self._register.snapshot()
        table = RoleTable(snapshot, self._live.queues)
        if snapshot.known and snapshot.at_ms >= snapshot.quiet_until_ms:
            self.break_leases(table)
        roles = self._live.waiting_roles()
        if not roles:
            return
        self.end_overdue(roles)
        queues = self._live.queues(roles)
        if snapshot.known:
            self.move(queues, table, snapshot)
        self.nudge(queues)

    # --- lost workers --------------------------------------------------------------------------------------------

    def break_leases(self, table: RoleTable) -> None:
        """Take runs from workers that have not renewed their lease for the TTL."""
        while run_ids := self._live.expired_leases(BATCH):
            broken = [self._break(run, table) for run in self._each(run_ids)]
            if len(run_ids) < BATCH or not any(broken):
                return

    def _break(self, run: Run, table: RoleTable) -> bool:
        # Where no role is eligible the run waits for its own; `move` looks again as long as it waits.
        role = self._next.role(run, table) or run.target_role
        return break_lease(self._live, run, reason="worker_lost", role=role, max_losses=self._rules.max_losses)

    # --- waiting runs --------------------------------------------------------------------------------------------

    def end_overdue(self, roles: list[str]) -> None:
        """End runs that nobody started in time: by their own ``expiresAt``, or because they have waited too long."""
        for run in self._each(self._live.expired(BATCH)):
            self._fail(run, "expired", "nobody had started it when its expiresAt came")
        timeout_s = self._rules.queue_timeout_s
        for role in roles:
            for run in self._each(self._live.queued(role, BATCH, waited_ms=int(timeout_s * 1000))):
                self._fail(run, "queue_timeout", f"no worker of role {role!r} took it in {timeout_s:g} s")

    def _fail(self, run: Run, code: str, message: str) -> None:
        if self._live.fail_queued(run.run_id, attempt=run.attempt, error=RunError(code, message, run.attempt)):
            logger.warning("run %s has failed in its queue: %s", run.run_id, message)

    def move(self, queues: Mapping[str, QueueStats], table: RoleTable, snapshot: RegisterSnapshot) -> None:
        """Give runs that have waited long to another role that their variant allows and that has a slot free."""
        old = [
            role
            for role, stats in queues.items()
            if stats.oldest_ms is not None and snapshot.at_ms - stats.oldest_ms >= MOVE_AFTER_S * 1000
        ]
        free = {role: table.free(role) for role in table.roles()} if old else {}
        for role in old:
            if any(slots > 0 for name, slots in free.items() if name != role):
                self._move_from(role, table, free)

    def _move_from(self, role: str, table: RoleTable, free: dict[str, int]) -> None:
        for run in self._each(self._live.queued(role, BATCH, waited_ms=int(MOVE_AFTER_S * 1000))):
            target = self._next.role(run, table)
            if target is None or target == role or free.get(target, 0) <= 0:
                continue
            reason = table.fault(role, self._catalog.needs(run.flow_id, run.version_id)) or "saturated"
            if (reason == "saturated" and free[role] >= 0) or not self._moved.first(run.run_id):
                # All that wait for the role find a slot there: it is on its way.
                continue
            moved = self._live.move(run.run_id, attempt=run.attempt, role=target, reason=reason)
            if moved is not None:
                free[target] -= 1
                logger.info("run %s goes from role %r to %r: %s", run.run_id, role, target, reason)
                self._send(moved)

    def nudge(self, queues: Mapping[str, QueueStats]) -> None:
        """Tell roles again of runs that wait although no message of theirs is left.

        Which message was lost cannot be seen; how many can. So the longest waiting are told of again, as many as
        messages are missing; a doubled message does nothing.
        """
        ready = self._dispatcher.depth(list(queues))
        for role, stats in queues.items():
            due = self._live.queued(role, BATCH)
            # A run in its pause has no message and needs none; past the first `BATCH` they are not told apart.
            missing = max(0, (len(due) if len(due) < BATCH else stats.queued) - ready[role])
            overtaken = self._live.queued(role, OVERTAKEN, waited_ms=int(NUDGE_AGAIN_S * 1000))
            lost = self._live.queued(role, missing, waited_ms=int(NUDGE_FIRST_S * 1000)) if missing else []
            told = [run_id for run_id in dict.fromkeys((*lost, *overtaken)) if self._nudged.first(run_id)]
            for run in self._each(told):
                self._send(run)

    # --- shared --------------------------------------------------------------------------------------------------

    def _each(self, run_ids: list[str]) -> Iterator[Run]:
        for run_id in run_ids:
            run = self._live.get(run_id)
            if run is not None and not run.ended:
                yield run

    def _send(self, run: Run) -> None:
        if run.status is RunStatus.QUEUED:
            send_nudge(self._dispatcher, run)


def break_lease(
    live: Live, run: Run, *, reason: str, role: str | None, max_losses: int, token: str | None = None
) -> bool:
    """Take a run from its lost worker, with the pause that its losses ask for; see :meth:`app.ports.Live.break_lease`.

    Its nudge is housekeeping's, once the pause is over.
    """
    changed = live.break_lease(
        run.run_id,
        attempt=run.attempt,
        reason=reason,
        role=role,
        pause_ms=PAUSES_MS[min(run.losses, len(PAUSES_MS) - 1)],
        max_losses=max_losses,
        token=token,
    )
    if changed is not None:
        node = "" if run.worker is None else f" {run.worker.node}"
        logger.warning("run %s has lost its worker%s (%s) and is %s", run.run_id, node, reason, changed.status.value)
    return changed is not None


def lose(live: Live, run_id: str, token: str, *, reason: str, max_losses: int) -> None:
    """Break a lease whose process is known to be gone, without waiting for it to expire.

    While Redis is away that is left to :class:`Rescue`.
    """
    try:
        run = live.get(run_id)
        if run is not None and run.status is RunStatus.RUNNING:
            break_lease(live, run, reason=reason, role=None, max_losses=max_losses, token=token)
    except ServerUnavailable as error:
        logger.warning("run %s has lost its process (%s) and waits for its lease to expire: %s", run_id, reason, error)


def give_back(
    live: Live,
    dispatcher: Dispatcher,
    run_id: str,
    token: str,
    *,
    reason: str,
    elsewhere: Callable[[Run], str | None],
) -> bool:
    """Hand back a run that another thread or process executes and that is about to be ended: no loss is counted.

    Whatever the executing one says after this is refused. Return whether the token still held the run. 2 round trips,
    those of ``elsewhere``, and the broker's.

    Raises:
        ServerUnavailable: Redis is away; the run is taken over when its lease expires.
    """
    run = live.get(run_id)
    if run is None or run.status is not RunStatus.RUNNING:
        return False
    role = elsewhere(run) or run.target_role
    # Without events: those that its attempt has not sent yet belong to packets that are done again.
    if not live.hand_back(run_id, token, 0, [], reason=reason, role=role).ok:
        return False
    send_nudge(dispatcher, run.with_(attempt=run.attempt + 1, target_role=role))
    return True


def send_nudge(dispatcher: Dispatcher, run: Run) -> None:
    """Tell a role of a queued run; a failure is no harm, for housekeeping nudges again."""
    try:
        dispatcher.nudge(Nudge.of(run))
    except ServerUnavailable as error:
        logger.warning("run %s is queued, but its nudge was not sent: %s", run.run_id, error)


class _Lately:
    """Remembers for a while what was done to which run."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._at: dict[str, float] = {}

    def first(self, run_id: str) -> bool:
        """Return whether this is the first time lately, and note it."""
        now = self._monotonic()
        if now - self._at.get(run_id, float("-inf")) < self._seconds:
            return False
        if len(self._at) > 10 * BATCH:
            self._at = {known: at for known, at in self._at.items() if now - at < self._seconds}
        self._at[run_id] = now
        return True
