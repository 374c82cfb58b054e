"""AWS::S3::Bucket over ministack's S3 API: every configuration that a template sets is put through its own API call.

Also what ministack's S3 lacks for uploads in parts: checksums of the whole object.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from awscrt import checksums
from ministack.services import s3

from . import shapes, state
from .gateway import call_ministack
from .registry import Created, Params, begun, resource


def _call(name: str, **params: Any) -> dict[str, Any]:
    return call_ministack("s3", name, params)


def _encryption(value: Params) -> Params:
    rules = []
    for rule in value["ServerSideEncryptionConfiguration"]:
        own = {
            "ApplyServerSideEncryptionByDefault": rule.get("ServerSideEncryptionByDefault"),
            "BucketKeyEnabled": rule.get("BucketKeyEnabled", False),
            **{
                key: item
                for key, item in rule.items()
                if key not in ("ServerSideEncryptionByDefault", "BucketKeyEnabled")
            },
        }
        rules.append({key: item for key, item in own.items() if item is not None})
    return {"ServerSideEncryptionConfiguration": _shape("ServerSideEncryptionConfiguration", {"Rules": rules})}


def _shape(name: str, value: Any) -> Any:
    return shapes.to_api("s3", name, value)


def _transition(value: Params, days: str) -> Params:
    names = {"TransitionInDays": days, "TransitionDate": "Date"}
    return {names.get(key, key): item for key, item in value.items()}


def _lifecycle_rule(rule: Params) -> Params:
    """One CloudFormation rule as an API rule. Raises ValueError for a member that is not translated here."""
    left = dict(rule)
    result: Params = {"ID": left.pop("Id", None), "Status": left.pop("Status")}
    result["Filter"] = _lifecycle_filter(left)
    expiration = {}
    for name, api in (
        ("ExpirationInDays", "Days"),
        ("ExpirationDate", "Date"),
        ("ExpiredObjectDeleteMarker", "ExpiredObjectDeleteMarker"),
    ):
        if name in left:
            expiration[api] = left.pop(name)
    if expiration:
        result["Expiration"] = expiration
    if "Transitions" in left:
        result["Transitions"] = [_transition(one, "Days") for one in left.pop("Transitions")]
    if "NoncurrentVersionTransitions" in left:
        moves = left.pop("NoncurrentVersionTransitions")
        result["NoncurrentVersionTransitions"] = [_transition(one, "NoncurrentDays") for one in moves]
    for name in ("NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"):
        if name in left:
            result[name] = left.pop(name)
    if left:
        raise ValueError(f"LifecycleConfiguration rule: the emulator does not keep {', '.join(sorted(left))}")
    return {key: item for key, item in result.items() if item is not None}


def _lifecycle_filter(rule: Params) -> Params:
    conditions: Params = {
        name: rule.pop(name) for name in ("Prefix", "ObjectSizeGreaterThan", "ObjectSizeLessThan") if name in rule
    }
    tags = rule.pop("TagFilters", [])
    if len(tags) == 1 and not conditions:
        return {"Tag": tags[0]}
    if tags or len(conditions) > 1:
        return {"And": {**conditions, **({"Tags": tags} if tags else {})}}
    return conditions or {"Prefix": ""}


def _lifecycle(value: Params) -> Params:
    rules = [_lifecycle_rule(rule) for rule in value["Rules"]]
    return {"LifecycleConfiguration": _shape("BucketLifecycleConfiguration", {"Rules": rules})}


def _logging(value: Params) -> Params:
    if "DestinationBucketName" not in value:  # CloudFormation then logs to the bucket itself, which no stack here wants
        raise ValueError("LoggingConfiguration: the emulator needs DestinationBucketName")
    own = {"TargetBucket": value["DestinationBucketName"], "TargetPrefix": value.get("LogFilePrefix", "")}
    if "TargetObjectKeyFormat" in value:
        own["TargetObjectKeyFormat"] = value["TargetObjectKeyFormat"]
    return {"BucketLoggingStatus": _shape("BucketLoggingStatus", {"LoggingEnabled": own})}


def _notification(value: Params) -> Params:
    own: Params = {}
    for name, target, api in (
        ("QueueConfigurations", "Queue", "QueueArn"),
        ("TopicConfigurations", "Topic", "TopicArn"),
        ("LambdaConfigurations", "Function", "LambdaFunctionArn"),
    ):
        rows = [_notification_row(one, target, api) for one in value.get(name) or []]
        if rows:
            own["LambdaFunctionConfigurations" if name.startswith("Lambda") else name] = rows
    if shapes.is_true((value.get("EventBridgeConfiguration") or {}).get("EventBridgeEnabled", False)):
        own["EventBridgeConfiguration"] = {}
    return {"NotificationConfiguration": _shape("NotificationConfiguration", own)}


def _notification_row(row: Params, target: str, api: str) -> Params:
    own: Params = {api: row[target], "Events": [row["Event"]]}
    rules = ((row.get("Filter") or {}).get("S3Key") or {}).get("Rules")
    if rules:
        own["Filter"] = {"Key": {"FilterRules": rules}}
    return own


def _cors(value: Params) -> Params:
    names = {"Id": "ID", "ExposedHeaders": "ExposeHeaders", "MaxAge": "MaxAgeSeconds"}
    rules = [{names.get(key, key): item for key, item in rule.items()} for rule in value["CorsRules"]]
    return {"CORSConfiguration": _shape("CORSConfiguration", {"CORSRules": rules})}


def _acl(value: str) -> Params:
    """CloudFormation's 'LogDeliveryWrite' as the canned ACL 'log-delivery-write'."""
    return {"ACL": re.sub(r"(?<=[a-z])(?=[A-Z])", "-", value).lower()}


