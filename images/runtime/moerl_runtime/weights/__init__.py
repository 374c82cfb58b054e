"""Model weights through S3: versions of the policy from the trainer to the engines, base models to every node."""
