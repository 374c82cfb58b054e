"""The embedded AWS: the real CDK CLI deploys to it on this machine, and read-back proves that nothing was dropped.

What it proves: templates are accepted, their resources are created, updated, replaced and deleted by CloudFormation's rules,
every property arrives in the service that owns it, and the EKS, EC2 and Auto Scaling calls that a change causes.

What it does not prove: that AWS has the capacity or that quotas suffice (no instance is ever launched); timing (everything
is active at once); IAM (policies are stored and compared, never enforced); Kubernetes (no API server answers behind a
cluster); prices; and any AWS rule that no module here states.
"""
