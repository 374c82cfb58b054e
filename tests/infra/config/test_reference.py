"""The page of all keys says what the models say."""

from __future__ import annotations

from pathlib import Path

from infra.config.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "environment.md"


def test_the_page_is_the_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: python -m infra.config.reference > docs/environment.md"
    )


def test_every_purchase_type_and_nested_key_is_on_the_page() -> None:
    page = reference()
    for key in ("pools.NAME.capacity.starts", "pools.NAME.taints[].effect", "workload.rollout.kv_transfer.protocol"):
        assert f"| `{key}` |" in page
    assert "`on_demand` or `spot` or `reservation` or `capacity_block`" in page
