"""The peer of the admin app: a minimal Flask app that starts a task and streams what the task publishes."""

from __future__ import annotations

from collections.abc import Iterator

import redis
from flask import Flask, Response, jsonify, request

from benchmarks.peer import QUEUE, make


def create(redis_url: str) -> Flask:
    """Make the app; ``gunicorn "benchmarks.peer_web:create('redis://...')"``."""
    flask, celery = Flask("peer"), make(redis_url)
    client = redis.Redis.from_url(redis_url)

    @flask.post("/tasks")
    def start() -> tuple[Response, int]:
        channel = request.get_json()["channel"]
        sent = celery.send_task("peer.tell", args=[channel], queue=QUEUE)
        return jsonify(id=sent.id), 202

    @flask.get("/stream/<channel>")
    def stream(channel: str) -> Response:
        return Response(events(channel), mimetype="text/event-stream")

    def events(channel: str) -> Iterator[str]:
        with client.pubsub() as pubsub:
            pubsub.subscribe(channel)
            for message in pubsub.listen():
                if message["type"] == "subscribe":
                    yield ":subscribed\n\n"
                else:
                    yield f"data:{message['data'].decode()}\n\n"
                    return

    return flask
