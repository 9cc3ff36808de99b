"""Adapters of :class:`app.ports.Store`: in memory for tests and one-process use, MongoDB for everything else."""
