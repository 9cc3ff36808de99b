"""Pages for people: rendered on the server, kept up to date by a little JavaScript, truthful when a server is away."""

from __future__ import annotations

from flask import Flask

from admin.pages import views, words


def install(app: Flask) -> None:
    """Mount the pages."""
    app.register_blueprint(views.blueprint)
    app.jinja_env.trim_blocks = True
    app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters |= words.FILTERS
