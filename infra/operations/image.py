"""Builds an image in the environment's image project: pack the source, upload it, start the build, follow it.

Nothing here reads the environment or the clock: clients, progress and waiting are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from infra.catalog.software import Software
from infra.config.image_arguments import CONTEXT, ImageArguments
from infra.config.names import image_parameter, repository_uri
from infra.config.plan import Plan
from infra.constructs import image_script
from infra.operations import builds

SHARED_FOLDERS = ("build", "runtime")
"""What Dockerfiles copy besides files of their own folder."""
LEFT_OUT = frozenset({"__pycache__", "build", "dist"})
LEFT_OUT_SUFFIXES = (".egg-info", ".pyc")
"""What running the runtime here leaves behind. It must not reach an image, nor give the same source another tag."""


class SourceFault(Exception):
    """A source that cannot be built; nothing was uploaded. The text says what to do."""


class ImageFault(Exception):
    """AWS refused, a build did not succeed, or there is no image yet; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stack's Dockerfile, what it copies and its arguments, as one file that names itself."""

    stack: Software
    packed: builds.Packed

    @property
    def key(self) -> str:
        return f"{image_script.CONTEXT_PREFIX}{self.packed.digest}.zip"

    @property
    def tag(self) -> str:
        return image_script.tag(self.stack, self.packed.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A build that was started and, unless it goes on in the background, the image that it made."""

    stack: Software
    tag: str
    build: str
    status: Literal["SUCCEEDED", "STARTED"]
    image: str | None
    """REPOSITORY@sha256:DIGEST; None while the build goes on."""

    def document(self) -> dict[str, object]:
        """Plain data for `--json`."""
        return asdict(self)


def source(root: Path, arguments: ImageArguments, *, anew: str | None = None) -> Source:
    """What a build of the stack needs, from the repository at `root`. Same files and arguments, same bytes.

    With `anew`, which names the occasion, it is another source, built without a layer of an older image: so it gets what
    Debian and PyPI have by now.

    Raises SourceFault when an argument has no value yet, or a file cannot be packed.
    """
    if arguments.unresolved:
        missing = "; ".join(f"{name}: {pin.what}" for name, pin in arguments.unresolved.items())
        raise SourceFault(f"build arguments of {arguments.stack} have no value yet ({missing}). Run: moerl lock ENV")
    broken = [name for name, value in arguments.arguments.items() if "\n" in value]
    if broken:
        raise SourceFault(f"build argument {broken[0]} of {arguments.stack} has more than one line. Write it in one.")
    if not (root / arguments.dockerfile).is_file():
        raise SourceFault(f"{root / arguments.dockerfile} is not there. Run moerl from a checkout of the repository.")
    lines = "".join(f"{name}={value}\n" for name, value in arguments.arguments.items())
    listed = builds.Entry(name=image_script.ARGUMENTS_FILE, body=lines.encode())
    context = root / CONTEXT
    files = [path for folder in (arguments.stack, *SHARED_FOLDERS) for path in sorted(_files(context / folder))]
    entries = [
        builds.Entry(
            name=f"{image_script.CONTEXT_FOLDER}/{path.relative_to(context).as_posix()}",
            body=path.read_bytes(),
            executable=bool(path.stat().st_mode & 0o100),
        )
        for path in files
    ]
    occasion = [builds.Entry(name=image_script.ANEW_FILE, body=f"{anew}\n".encode())] if anew else []
    return Source(stack=arguments.stack, packed=builds.pack([listed, *occasion, *entries]))


def upload(made: Source, plan: Plan, *, s3: Any, report: Callable[[str], None]) -> None:
    """Puts the source where the image project reads it.

    Raises ImageFault when AWS refuses.
    """
    bucket = plan.names.apply_bucket
    report(f"upload {len(made.packed.files)} files to s3://{bucket}/{made.key}")
    try:
        s3.put_object(Bucket=bucket, Key=made.key, Body=made.packed.body, ExpectedBucketOwner=plan.account)
    except ClientError as error:
        raise ImageFault(
            f"{error}. Is the access stack of {plan.name} deployed, and may you write its bucket?"
        ) from error


def build(
    made: Source,
    plan: Plan,
    *,
    codebuild: Any,
    logs: Any,
    ecr: Any,
    report: Callable[[str], None],
    wait: Callable[[float], None],
    to_its_end: bool = True,
) -> Built:
    """Builds an uploaded source and returns when the build has ended, or right away without `to_its_end`.

    The clients are boto3's for CodeBuild, CloudWatch Logs and ECR in the plan's region. `report` gets each line of
    progress, `wait` sleeps for the seconds it is given.

    Raises ImageFault when the project is not there or the build does not succeed.
    """
    try:
        started = builds.start(
            plan.names.image_project,
            {"SOURCE_KEY": made.key, "STACK": made.stack},
            codebuild=codebuild,
            report=report,
        )
    except ClientError as error:
        raise ImageFault(
            f"{error}. Is the images stack of {plan.name} deployed, and may you start its builds?"
        ) from error
    if not to_its_end:
        return Built(stack=made.stack, tag=made.tag, build=started, status="STARTED", image=None)
    ended = builds.follow(started, codebuild=codebuild, logs=logs, report=report, wait=wait)
    if not ended.succeeded:
        raise ImageFault(ended.text())
    return Built(
        stack=made.stack, tag=made.tag, build=ended.build, status="SUCCEEDED", image=_by_tag(made.tag, plan, ecr)
    )


def current(plan: Plan, stack: Software, *, ssm: Any) -> str:
    """REPOSITORY@sha256:DIGEST of the stack's newest image that passed the gate, as its build wrote it down.

    Raises ImageFault when there is none, or when the parameter holds something else.
    """
    name = image_parameter(plan.names, stack)
    try:
        value = str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
    except ssm.exceptions.ParameterNotFound as error:
        raise ImageFault(
            f"{plan.name} has no image of {stack} that passed its scan. Run: moerl image build {stack} --env {plan.name}"
        ) from error
    if not re.fullmatch(re.escape(_repository(plan)) + r"@sha256:[0-9a-f]{64}", value):
        raise ImageFault(f"SSM parameter {name} holds {value!r}, which no build wrote. Run the build again.")
    return value


def _by_tag(tag: str, plan: Plan, ecr: Any) -> str:
    details = ecr.describe_images(
        registryId=plan.account, repositoryName=plan.names.repository, imageIds=[{"imageTag": tag}]
    )["imageDetails"]
    return f"{_repository(plan)}@{details[0]['imageDigest']}"


def _repository(plan: Plan) -> str:
    return repository_uri(plan.region, plan.account, plan.names.repository)


def _files(folder: Path) -> Iterator[Path]:
    """Files below the folder that belong to the source."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in LEFT_OUT or path.name.endswith(LEFT_OUT_SUFFIXES):
            continue
        if path.is_symlink():
            raise SourceFault(f"{path} is a link, and its target would not be in the image. Put the file itself there.")
        if path.is_dir():
            yield from _files(path)
        else:
            yield path
