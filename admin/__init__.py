"""The admin app: HTTP API, pages and server-sent events over the services of :mod:`app`. Flask lives only here."""
