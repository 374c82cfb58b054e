"""The rollout agent: leases tasks, has the engine answer them, publishes every sample at once, drains on a notice.

`core` decides and touches nothing: it takes what happened and returns what to do next, at a time that it is given.
`work` does one such thing with clients that it is given. `loop` puts threads between the two, and tests put virtual time.
"""
