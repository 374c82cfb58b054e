"""The AWS CRT's S3 client: parts in parallel in native threads, several times what Python threads reach on a big node."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from botocore.session import Session
from s3transfer import crt

from moerl_runtime.checkpoint.transfer import PART_BYTES


def manager(region: str, endpoint_url: str | None) -> Any:
    """An s3transfer CRTTransferManager for the process's own credentials; None where there are none."""
    session = Session()
    credentials = session.get_credentials()
    if credentials is None:
        return None
    client = crt.create_s3_crt_client(
        region,
        crt_credentials_provider=crt.BotocoreCRTCredentialsWrapper(credentials).to_crt_credentials_provider(),
        part_size=PART_BYTES,
        use_ssl=endpoint_url is None or urlsplit(endpoint_url).scheme == "https",
    )
    serializer = crt.BotocoreCRTRequestSerializer(session, {"region_name": region, "endpoint_url": endpoint_url})
    return crt.CRTTransferManager(client, serializer)
