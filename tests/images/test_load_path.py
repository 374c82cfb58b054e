"""Row B49: where the NCCL plugin lies, the loader looks; an EFA installation without one ends the build."""

from __future__ import annotations

import pytest

from infra.catalog import CATALOG
from tests.images.dockerfiles import CONTEXT, code, parse


def test_the_plugins_folder_goes_onto_the_loaders_path_or_the_build_ends() -> None:
    text = code("install-efa.sh")
    steps = [
        text.index("./efa_installer.sh"),
        text.index("plugin=$(find /opt/amazon/ofi-nccl -name libnccl-net-ofi.so"),
        text.index('if [[ -z "$plugin" ]]'),
        text.rindex("exit 1"),
        text.index('dirname "$plugin" >/etc/ld.so.conf.d/'),
        text.rindex("ldconfig"),
    ]
    assert steps == sorted(steps)


@pytest.mark.parametrize("stack", CATALOG.software)
def test_no_image_names_a_network_or_replaces_the_loaders_path(stack: str) -> None:
    """Both are the pod's: a name in the image would win where a pod says nothing, and nobody would look for it there."""
    dockerfile = parse((CONTEXT / stack / "Dockerfile").read_text(encoding="utf-8"))
    values = [item.value for stage in dockerfile.stages for item in stage.instructions if item.word == "ENV"]
    assert values
    for value in values:
        assert "NCCL_NET" not in value
        assert "LD_LIBRARY_PATH" not in value
        assert "LD_PRELOAD" not in value
