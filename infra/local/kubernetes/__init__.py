"""A real Kubernetes control plane on the loopback interface, with simulated nodes: for tests and for `moerl local up`.

etcd, API server, scheduler and controller manager, Kueue, KubeRay and LeaderWorkerSet run as they are released; kwok plays
the kubelets. tests/cluster/ builds the programs.
"""
