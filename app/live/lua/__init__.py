"""The scripts of the live state, one file for each command, and what turns a file into the text that is sent.

Three things keep the scripts both readable and quick (a script is run anew for every call):

* a run is an array in the order of :data:`app.live.codec.FIELDS`, and ``run.seq`` outside quotes becomes ``run[5]``;
* ``$FIELDS`` becomes the names of all fields, ``$STATE`` those of the small ones at the front;
* of the functions in ``_shared.lua`` a script gets those that it calls.

No script reads or writes JSON but to join ready-made texts: Redis' own JSON library turns ``[]`` into ``{}`` and rounds
large numbers.
"""

from __future__ import annotations

import re
from importlib import resources

from app.live.codec import FIELDS, STATE


def source(name: str) -> str:
    """Return the text of script ``name``: its flags, the shared functions that it calls, its own lines."""
    flags, _, body = _read(name).partition("\n")
    for function in reversed(_read("_shared").split("\n\n")):
        called = re.search(r"local function (\w+)\(", function)
        if called and re.search(rf"\b{called[1]}\(", body):
            body = f"{function}\n{body}"
    body = body.replace("$FIELDS", _words(FIELDS)).replace("$STATE", _words(STATE))
    return f"{flags}\n" + re.sub(r"(?<!['\"])\brun\.(\w+)", lambda field: f"run[{FIELDS.index(field[1]) + 1}]", body)


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.lua").read_text(encoding="utf-8")


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)
