"""What nodes of a pool can move between each other: NCCL's collectives, and DeepEP's dispatch and combine against them."""
