from datetime import date, timedelta

import pytest

from infra.catalog.facts import AS_OF, Source


def test_source_without_url_is_refused_unless_computed() -> None:
    with pytest.raises(ValueError, match="no url"):
        Source(title="hearsay", url="", as_of=AS_OF)
    assert Source(title="a formula", url="", as_of=AS_OF, computed=True).computed


def test_source_without_title_is_refused() -> None:
    with pytest.raises(ValueError, match="title"):
        Source(title="", url="https://example.com/", as_of=AS_OF)


def test_source_dated_after_the_catalog_is_refused() -> None:
    assert Source(title="today", url="https://example.com/", as_of=AS_OF).as_of == date(2026, 11, 29)
    with pytest.raises(ValueError, match="after the catalog"):
        Source(title="tomorrow", url="https://example.com/", as_of=AS_OF + timedelta(days=1))
