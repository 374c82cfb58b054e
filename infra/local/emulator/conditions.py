"""Template conditions whose operands may be any intrinsic. ministack compares some (Fn::Join) unresolved, as if they differed,
which turned the bootstrap template's empty policy list into a policy named ''."""

from __future__ import annotations

import copy
from typing import Any

from ministack.services.cloudformation import changesets, engine, handlers, provisioners, stacks


def install() -> None:
    for module in (changesets, engine, handlers, provisioners, stacks):
        if hasattr(module, "_evaluate_conditions"):
            module._evaluate_conditions = evaluate


def evaluate(template: dict[str, Any], parameters: dict[str, Any]) -> dict[str, bool]:
    """Condition name -> value. Raises ValueError for an expression that is not a condition function."""
    declared: dict[str, Any] = template.get("Conditions") or {}

    def value(operand: Any) -> Any:
        return engine._resolve_refs(copy.deepcopy(operand), {}, parameters, {}, template.get("Mappings", {}), "", "")

    def test(expression: Any) -> bool:
        if isinstance(expression, bool):
            return expression
        ((name, argument),) = expression.items()
        if name == "Condition":
            return test(declared[argument])
        if name == "Fn::Equals":
            left, right = (value(operand) for operand in argument)
            return str(left) == str(right)
        if name == "Fn::Not":
            return not test(argument[0])
        if name == "Fn::And":
            return all(test(item) for item in argument)
        if name == "Fn::Or":
            return any(test(item) for item in argument)
        raise ValueError(f"Template format error: {name} is not a condition function")

    return {name: test(expression) for name, expression in declared.items()}
