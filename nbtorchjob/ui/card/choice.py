"""What can be done with an edited cell whose job still runs: swap its code in, attach, or begin another job.

Pure. Where nothing answers its buttons the card says in words what they do.
"""

from __future__ import annotations

from html import escape

from nbtorchjob.errors import NBTorchJobError, SwapError
from nbtorchjob.state import JobState, Phase
from nbtorchjob.swapping import code
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.text.words import LINE, line
from nbtorchjob.ui.card import head
from nbtorchjob.ui.elements import action, prose, tag

_ROW = "display:flex;flex-wrap:wrap;gap:4px;margin:6px 0 0"


def html(state: JobState, text: str, again: str) -> str:
    """Return a card that asks, for the cell ``text`` and the job that runs what it was before.

    ``again`` are the options that run it beside that job; "" where it does already.
    """
    name, job = state.name, {"id": state.info.id}
    buttons, more = [], []
    try:
        if state.phase is not Phase.RUNNING:
            raise SwapError(f"{name} is {state.phase.word}")
        known = code.of(state)
        changed = known.definitions_in(text, name, edited=True)
        known.refuse(changed, name)
    except (NBTorchJobError, SyntaxError) as exc:
        more.append(f"It can't take the cell's changes as it runs: {exc}")
    else:
        names = line(", ".join(code.JobCode([("", changed)], {}).definitions), 200)
        more.append(f"Swap: all its ranks go on with the cell's {names}, by {hint('swap', name)}")
        buttons.append(action("Swap", "nbtorchjob:swap", {**job, "edited": "true"}))
    more.append(f"Attach: follow it as it is, by {hint('attach', name)}")
    buttons.append(action("Attach", "nbtorchjob:attach", job))
    if again:
        more.append(f"New job: run the cell beside it, by {run_hint(again)}")
        buttons.append(action("New job", "nbtorchjob:run-cell", {"options": again}))
    verdict = escape(line(f"{name} still runs what this cell was before", LINE))
    words = (prose(line(part, LINE)) for part in more)
    return head.card(
        head.Tone.ACT, head.note(head.Tone.ACT, verdict, *words, tag("div", "".join(buttons), _ROW))
    )
