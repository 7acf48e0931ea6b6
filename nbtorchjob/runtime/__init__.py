"""What ships to a node: the agent, the worker and the formats that the host reads.

It needs nothing but Python and torch there. Every module parses on Python 3.7, so that the payload
can *say* that a Python is too old rather than fail to compile. Each folder covers one part of the work:

    start       from the container's first process to a node: unpacking, signals, compilers' caches
    node        torch's agent for one node: its ranks' lives and resource use, shortages, departures
    rendezvous  how nodes meet, watch each other, and form process groups
    rank        one rank: its process, streams, settings, and the call that it runs
    api         what the user's code calls or meets on a rank: reports, checkpoints, artifacts, displays
    objects     pickles, shared memory and values, out of one process and into another
    facts       what is reported about a job: events, errors, variables, samples, exit codes
    store       the payload's format, and how values and logs come home
    ask         questions to a running node
    look        looking inside ranks: samples, profiles, torch's flight recorder
    install     packages and files that a job brings along (only some jobs)
    data        data that a node fetches before its ranks start (only jobs with ``--data``)
    lab         ranks that stay, and run turns (only labs)
    pool        ranks that are forked for one job after another (only pools)
    debug       a debugger in a rank (only jobs that may stop in one)

``torch_versions`` lists the private parts of torch that are used, and which versions have them.
"""
