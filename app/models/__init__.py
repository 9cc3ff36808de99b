"""What Rolecall talks about: names, deployments, flows, runs, events, heartbeats.

Pydantic models stand at the boundaries, where input is not trusted; slotted dataclasses inside the hot path. This
package is the one place that spells the wire formats.
"""
