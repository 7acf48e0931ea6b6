"""A cluster: the same payload as pods of a PyTorchJob, a TrainJob, a Volcano Job or an Indexed Job.

    kernel ──create──> Secrets, job object        operator ──> pods, each ``python job.pyz``
    kernel <──one list+watch per namespace and kind── job objects, pods, warnings     ``reflector``
    kernel <──one followed log per pod── frames: facts, lines of ranks, values        ``logs``

Labels and annotations hold all that a new kernel needs (``objects.labelling``). Everything goes through
``api.client``; what the API refuses becomes one line in ``api.errors``.
"""
