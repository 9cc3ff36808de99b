"""The live state of open runs, and the bell that tells of their events: in memory and on Redis."""
