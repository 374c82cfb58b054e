"""boto3 clients that answer from Python: what they are asked and what they answer is held against AWS's own models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.exceptions import ClientError
from botocore.validate import validate_parameters

Answer = Callable[[dict[str, Any]], dict[str, Any]]
Calls = list[tuple[str, dict[str, Any]]]


def scripted(service: str, answers: Mapping[str, Answer]) -> tuple[Any, Calls]:
    """A client of the service and the list of its calls so far; an operation without an answer fails the test."""
    session = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name="us-west-2")  # noqa: S106
    client = session.client(service)
    calls: Calls = []

    def answer(operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        model = client.meta.service_model.operation_model(operation)
        validate_parameters(parameters, model.input_shape)
        calls.append((operation, parameters))
        reply = answers[operation](parameters)
        shown = {key: value for key, value in reply.items() if not hasattr(value, "read")}
        if model.output_shape is not None:
            validate_parameters(shown, model.output_shape)
        return reply

    client._make_api_call = answer
    return client, calls


def refused(operation: str, code: str, message: str) -> ClientError:
    """The error that boto3 raises when AWS answers with one."""
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)
