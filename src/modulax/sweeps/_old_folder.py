"""Folders of one sweep, as earlier versions wrote them: `sweep.json` with its members, and `chunk.json`."""

import csv
import json
from pathlib import Path
from typing import Any

from ._description import name_of


def converted(folder: Any, notes: dict[str, Any]) -> dict[str, Any]:
    """What a folder of an earlier version notes, in the form of today; its metrics and carries stay as they are.

    Args:
        folder: the `Folder`.
        notes: its `sweep.json`.

    Raises:
        ValueError: if it doesn't say enough to tell its runs from others.
    """
    programs = list(dict.fromkeys(notes.get("programs", ())))
    try:
        widths = json.loads((folder.path / "chunk.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise folder.damaged("chunk.json", error) from error
    if (
        notes["kind"] != "run"
        or "versions" not in notes
        or not isinstance(widths, list)
        or len(widths) != len(programs)
    ):
        raise ValueError(
            f"{folder.name} was written by an earlier version of modulax, and doesn't say which runs are in it. Finish "
            f"it with that version, or choose another folder."
        )
    members = [name_of(text) for text in notes["members"]]
    table = _table(folder.path / "results.csv", len(notes["metrics"]))
    batches = []
    for program, width in zip(programs, widths, strict=True):
        places = [place for place, x in enumerate(notes["programs"]) if x == program]
        for rows in (places[i : i + width] for i in range(0, len(places), width)):
            batches.append({
                "runs": [[name_of(program, members[i], key, "") for key in notes["keys"]] for i in rows],
                "members": [members[i] for i in rows],
                "seeds": notes["keys"],
                "program": program,
                "width": width,
                "is_named": False,
            })  # fmt: skip
    return {
        "metrics": notes["metrics"],
        "in_segments": "-" in programs[0],
        "members": {
            member: {"text": text, "label": text.partition("(")[0], "values": {}} | table.get(i, {})
            for i, (member, text) in enumerate(zip(members, notes["members"], strict=True))
        },
        "calls": [{"kind": "run", "versions": notes["versions"], "commit": None, "tags": {}}],
        "batches": batches,
    }


def _table(path: Path, metrics: int) -> dict[int, dict[str, Any]]:
    """What the table says of each member that was finished: what it is called, and what varies."""
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else [[]]
    header, *rows = ([*row[:1], *row[2 : len(row) - metrics - 1]] for row in rows)
    found = {}
    for member, label, *values in rows:
        pairs = zip(header[2:], map(_value, values), strict=True)
        found[int(member)] = {"label": label, "values": {name: x for name, x in pairs if x != ""}}
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
