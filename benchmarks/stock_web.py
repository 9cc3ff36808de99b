"""A peer of the admin app as it comes out of the box: Flask, flask-sse and Celery, none of them tuned.

``gunicorn "benchmarks.stock_web:create('redis://...')"``, and beside it a worker, ``celery -A
benchmarks.stock_web:celery worker``, whose broker comes from Celery's own variable ``CELERY_BROKER_URL``. Under gevent,
as the others: flask-sse notices no client that goes, so that a few would keep all of gunicorn's threads for ever.
"""

from __future__ import annotations

from functools import lru_cache

from celery import Celery
from flask import Flask, Response, jsonify, request
from flask_sse import sse

celery = Celery("stock", set_as_current=False)


@lru_cache
def create(redis_url: str) -> Flask:
    """Return the web app; a worker needs it too, for flask-sse takes its server's address from one."""
    flask = Flask("stock")
    flask.config["REDIS_URL"] = celery.conf.broker_url = redis_url
    flask.register_blueprint(sse, url_prefix="/stream")

    @flask.post("/tasks")
    def start() -> tuple[Response, int]:
        return jsonify(id=tell.delay(request.get_json()["channel"]).id), 202

    return flask


@celery.task(name="stock.tell", ignore_result=True)
def tell(channel: str) -> None:
    """Publish one event."""
    with create(celery.conf.broker_url).app_context():
        sse.publish({"type": "started"}, type="started", channel=channel)
