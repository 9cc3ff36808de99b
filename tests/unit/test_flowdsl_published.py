"""Published documents, read where they lie beside the checkout: they import, and their edges fire as they say.

Stand-ins take the place of handlers that nobody here has; each marks what passed through it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.flowdsl import compile_flow, flow_names, read
from app.nodes import Step, builtin, handler
from app.nodes.registry import HandlerRegistry
from tests.flows import Ran, run

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "flowdsl"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the published documents are not beside the checkout")

Work = Callable[[Step], Any]


def load(name: str) -> dict[str, Any]:
    return read(next(FOLDER.glob(f"{name}.flowdsl.*")).read_bytes())


def stand_ins(**functions: Work) -> HandlerRegistry:
    """Handlers by ``operationId``."""
    module = ModuleType("stand_ins")
    for name, function in functions.items():

        def call(step: Step, function: Work = function) -> Any:
            return function(step)

        setattr(module, name, handler(name.replace("__", "-"))(call))
    return HandlerRegistry.load([module, builtin])


def give(**fields: Any) -> Work:
    return lambda step: step.input | fields


def passed(ran: Ran) -> list[str]:
    """Return the names of the nodes that completed, in order."""
    assert ran.outcome.error is None, ran.outcome.error
    return [step[1:] for step in ran.story if step[0] == "="]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.flowdsl.*")), ids=lambda path: path.name)
def test_every_published_document_imports_and_only_lacks_handlers(path: Path) -> None:
    document = read(path.read_bytes())
    for name in flow_names(document):
        plan = compile_flow(document, name)
        known = frozenset(ref for candidates in plan.needs for ref in candidates)
        sources = frozenset(ref for node in plan.nodes for ref in node.candidates)
        left = [warning.at for warning in plan.warnings(known | sources)]
        kafka = "/flows/domain_drop_pipeline/edges/3/delivery/stream/bus"
        assert left == ([kafka] if name == "domain_drop_pipeline" else [])


def test_webhook_alert_fans_out_by_severity() -> None:
    document, event = load("webhook-alert"), {"event_type": "x", "source": "s", "received_at": "now"}

    def alert(severity: str) -> list[str]:
        fields = {"message": "m", "severity": severity, "timestamp": "t"}
        handlers = stand_ins(filter_by_severity=give(**fields), notify_slack=give(), send_sms_alert=give())
        return passed(run(document, event, handlers, flow="webhook_alert"))[2:]

    assert alert("low") == []
    assert alert("high") == ["slack_notifier"]
    assert alert("critical") == ["slack_notifier", "sms_alert"]


def test_email_triage_replies_and_alerts() -> None:
    document, mail = load("email-triage"), {"from": "a", "subject": "s", "body": "b", "received_at": "now"}

    def triage(category: str, priority: str) -> list[str]:
        classify = give(category=category, priority=priority, summary="s")
        handlers = stand_ins(classify_email_intent=classify, route_by_intent=give(), notify_team_slack=give())
        return passed(run(document, mail, handlers, flow="email_triage"))[3:]

    assert triage("support", "low") == ["email_sender"]
    assert triage("inquiry", "high") == ["email_sender", "slack_notifier"]
    assert triage("spam", "high") == ["slack_notifier"]
    assert triage("spam", "low") == []


def test_db_anomaly_detect_posts_what_is_detected_and_pages_for_what_is_critical() -> None:
    document, row = load("db-anomaly-detect"), {"metric": "m", "value": 1, "entity_id": "e", "recorded_at": "now"}

    def detect(detected: bool, severity: str) -> list[str]:
        handlers = stand_ins(
            analyse_for_anomalies=give(detected=detected, severity=severity), route_by_severity=give(),
            post_anomaly_slack=give(), page_on_call=give(),
        )  # fmt: skip
        return passed(run(document, row, handlers, flow="db_anomaly_detect"))[3:]

    assert detect(False, "none") == []
    assert detect(True, "low") == ["slack_notifier"]
    assert detect(True, "critical") == ["slack_notifier", "sms_alert"]


def test_assistant_chat_goes_round_until_no_tool_is_called() -> None:
    def chat(step: Step) -> dict[str, Any]:
        calls = [] if "tool" in step.input else [{"id": "1", "name": "fetch"}]
        return step.input | {"content": "text", "role": "assistant", "toolCalls": calls}

    handlers = stand_ins(llm_chat=chat, route_tools=give(), execute_http_tool=give(tool="answer"))
    ran = run(load("assistant-chat"), {"messages": []}, handlers, flow="assistant_chat")
    assert passed(ran) == [
        "http_source", "llm_chat", "tool_router", "http_tool", "llm_chat", "tool_router", "response_out",
    ]  # fmt: skip
    assert ran.outcome.output["tool"] == "answer"


def test_http_to_mongo_is_a_chain() -> None:
    handlers = stand_ins(
        fetch_remote_resource=give(status=200, body={}), write_to_mongo=give(),
        normalise_api_response=lambda _: {"id": "1", "source": "s", "payload": {}, "synced_at": "now"},
    )  # fmt: skip
    ran = run(load("http-to-mongo"), {"resource_id": "1", "action": "created"}, handlers, flow="http_mongo_sync")
    assert passed(ran) == ["webhook_receiver", "http_fetcher", "json_transformer", "mongo_writer"]
    assert ran.logs == []


def test_domain_pipeline_stops_where_nothing_is_shortlisted_and_fails_where_kafka_is_reached() -> None:
    def pipeline(first: str, second: str) -> Ran:
        handlers = stand_ins(
            run_domain_rule_filter=give(name=first), run_dns_check=give(), run_score_preselect=give(name=second),
            run_llm_analysis=give(), run_publish_results=give(),
        )  # fmt: skip
        given = {"domain": "example.com", "dropDate": "2026-12-01"}
        return run(load("domain-pipeline"), given, handlers, flow="domain_drop_pipeline")

    assert passed(pipeline("RuleRejectedDomain", "")) == ["rule_filter"]
    assert passed(pipeline("RulePassedDomain", "DomainRejected")) == ["rule_filter", "dns_check", "score_preselect"]
    error = pipeline("RulePassedDomain", "DomainShortlisted").outcome.error
    assert error is not None
    assert (error.code, error.node) == ("unsupported_delivery", "publish_results")


def test_the_second_flow_of_a_document_runs_too() -> None:
    handlers = stand_ins(
        run_priority_router=give(name="EmailForSummarization"), run_urgent_sms_alert=give(), run_llm_summary=give(),
        run_ticket_creator=give(),
    )  # fmt: skip
    mail = {"emailId": "1", "subject": "s", "from": "f", "body": "b"}
    ran = run(load("domain-pipeline"), mail, handlers, flow="work_email_handler")
    assert passed(ran) == ["priority_router", "llm_summary", "ticket_creator"]


def test_guarded_assistant_tells_a_handoff_from_a_chat_and_blocks_on_both_sides() -> None:
    def guarded(input: dict[str, Any], guard_in: str = "Allow", guard_out: str = "Allow") -> Ran:
        handlers = stand_ins(
            guard__in=give(route=guard_in), guard__out=give(route=guard_out), llm_chat=give(message={}),
            handoff=give(handoffId="h"), guard_alert_email=give(),
        )  # fmt: skip
        return run(load("guarded-assistant"), input, handlers, flow="guarded_assistant")

    chat = {"messages": [{"role": "user"}]}
    handoff = {"meta": {"intent": "handoff"}, "sessionId": "s", "email": "e"}
    for flag in ("Allow", "Flag"):
        assert passed(guarded(chat, flag)) == ["chat_input", "guard_in", "llm_chat", "guard_out", "response_output"]
    assert passed(guarded(handoff)) == ["chat_input", "handoff", "response_output"]
    blocked = guarded(chat, "Block")
    assert passed(blocked) == ["chat_input", "guard_in", "refusal_in", "rejected"]
    assert blocked.outcome.output["rejected"]["content"].startswith("I'm not able to help")
    assert passed(guarded(chat, "Allow", "Block")) == [
        "chat_input", "guard_in", "llm_chat", "guard_out", "refusal_out", "guard_alert_email", "rejected",
    ]  # fmt: skip


def test_a_failing_alert_does_not_fail_the_guarded_chat() -> None:
    def down(_: Step) -> None:
        raise ConnectionError("no mail server")

    handlers = stand_ins(
        guard__in=give(route="Allow"), guard__out=give(route="Block"), llm_chat=give(message={}), handoff=give(),
        guard_alert_email=down,
    )  # fmt: skip
    ran = run(load("guarded-assistant"), {"messages": []}, handlers, flow="guarded_assistant")
    assert set(ran.outcome.output) == {"rejected"}
    assert "!guard_alert_email" in ran.story
