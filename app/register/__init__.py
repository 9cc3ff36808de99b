"""The register: who is alive, in memory and on Redis, and a short-lived copy of its answer for readers."""
