"""One reader per CloudFormation type: the resource as its own service describes it, in CloudFormation's property shape."""

from . import ec2, eks, operations, security, storage
from .base import Actual, NotThereError, Properties, Reader, Source

READERS: dict[str, Reader] = {
    **ec2.READERS,
    **eks.READERS,
    **operations.READERS,
    **security.READERS,
    **storage.READERS,
}

__all__ = ["READERS", "Actual", "NotThereError", "Properties", "Reader", "Source"]
