"""Measures of Rolecall, as ratios to a peer or as absolute bounds: ``python -m benchmarks``.

Each measure has a module of its own that says what is compared and why the peer is a fair one. What the numbers were,
and where the time goes, is in ``docs/performance.md``.
"""
