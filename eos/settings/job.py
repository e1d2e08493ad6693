"""The job's own table, validated by the model that the job declares."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from eos.settings.catalogue import model_of
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
    problems = {problem.name: problem for problem in _unknown(table, model, origins)}
    settings: Model | None = None
    try:
        settings = model.model_validate(_decoded(table, model))
    except ValidationError as error:
        for problem in problems_of(
            error,
            prefix="job.",
            origin=lambda name: origins.get(name, ""),
            fix_for=lambda name, verb: _fix(model, name, verb),
            show_values=False,
        ):
            problems.setdefault(problem.name, problem)
    if settings is None or problems:
        raise config_error(list(problems.values()))
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
    *tables, last = path
    inner: Any = table
    for name in tables:
        inner = inner.get(name) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and inner.get(last) == text:
        with suppress(ValueError):  # the second validation says what is wrong with it
            inner[last] = json.loads(text)


def _unknown(
    table: Mapping[str, Any], model: type[BaseModel], origins: Mapping[str, str], prefix: str = "job."
) -> Iterator[Problem]:
    if model.model_config.get("extra") == "allow":
        return
    known = {
        known_as: model_of(field)
        for name, field in model.model_fields.items()
        for known_as in (name, field.alias, field.validation_alias)
        if isinstance(known_as, str)
    }
    for key, value in table.items():
        if key not in known:
            near = nearest(key, known)
            fix = f"did you mean {prefix}{near}?" if near else f"one of {', '.join(sorted(known)) or 'none'}"
            what = "the job has no such setting"
            yield Problem(f"{prefix}{key}", what, fix, origins.get(f"{prefix}{key}", ""))
        elif isinstance(value, Mapping) and (inner := known[key]):
            yield from _unknown(value, inner, origins, f"{prefix}{key}.")


def _fix(model: type[BaseModel], name: str, verb: str) -> str:
    field = model.model_fields.get(name.removeprefix("job.").partition(".")[0])
    return f"{verb} ({field.description})" if field is not None and field.description else ""
