"""A cluster: the same payload as pods of a PyTorchJob, a TrainJob, a Volcano Job or an Indexed Job.

    kernel ──create──> Secrets, job object        operator ──> pods, each ``python job.pyz``
    kernel <──one list+watch per namespace and kind── job objects, pods, warnings     ``board``
    kernel <──one followed log per pod── frames: facts, lines of ranks, values        ``podlogs``

The objects' labels and annotations hold all that a new kernel needs (``objects``). Everything goes through
``client``; what the API refuses becomes one line in ``refusals``.
"""
