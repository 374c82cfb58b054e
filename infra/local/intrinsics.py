"""Resolve CloudFormation intrinsics of a deployed template to the values that the resources must show."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

NO_VALUE = object()  # what Ref AWS::NoValue resolves to: the key goes away


class UnresolvedError(ValueError):
    """A template expression that this module cannot turn into a value."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a template's expressions may refer to.

    template: the parsed template. physical_ids: logical id -> physical id. attribute: (logical id, name) -> value for
    Fn::GetAtt. parameters: deployed parameter values. pseudo: 'AWS::Region' and so on. exports: export name -> value.
    stack_output: (stack name, output name) -> value.
    """

    template: Mapping[str, Any]
    physical_ids: Mapping[str, str]
    attribute: Callable[[str, str], Any]
    parameters: Mapping[str, str]
    pseudo: Mapping[str, str]
    exports: Mapping[str, str]
    stack_output: Callable[[str, str], str]


def resolve(value: Any, scope: Scope) -> Any:
    """`value` with every intrinsic replaced. Raises UnresolvedError with the expression that has no value."""
    if isinstance(value, list):
        items = [resolve(item, scope) for item in value]
        return [item for item in items if item is not NO_VALUE]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, argument),) = value.items()
        function = _FUNCTIONS.get(name)
        if function is not None:
            return function(argument, scope)
        if name.startswith("Fn::"):
            raise UnresolvedError(f"{name} is not known here")
    resolved = {key: resolve(item, scope) for key, item in value.items()}
    return {key: item for key, item in resolved.items() if item is not NO_VALUE}


def condition(name: str, scope: Scope) -> bool:
    """Value of a condition that the template declares."""
    conditions = scope.template.get("Conditions", {})
    if name not in conditions:
        raise UnresolvedError(f"condition {name} is not declared")
    return _test(conditions[name], scope)


def _test(expression: Any, scope: Scope) -> bool:
    ((name, argument),) = expression.items()
    if name == "Condition":
        return condition(argument, scope)
    if name == "Fn::Equals":
        left, right = (resolve(item, scope) for item in argument)
        return bool(left == right)
    if name == "Fn::Not":
        return not _test(argument[0], scope)
    if name in ("Fn::And", "Fn::Or"):
        results = [_test(item, scope) for item in argument]
        return all(results) if name == "Fn::And" else any(results)
    raise UnresolvedError(f"{name} is not a condition function")


def _ref(name: str, scope: Scope) -> Any:
    if name == "AWS::NoValue":
        return NO_VALUE
    for known in (scope.pseudo, scope.parameters, scope.physical_ids):
        if name in known:
            return known[name]
    raise UnresolvedError(f"Ref {name} has no value: nothing of that name is deployed")


def _get_att(argument: Any, scope: Scope) -> Any:
    logical_id, _, name = argument.partition(".") if isinstance(argument, str) else (argument[0], "", argument[1])
    return scope.attribute(logical_id, resolve(name, scope))


def _join(argument: Any, scope: Scope) -> str:
    separator, items = argument
    return str(separator).join(_text(item) for item in resolve(items, scope))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_SUB_VARIABLE = re.compile(r"\$\{(!?)([^}]+)\}")


def _sub(argument: Any, scope: Scope) -> str:
    text, own = (argument, {}) if isinstance(argument, str) else argument

    def value_of(found: re.Match[str]) -> str:
        escaped, name = found.group(1), found.group(2).strip()
        if escaped:
            return f"${{{name}}}"
        if name in own:
            return _text(resolve(own[name], scope))
        return _text(_get_att(name, scope) if "." in name else _ref(name, scope))

    return _SUB_VARIABLE.sub(value_of, text)


def _select(argument: Any, scope: Scope) -> Any:
    index, items = argument
    return resolve(items, scope)[int(resolve(index, scope))]


def _split(argument: Any, scope: Scope) -> list[str]:
    return str(resolve(argument[1], scope)).split(argument[0])


def _if(argument: Any, scope: Scope) -> Any:
    name, then, otherwise = argument
    return resolve(then if condition(name, scope) else otherwise, scope)


def _import_value(argument: Any, scope: Scope) -> str:
    name = resolve(argument, scope)
    if name not in scope.exports:
        raise UnresolvedError(f"export {name} does not exist")
    return scope.exports[name]


def _stack_output(argument: Any, scope: Scope) -> str:
    return scope.stack_output(resolve(argument["StackName"], scope), resolve(argument["OutputName"], scope))


def _base64(argument: Any, scope: Scope) -> str:
    return base64.b64encode(_text(resolve(argument, scope)).encode()).decode()


def _cidr(argument: Any, scope: Scope) -> list[str]:
    block, count, bits = (resolve(item, scope) for item in argument)
    network = ipaddress.ip_network(block)
    subnets = network.subnets(new_prefix=network.max_prefixlen - int(bits))
    return [str(next(subnets)) for _ in range(int(count))]


def _find_in_map(argument: Any, scope: Scope) -> Any:
    name, first, second = (resolve(item, scope) for item in argument[:3])
    try:
        return scope.template["Mappings"][name][first][second]
    except KeyError as error:
        raise UnresolvedError(f"Fn::FindInMap {name}.{first}.{second} has no value") from error


_FUNCTIONS: dict[str, Callable[[Any, Scope], Any]] = {
    "Ref": _ref,
    "Fn::Base64": _base64,
    "Fn::Cidr": _cidr,
    "Fn::FindInMap": _find_in_map,
    "Fn::GetAtt": _get_att,
    "Fn::GetStackOutput": _stack_output,
    "Fn::If": _if,
    "Fn::ImportValue": _import_value,
    "Fn::Join": _join,
    "Fn::Select": _select,
    "Fn::Split": _split,
    "Fn::Sub": _sub,
}
