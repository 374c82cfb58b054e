"""What Miles and slime load into the trainer, and the command that starts them.

    cli, run          the entrypoint on the head: lease, checkpoint, train.py, save signal, end of the run
    control, report   what the processes of the run tell the head: one place for metrics and progress
    data_source       prompts, ids and the ledger; hands them over at every save
    rollout           one batch for a step, from the ledger's ready groups
    dispatch          threads that send tasks and collect samples
    ledger, prompts, samples   the core without I/O
    hooks             weights leave by `published`, exports by `saved`

Neither framework is imported at import: `framework` does it inside functions.
"""
