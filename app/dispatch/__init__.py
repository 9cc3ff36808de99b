"""Dispatchers: how a role's workers are told of a queued run."""
