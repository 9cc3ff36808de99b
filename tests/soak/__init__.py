"""The fault suite: real processes under load while a seeded schedule breaks things; then proof from the records."""
