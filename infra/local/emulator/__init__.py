"""The embedded AWS: ministack 1.5.33 with the EKS, EC2, FSx and CloudFormation behaviour that this project relies on.

Runs in its own virtual environment as `python -m infra.local.emulator`; imports only the standard library, ministack,
botocore and itself.
"""
