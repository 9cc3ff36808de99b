"""The shared kernel of Rolecall: what every process needs, with no Flask in it and nothing of ``workers`` or ``admin``.

``docs/architecture.md`` shows the layers and the way of one run through them.
"""