# property -> (put operation, its parameters from the property, delete operation or the parameters that undo it)
_CONFIGURATIONS: dict[str, tuple[str, Any, str | Params]] = {
    "BucketEncryption": ("PutBucketEncryption", _encryption, "DeleteBucketEncryption"),
    "VersioningConfiguration": (
        "PutBucketVersioning",
        lambda value: {"VersioningConfiguration": _shape("VersioningConfiguration", value)},
        {"VersioningConfiguration": {"Status": "Suspended"}},
    ),
    "PublicAccessBlockConfiguration": (
        "PutPublicAccessBlock",
        lambda value: {"PublicAccessBlockConfiguration": _shape("PublicAccessBlockConfiguration", value)},
        "DeletePublicAccessBlock",
    ),
    "OwnershipControls": (
        "PutBucketOwnershipControls",
        lambda value: {"OwnershipControls": _shape("OwnershipControls", value)},
        "DeleteBucketOwnershipControls",
    ),
    "AccessControl": ("PutBucketAcl", _acl, {"ACL": "private"}),
    "LifecycleConfiguration": ("PutBucketLifecycleConfiguration", _lifecycle, "DeleteBucketLifecycle"),
    "LoggingConfiguration": ("PutBucketLogging", _logging, {"BucketLoggingStatus": {}}),
    "NotificationConfiguration": (
        "PutBucketNotificationConfiguration",
        _notification,
        {"NotificationConfiguration": {}},
    ),
    "CorsConfiguration": ("PutBucketCors", _cors, "DeleteBucketCors"),
    "Tags": (
        "PutBucketTagging",
        lambda value: {"Tagging": {"TagSet": shapes.tag_list(value)}},
        "DeleteBucketTagging",
    ),
}


def _configure(bucket: str, old: Params, new: Params) -> None:
    for name, (put, parameters, undo) in _CONFIGURATIONS.items():
        if old.get(name) == new.get(name):
            continue
        if new.get(name):
            _call(put, Bucket=bucket, **parameters(new[name]))
        elif isinstance(undo, str):
            _call(undo, Bucket=bucket)
        else:
            _call(put, Bucket=bucket, **undo)


def _create(name: str, props: Params) -> Created:
    bucket = props.get("BucketName") or name.lower()
    sent = (
        {} if state.region() == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": state.region()}}
    )
    given: Params = {name: props[name] for name in ("AccessControl", "OwnershipControls") if name in props}
    if "AccessControl" in given:
        sent |= _acl(given["AccessControl"])
    if "OwnershipControls" in given:
        sent["ObjectOwnership"] = given["OwnershipControls"]["Rules"][0]["ObjectOwnership"]
    _call("CreateBucket", Bucket=bucket, **sent)
    begun(bucket)
    _configure(bucket, given, props)
    return bucket, _attributes(bucket)


def _attributes(bucket: str) -> dict[str, Any]:
    return {
        "Arn": f"arn:aws:s3:::{bucket}",
        "DomainName": f"{bucket}.s3.amazonaws.com",
        "RegionalDomainName": f"{bucket}.s3.{state.region()}.amazonaws.com",
        "DualStackDomainName": f"{bucket}.s3.dualstack.{state.region()}.amazonaws.com",
    }


def _update(bucket: str, old: Params, new: Params) -> dict[str, Any]:
    _configure(bucket, old, new)
    return _attributes(bucket)


resource(
    "AWS::S3::Bucket",
    create=_create,
    update=_update,
    delete=lambda bucket, _props: _call("DeleteBucket", Bucket=bucket),
    properties=frozenset({"BucketName", *_CONFIGURATIONS}),
    replaces="BucketName",
    name_length=63,
)


def install() -> None:
    """Repairs what ministack's S3 does otherwise than AWS."""
    _install_default_key()
    _install_whole_object_checksums()
    # The same numbers as its own tables give, hundreds of times faster.
    s3._crc64nvme, s3._crc32c = checksums.crc64nvme, checksums.crc32c


