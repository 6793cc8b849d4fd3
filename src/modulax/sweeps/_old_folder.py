"""Folders of one sweep, as earlier versions wrote them: `sweep.json` with its members, and `chunk.json`."""

import json
import re
from collections.abc import Iterator
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
    is_known = notes["kind"] == "run" and "versions" in notes and isinstance(widths, list)
    if not is_known or len(widths) != len(programs):
        raise ValueError(
            f"{folder.name} was written by an earlier version of modulax, and doesn't say which runs are in it. Finish "
            f"it with that version, or choose another folder."
        )
    members = [name_of(text) for text in notes["members"]]
    return {
        "metrics": notes["metrics"],
        "in_segments": "-" in programs[0],
        "programs": {member: [program] for member, program in zip(members, notes["programs"], strict=True)},
        "members": {
            member: {"text": text, "label": text.partition("(")[0], "values": _values(text)}
            for member, text in zip(members, notes["members"], strict=True)
        },
        "calls": [{"kind": "run", "versions": notes["versions"], "commit": None, "tags": {}}],
        "batches": list(_batches(notes, members, dict(zip(programs, widths, strict=True)))),
    }


def _batches(notes: dict[str, Any], members: list[str], widths: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The batches of the members of each program, of its width."""
    for program, width in widths.items():
        places = [place for place, x in enumerate(notes["programs"]) if x == program]
        for start in range(0, len(places), width):
            rows = places[start : start + width]
            yield {
                "runs": [[name_of(program, members[i], key, "") for key in notes["keys"]] for i in rows],
                "members": [members[i] for i in rows],
                "seeds": notes["keys"],
                "program": program,
                "width": width,
                "is_named": False,
            }


def _values(text: str) -> dict[str, float]:
    """The numbers in the text of an optimizer."""
    return {name: float(x) for name, x in re.findall(r"(\w+)=(-?\d[\d.]*(?:e[-+]?\d+)?)", text)}
