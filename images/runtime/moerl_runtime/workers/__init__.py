"""Services of the CPU pools: graders beside the rollouts, finished samples in memory beside the trainer."""