def _install_default_key() -> None:
    """Let S3 fall back to the account's aws/s3 key for aws:kms without a key id, as AWS does and CDK's asset upload needs."""
    resolve = s3._resolve_sse_write_headers

    def with_default_key(headers: dict[str, str], bucket: str) -> Any:
        wants_kms = headers.get("x-amz-server-side-encryption") == "aws:kms"
        if wants_kms and not headers.get("x-amz-server-side-encryption-aws-kms-key-id"):
            headers = {**headers, "x-amz-server-side-encryption-aws-kms-key-id": state.arn("kms", "alias/aws/s3")}
        return resolve(headers, bucket)

    s3._resolve_sse_write_headers = with_default_key


_COMBINE: Mapping[str, tuple[Callable[[int, int, int], int], int]] = {
    "CRC32": (checksums.combine_crc32, 4),
    "CRC32C": (checksums.combine_crc32c, 4),
    "CRC64NVME": (checksums.combine_crc64nvme, 8),
}
"""Algorithms that S3 offers for whole objects, with the bytes of a value; CRC64NVME is never a composite."""
_ONLY_WHOLE = "CRC64NVME"
_WHOLE = "FULL_OBJECT"


def _install_whole_object_checksums() -> None:
    """ministack knows composites only: an upload in parts that asks for FULL_OBJECT, or for CRC64NVME, gets the checksum
    of the whole object, and a completion that names another one is refused."""
    create, complete, attributes = (
        s3._create_multipart_upload,
        s3._complete_multipart_upload,
        s3._get_object_attributes,
    )

    def create_upload(bucket: str, key: str, headers: dict[str, str]) -> Any:
        status, answer, body = create(bucket, key, headers)
        if status == 200:
            upload = s3._multipart_uploads[_text(body, "UploadId")]
            wanted = headers.get("x-amz-checksum-type", "").upper()
            algorithm = upload["checksum_algorithm"]
            if algorithm == _ONLY_WHOLE or (algorithm in _COMBINE and wanted == _WHOLE):
                upload["whole"] = True
                answer = {**answer, "x-amz-checksum-type": _WHOLE}
        return status, answer, body

    def complete_upload(
        bucket: str, key: str, body: bytes, query: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Any:
        identifier = s3._qp(query, "uploadId")
        upload = s3._multipart_uploads.get(identifier)
        if upload is None or not upload.get("whole"):
            return complete(bucket, key, body, query, headers)
        algorithm = upload["checksum_algorithm"]
        whole = _whole_checksum(algorithm, upload["parts"], body)
        named = (headers or {}).get(f"x-amz-checksum-{algorithm.lower()}")
        if named and whole is not None and named != whole:
            return s3._error("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.", 400)
        upload["checksum_algorithm"] = None
        status, answer, reply = complete(bucket, key, body, query, headers)
        if status != 200:
            upload["checksum_algorithm"] = algorithm
            return status, answer, reply
        kept = {"checksums": {algorithm: whole}, "checksum_type": _WHOLE}
        s3._buckets[bucket]["objects"][key].update(kept)
        for version in s3._object_versions.get((bucket, key), [])[-1:]:
            version.update(kept)
        shown = f"<Checksum{algorithm}>{whole}</Checksum{algorithm}><ChecksumType>{_WHOLE}</ChecksumType>".encode()
        end = b"</CompleteMultipartUploadResult>"
        response = status, answer, reply.replace(end, shown + end)
        s3._completed_multipart_uploads[identifier]["response"] = response
        return response

    def object_attributes(bucket: str, key: str, headers: dict[str, str], query: dict[str, Any]) -> Any:
        status, answer, body = attributes(bucket, key, headers, query)
        stored = s3._buckets.get(bucket, {}).get("objects", {}).get(key, {})
        if status == 200 and stored.get("checksum_type") == _WHOLE:
            body = body.replace(b"<ChecksumType>COMPOSITE<", f"<ChecksumType>{_WHOLE}<".encode())
        return status, answer, body

    s3._create_multipart_upload = create_upload
    s3._complete_multipart_upload = complete_upload
    s3._get_object_attributes = object_attributes


def _whole_checksum(algorithm: str, parts: Mapping[int, Any], body: bytes) -> str | None:
    """Checksum of the object that the completion in `body` asks for; None where it names a part that is not there."""
    combine, width = _COMBINE[algorithm]
    total: int | None = None
    for entry in ElementTree.fromstring(body).iter():  # noqa: S314 - from our own test clients, over loopback
        if entry.tag.rpartition("}")[2] != "PartNumber":
            continue
        part = parts.get(int(entry.text or 0))
        if part is None:
            return None
        value = int.from_bytes(base64.b64decode(part["checksums"][algorithm]), "big")
        total = value if total is None else combine(total, value, part["size"])
    return None if total is None else base64.b64encode(total.to_bytes(width, "big")).decode()


def _text(body: bytes, name: str) -> str:
    found = ElementTree.fromstring(body).find(f"{{*}}{name}")  # noqa: S314 - ministack wrote it
    return (found.text or "") if found is not None else ""
