"""The WSGI entry point: ``gunicorn -c python:admin.gunicorn admin.wsgi:app``."""

from admin.app import create_app
from admin.settings import admin_settings
from app.wiring import build

app = create_app(lambda: build(admin_settings()))
