"""What runs inside the images: preflight, rollout agent, trainer hooks, weights, checkpoints, benches, smoke job.

At import boto3 and the standard library; torch, numpy and deep_ep only where they are used. Numbers come from plan.json,
which every pod of the run has mounted; what only the pod knows comes from its command line and environment, which
`cli.py` alone reads.
"""
