"""What ships into a node: the agent, the worker and the formats that the host reads.

It needs nothing but Python and torch there. Every module parses on Python 3.7, so that the payload
can *say* that a Python is too old rather than fail to compile. It is one zip archive, so it is flat:

    starting        ``boot``, ``main``, ``modules``, ``init`` (PID 1 of a pod), ``payload``, ``packages``,
                    ``stock``, ``environment``, ``needed``, ``versions``, ``shipped``, ``fetched``,
                    ``injected``, ``compilers``
    a node          ``node``, ``agent``, ``template``, ``returns``, ``watchdog``, ``meter``, ``nvml``,
                    ``shortage``, ``death``, ``exits``
    being asked     ``answering``, ``ask``, ``questions``
    torch           ``torch_versions``: what is private to it, and which versions have it
    meeting others  ``rendezvous``, ``endpoint``, ``meeting``, ``peers``, ``signed``, ``listening``
    a rank          ``worker``, ``call``, ``fresh``, ``spawned``, ``settings``, ``logsetup``, ``carried``,
                    ``frontend``, ``groups``, ``streams``, ``onimport``, ``given``
    a lab           ``keeper``, ``lab``, ``lead``, ``standing`` and ``relay`` (a node), ``turns`` (a rank)
    looking inside  ``lookout``, ``inquiry`` and ``profiling`` (a node), ``sampler``, ``recorder``,
                    ``profiler`` and ``mainthread`` (a rank), ``outside``
    debugging       ``debugger`` and ``patience`` (a rank), ``bridge`` (a node)
    what it calls   ``rank_api``, ``report``, ``frameworks``, ``checkpoints``, ``mirror``,
                    ``artifacts``
    objects         ``pickler``, ``importable``, ``memory``, ``rebuilt``, ``loading``: out of one process,
                    into another; ``sources`` and ``generated``: into another Python
    values          ``codec``, ``wire``, ``store``
    what is told    ``emit``, ``errors``, ``locals``, ``described``, ``samples``, ``usage``, ``lastwords``,
                    ``stream``, ``frames``; to Kubeflow's trainer, too: ``trainerstatus``
"""
