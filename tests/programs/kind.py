"""Submit a job of one kind, as a user does: KIND NAMESPACE FOLDER. Print the results in three lines of JSON.

The first line comes once the job is suspended. After reading a line, the program exports and resumes the
job; after reading another, it waits for the job's end.
"""

import json
import sys
from pathlib import Path

import yaml

from docs._generate import kinds, permissions
from nbtorchjob import api, capture, submission
from nbtorchjob.backends.kubernetes.doctor import server as looked
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import choices, parse
from nbtorchjob.state import JobInfo
from tests.patience import LIMIT

name, namespace, folder = sys.argv[1:]
words = f"--backend kubernetes --namespace {namespace} --image torch:1 --nnodes 2 --name train"
unnamed = parse(words, JobSpec())[0]
spec = parse(f"{words} --kind {name}", JobSpec())[0]
golden = JobSpec(Elastic(2), cluster=Cluster(image="example.com/torch:2.13", kind=name))
sub = Submission(golden, JobInfo("train-7k2q"), "team", ("train-7k2q-payload",), labels={}, annotations={})
call = capture.from_cell("1", {})
report = {
    "choices": choices("--kind"),
    "golden": yaml.safe_dump_all(KINDS[name].manifests(sub), sort_keys=False),
    "dry run": submission.dry_run(call, spec),
    "doctor": [(finding.text, finding.remedy) for finding in api.doctor(spec)],
    "chosen": [finding.text for finding in api.doctor(unnamed)],
    "missing": [(finding.text, finding.remedy) for finding in looked.per_kind(set(), 36, spec, needed=True)],
    "pages": [kinds.page(), permissions.page()],
}
job = submission.submit(call, spec)
job.suspend()
print(json.dumps(report), flush=True)
input()
files = job.export(Path(folder))
job.resume()
print(json.dumps([yaml.safe_load(path.read_text()) for path in files if path.suffix == ".yaml"]), flush=True)
input()
job.wait(LIMIT)
verdict = job.state.verdict
print(json.dumps([verdict.reason if verdict else "", job.info.cluster["kind"]]))
