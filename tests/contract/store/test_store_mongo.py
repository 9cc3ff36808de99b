"""What only the store on MongoDB has to prove: indexes, forks, crashes, and servers that are away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from app.errors import BadRequest, ServerUnavailable, SettingError
from app.models.run import RunStatus
from app.ports import RunFilter
from app.stack.servers import mongo_command
from app.store.mongo import MongoStore, run_stages
from tests.contract.store.samples import NOW, deployment, events, run, save
from tests.servers import free_port, running, wait_until

BOUND_S = 5.0
"""The longest that a caller may wait for a server that is away."""


@pytest.fixture
def store(mongo_url: str) -> Iterator[MongoStore]:
    made = MongoStore(mongo_url, timeout_s=10)
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def database(mongo_url: str) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        yield client.get_default_database()


# --- indexes ---------------------------------------------------------------------------------------------------------


def _prepare(url: str) -> None:
    store = MongoStore(url, timeout_s=10)
    store.prepare()
    store.prepare()
    store.close()


def test_several_processes_may_prepare_one_database_at_once(mongo_url: str, database: Database[dict[str, Any]]) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(_prepare, [mongo_url] * 3))
    unique = {
        (name, tuple(index["key"]))
        for name in database.list_collection_names()
        for index in database[name].index_information().values()
        if index.get("unique")
    }
    assert (("versions", (("flowId", 1), ("number", 1)))) in unique
    assert (("versions", (("flowId", 1), ("contentHash", 1)))) in unique
    assert (("runs", (("deployment", 1), ("idempotencyKey", 1)))) in unique


def _plan(explained: dict[str, Any]) -> list[str]:
    stage, names = explained["queryPlanner"]["winningPlan"], []
    while stage:
        names.append(stage.get("indexName", stage["stage"]))
        stage = stage.get("inputStage")
    return names


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RunFilter(), "position_1"),
        (RunFilter(deployment="shop"), "deployment_1_position_1"),
        (RunFilter(variant="main"), "variant_1_position_1"),
        (RunFilter(role="worker"), "role_1_position_1"),
        (RunFilter(status=RunStatus.FAILED), "status_1_position_1"),
        (RunFilter(session="s"), "session_1_position_1"),
    ],
)
def test_every_filter_walks_an_index(
    store: MongoStore, database: Database[dict[str, Any]], where: RunFilter, index: str
) -> None:
    for n in range(5):
        store.insert_run(run(f"r{n}", meta={"session_id": "s"}))
    for window in ({"$gte": "0", "$lt": "9"}, {"$lt": "9"}):
        [stage] = run_stages(where, window)
        explained = database["runs"].find(stage["$match"]).sort("position", -1).limit(3).explain()
        assert index in _plan(explained)
        assert "COLLSCAN" not in _plan(explained)


def test_several_filters_together_walk_the_index_of_the_first_of_them(
    store: MongoStore, database: Database[dict[str, Any]]
) -> None:
    given = {"deployment": "shop", "variant": "main", "role": "worker", "status": RunStatus.QUEUED, "session": "s"}
    store.insert_run(run("r1", meta={"session_id": "s"}))
    for size in range(2, len(given) + 1):
        for chosen in combinations(given, size):
            where = RunFilter(**{name: given[name] for name in chosen})  # type: ignore[arg-type]
            walked, looked_at = (stage["$match"] for stage in run_stages(where, {"$gte": "0", "$lt": "9"}))
            first, last = walked
            assert last == "position"
            assert {first, *looked_at} == set(chosen)
            assert f"{first}_1_position_1" in _plan(database["runs"].find(walked).sort("position", -1).explain())
            assert [found.run_id for found in store.list_runs(where).items] == ["r1"]


def test_idempotency_keys_and_stored_events_are_looked_up_by_index(
    store: MongoStore, database: Database[dict[str, Any]]
) -> None:
    store.insert_run(run("r1", idempotency_key="k"))
    store.append_events("r1", events("r1", 1, 3))
    queries = {
        "runs": {"deployment": "shop", "idempotencyKey": "k"},
        "events": {"runId": "r1", "last": {"$gt": 2}},
        "counted": {"key": "k", "number": 2},
        "versions": {"flowId": "f", "number": {"$lt": 3}},
        "deployments": {"flows": "f", "_id": {"$gt": "a"}},
    }
    for name, query in queries.items():
        assert "COLLSCAN" not in _plan(database[name].find(query).explain()), name


def test_deployments_that_an_older_version_stored_are_found_by_their_flow_once_the_store_is_prepared(
    store: MongoStore, database: Database[dict[str, Any]]
) -> None:
    store.put_deployment(deployment("shop", 1))
    database["deployments"].update_one({"_id": "shop"}, {"$unset": {"flows": ""}})
    assert store.list_deployments(flow="f").items == []
    store.prepare()
    store.prepare()
    assert [one.id for one in store.list_deployments(flow="f").items] == ["shop"]


# --- large things ----------------------------------------------------------------------------------------------------


def test_a_page_of_large_runs_ends_early_and_the_next_goes_on(store: MongoStore) -> None:
    for n in range(5):
        store.insert_run(run(f"r{n}", created_ms=1_796_000_000_000 + n, input={"text": "x" * 3_000_000}))
        store.mirror_run(run(f"r{n}", rev=1, status=RunStatus.COMPLETED, output="x"))
    first = store.list_runs(RunFilter(), limit=50)
    second = store.list_runs(RunFilter(), after=first.next, limit=50)
    third = store.list_runs(RunFilter(), after=second.next, limit=50)
    assert [[one.run_id for one in page.items] for page in (first, second, third)] == [
        ["r4", "r3"],
        ["r2", "r1"],
        ["r0"],
    ]
    assert third.next is None


def test_a_run_that_is_larger_than_a_page_is_listed_alone(store: MongoStore) -> None:
    store.insert_run(run("r1", input={"text": "x" * 9_000_000}))
    store.insert_run(run("r2", input={"text": "x" * 9_000_000}))
    assert [one.run_id for one in store.list_runs(RunFilter()).items] == ["r2"]


def test_what_no_document_can_hold_is_a_bad_request(store: MongoStore) -> None:
    with pytest.raises(BadRequest, match="16 MB") as refused:
        store.insert_run(run("r1", input={"text": "x" * 17_000_000}))
    assert refused.value.code == "too_large"
    assert store.get_run("r1") is None


def test_an_id_with_a_lone_surrogate_is_a_bad_request(store: MongoStore) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        store.get_run("\ud800")


# --- crashes between two steps ---------------------------------------------------------------------------------------


def test_a_version_whose_flow_was_not_brought_up_is_healed_by_the_next_save(
    store: MongoStore, database: Database[dict[str, Any]]
) -> None:
    save(store, "shop", 1, title="One")
    second, _ = save(store, "shop", 2, title="Two")
    database["flows"].update_one({"_id": "shop"}, {"$set": {"versions": 1, "title": "One"}})
    assert save(store, "shop", 2, title="Two") == (second, False)
    flow = store.get_flow("shop")
    assert flow is not None
    assert (flow.versions, flow.title) == (2, "Two")
    database["flows"].delete_one({"_id": "shop"})
    third, created = save(store, "shop", 3, title="Three")
    assert (third.number, created) == (3, True)
    flow = store.get_flow("shop")
    assert flow is not None
    assert (flow.versions, flow.title) == (3, "Three")


def test_a_count_whose_sum_was_not_brought_up_is_counted_all_the_same(
    store: MongoStore, database: Database[dict[str, Any]]
) -> None:
    for packet in "abc":
        store.count("k", packet)
    database["counters"].update_one({"_id": "k"}, {"$set": {"count": 1}})
    assert store.counter("k") == 3
    assert store.count("k", "b") == 3
    assert store.count("k", "d") == 4
    database["counters"].delete_one({"_id": "k"})
    assert store.counter("k") == 4


def test_fields_of_a_newer_version_are_ignored(store: MongoStore, database: Database[dict[str, Any]]) -> None:
    save(store, "shop", 1)
    store.put_deployment(deployment("shop", 1))
    store.insert_run(run("r1"))
    for name in ("flows", "versions", "deployments", "runs"):
        database[name].update_many({}, {"$set": {"newField": {"x": 1}}})
    assert store.get_flow("shop") is not None
    assert len(store.list_versions("shop").items) == 1
    assert store.get_deployment("shop") == deployment("shop", 1)
    assert store.get_run("r1") == run("r1")


# --- forks and servers that are away ---------------------------------------------------------------------------------


def test_a_forked_child_has_a_connection_of_its_own(store: MongoStore) -> None:
    store.insert_run(run("r1"))
    child = os.fork()
    if child == 0:  # no assertion may leave this branch: it would run the rest of the tests a second time
        try:
            fine = store.get_run("r1") is not None
            store.insert_run(run("r2"))
            store.close()
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get_run("r2") is not None


def test_threads_that_come_first_together_share_one_connection(mongo_url: str, at_once) -> None:
    store = MongoStore(mongo_url, timeout_s=10)
    at_once([store.ping] * 10)
    store.close()
    store.close()


def test_every_call_to_a_frozen_server_fails_in_time_and_works_again_afterwards(tmp_path: Path) -> None:
    port = free_port()
    with running(mongo_command(port, tmp_path), port, tmp_path / "server.log") as server:
        store = MongoStore(f"mongodb://127.0.0.1:{port}/frozen", timeout_s=1)
        store.prepare()
        store.insert_run(run("r1"))
        os.kill(server.pid, signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)  # only now has every thread of it stopped
        try:
            for call in (store.prepare, partial(store.insert_run, run("r2"))):
                began = time.monotonic()
                with pytest.raises(ServerUnavailable) as failed:
                    call()
                assert time.monotonic() - began < BOUND_S
                assert failed.value.code == "mongo_unavailable"
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(partial(_answers, store), seconds=60, what="the store answers again")
        store.close()


def _answers(store: MongoStore) -> bool:
    try:
        return store.get_run("r1") is not None
    except ServerUnavailable:
        return False


def test_no_server_is_told_in_time_and_without_the_password() -> None:
    store = MongoStore(f"mongodb://user:secret@127.0.0.1:{free_port()}/none", timeout_s=0.2)
    calls = [
        store.ping,
        store.prepare,
        partial(save, store, "f", 1),
        partial(store.publish, "f", "v", now=NOW),
        partial(store.put_deployment, deployment("d", 1)),
        partial(store.list_runs, RunFilter()),
        partial(store.append_events, "r", events("r", 1, 1)),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(ServerUnavailable) as failed:
            call()
        assert time.monotonic() - began < BOUND_S
        assert failed.value.server == "mongo"
        assert "secret" not in str(failed.value)
        assert len(str(failed.value)) < 400
    store.close()


@pytest.mark.parametrize("rest", ["user:p@ss:w@h/x", "h:port/x", "user:secret@", ""])
def test_a_url_that_cannot_be_read_is_refused_at_once_and_without_the_password(rest: str) -> None:
    with pytest.raises(SettingError, match=r"^MONGO_URL: .*Example: MONGO_URL=mongodb://") as refused:
        MongoStore(f"mongodb://{rest}", timeout_s=1)
    assert "p@ss" not in str(refused.value)
    assert "secret" not in str(refused.value)
