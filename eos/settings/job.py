"""The job's own table, validated by the model that the job declares."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from eos.settings.problems import Problem, config_error, nearest, problems_of

Model = TypeVar("Model", bound=BaseModel)

_WANTS_JSON = frozenset(
    {"list_type", "tuple_type", "set_type", "dict_type", "model_type", "model_attributes_type"}
)


def validated_job(table: Mapping[str, Any], model: type[Model], origins: Mapping[str, str]) -> Model:
    """The job's settings.

    Raises:
        ConfigError: naming each ``job.<field>`` that is unknown or wrong; values are not shown, since
            only the job knows which are secrets.
    """
    problems = list(_unknown(table, model, origins))
    settings: Model | None = None
    try:
        settings = model.model_validate(_decoded(table, model))
    except ValidationError as error:
        seen = {problem.name for problem in problems}
        problems += [
            problem
            for problem in problems_of(
                error,
                prefix="job.",
                origin=lambda name: origins.get(name, ""),
                fix_for=lambda name: _description(model, name),
                show_values=False,
            )
            if problem.name not in seen
        ]
    if settings is None or problems:
        raise config_error(problems)
    return settings


def _decoded(table: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The table with lists and tables that came as JSON text, as an environment variable must give them."""
    decoded = copy.deepcopy(dict(table))
    try:
        model.model_validate(decoded)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            if one["type"] in _WANTS_JSON and isinstance(one["input"], str):
                _decode_at(decoded, one["loc"], one["input"])
    return decoded


def _decode_at(table: dict[str, Any], path: tuple[int | str, ...], text: str) -> None:
    inner: Any = table
    for part in path[:-1]:
        if not isinstance(inner, dict) or part not in inner:
            return
        inner = inner[part]
    if isinstance(inner, dict) and inner.get(path[-1]) == text:
        try:
            inner[path[-1]] = json.loads(text)
        except ValueError:
            return  # the second validation says what is wrong with it


def _unknown(
    table: Mapping[str, Any], model: type[BaseModel], origins: Mapping[str, str], prefix: str = "job."
) -> Iterator[Problem]:
    if model.model_config.get("extra") == "allow":
        return
    known: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        aliases = (field.alias, field.validation_alias)
        known |= dict.fromkeys(
            (name, *(alias for alias in aliases if isinstance(alias, str))), field.annotation
        )
    for key, value in table.items():
        inner = known.get(key)
        if key not in known:
            near = nearest(key, known)
            fix = f"did you mean {prefix}{near}?" if near else f"one of {', '.join(sorted(known)) or 'none'}"
            what = "the job has no such setting"
            yield Problem(f"{prefix}{key}", what, fix, origins.get(f"{prefix}{key}", ""))
        elif isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _unknown(value, inner, origins, f"{prefix}{key}.")


def _description(model: type[BaseModel], name: str) -> str:
    field = model.model_fields.get(name.removeprefix("job.").partition(".")[0])
    return f"correct it ({field.description})" if field is not None and field.description else ""
