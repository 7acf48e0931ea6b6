"""What a job names and its namespace lacks, in the words of the admission plugins that find out (pure).

They look at pods. So the answer to creating one of the jobs holds them only where an operator's webhook
passes them on; else they come later, in an event about a pod that couldn't be created.
"""

from __future__ import annotations

import re

_LACKS = (
    (r'serviceaccounts? "([^"]*)" not found', "service account", "--service-account"),
    (r"no PriorityClass with name (\S+) was found", "priority class", "--priority-class"),
    (r'persistentvolumeclaims? "([^"]*)" not found', "claim", "--mount"),
)


def missing(said: str) -> str | None:
    """Describe what doesn't exist and which option names it; None where it is something else."""
    for pattern, what, option in _LACKS:
        found = re.search(pattern, said)
        if found:
            return f'the {what} "{found[1]}" doesn\'t exist: choose an existing one with {option}'
    return None
