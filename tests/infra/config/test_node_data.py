"""User data of a pool, and the size that EC2 takes."""

from __future__ import annotations

import pytest

from infra.config.node_data import MAX_BYTES, pool_user_data, too_long
from infra.config.user_data import parts

S = "starter-p5en"


def test_a_pools_user_data_holds_its_parts_in_order(planned) -> None:
    kinds = [kind for kind, _ in parts(pool_user_data(planned(S).pool("rollout"), None))]
    assert kinds == ["text/cloud-boothook", "text/cloud-boothook", "application/node.eks.aws", "text/x-shellscript"]


def test_shipped_pools_leave_most_of_the_room_to_their_owners(planned) -> None:
    for name in ("p5", "p6-b200", "reference-p5en", S):
        plan = planned(name)
        assert list(too_long(plan)) == []
        assert all(len(pool_user_data(pool, None)) < MAX_BYTES / 2 for pool in plan.pools)


def test_the_limit_is_in_bytes_of_both_and_says_how_many_fit(planned) -> None:
    def said(characters: int, letter: str = "#") -> list:
        return list(too_long(planned(S, {"pools.environments.user_data": "#!/bin/sh\n" + letter * characters})))

    (found,) = said(16_000)
    room = int(found.fix.split()[3])
    assert said(room - 10) == []
    assert len(said(room - 9)) == 1
    assert len(said(room // 2 + 100, "\u00fc")) == 1


def test_labels_alone_can_be_too_much(planned) -> None:
    labels = {f"example.com/{number:060}": "v" * 60 for number in range(130)}
    (found,) = too_long(planned(S, {"pools.environments.labels": labels}))
    assert found.key == "pools.environments.labels"
    assert "fewer labels" in found.fix


@pytest.mark.parametrize("pool", ["system", "trainer", "rollout", "environments"])
def test_every_pool_is_measured(pool: str, planned, monkeypatch) -> None:
    monkeypatch.setattr("infra.config.node_data.MAX_BYTES", 100)
    assert f"pools.{pool}." in " ".join(found.key for found in too_long(planned(S)))
