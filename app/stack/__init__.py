"""A whole Rolecall on one bare machine: the embedded servers, and the processes of ``make up``."""
