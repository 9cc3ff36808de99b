"""Handlers for sending parcels."""
