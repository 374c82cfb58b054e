"""Checkpoints through S3: every node uploads what it wrote, one of them commits, and only what is committed is resumed.

layout      names of objects, and what stands in them
handover    files by which the trainer tells the uploader of its pod about a save, and learns what became of it
transfer    one file up or down, in parts, continued and verified
upload      the sidecar: uploads, waits for the other nodes, commits
resolve     the newest complete checkpoint of a run's lineage
restore     brings one to scratch
shared      scratch with a directory for every attempt: what ended ones have left
prune       what is kept, and in which order the rest goes
"""
