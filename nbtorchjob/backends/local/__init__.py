"""This machine: nodes are agent processes, forked from a warm pool by a supervisor.

    kernel ──socket──> pool (has imported torch) ──fork──> supervisor, one per job ──fork──> agents
    kernel <──files in the job's folder── supervisor, agents, ranks

The job's folder holds everything about the job, so any kernel can pick it up again:

    job.json         what was submitted             key           signs the payload and the values
    request.json     environment and paths          events.jsonl  every fact, one line each
    job.pyz          the payload                    saved.pyz     the payload of an ended job, for a retry
    supervisor.json  the supervisor's process       cancel        exists once the end was requested
    checkpoints/     what ranks save for the next attempt
    node-0/agent.log, node-0/round-0/rank-0.log, node-0/round-0/rank-0.value
"""
