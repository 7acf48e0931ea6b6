"""The script that makes a card live; ``tests/browser/test_card.py`` runs it in a browser."""

import json
import re

from nbtorchjob.commands.table import OFFERS
from nbtorchjob.state import JobInfo
from nbtorchjob.ui.card import view


def given(info):
    """Return the argument of the script."""
    match = re.search(
        r"document\.currentScript\.parentElement, (\{.*\})\)</script>$", view.script(info, OFFERS)
    )
    assert match is not None
    return json.loads(match[1])


def test_the_script_knows_the_job_as_the_server_does():
    info = JobInfo("otter", "kubernetes", 1.5, cluster={"context": "a/b", "namespace": "ml", "kind": "job"})

    assert given(JobInfo("swift-otter", created=2.25))["job"] == {"id": "local:swift-otter", "created": 2.25}
    assert given(info)["job"] == {"id": "kubernetes:a/b/ml/otter", "created": 1.5}
    assert given(info)["name"] == "otter"


def test_the_script_s_buttons_are_what_the_table_of_verbs_offers():
    (cancel,) = given(JobInfo("swift-otter"))["buttons"]

    assert cancel == {"verb": "cancel", "label": "Cancel", "asks": True, "done": "told to end"}


def test_a_hostile_name_doesnt_end_the_script():
    script = view.script(JobInfo("</script><img src=x onerror=y>"), OFFERS)

    assert script.count("</script>") == 1
    assert given(JobInfo("</script>"))["name"] == "</script>"


def test_a_drawing_with_its_script_stays_small():
    assert len(view.script(JobInfo("swift-otter"), OFFERS).encode()) < 12_500
