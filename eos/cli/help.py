"""Help: makes a function a command, with its options, its help and its exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from eos.base.option import Option
from eos.exits import ExitCode
from eos.references import jobs_code_without_exit

Command = TypeVar("Command", bound=Callable[..., Any])

_MEANS = {
    ExitCode.DONE: "done",
    ExitCode.UNEXPECTED: "unexpected error",
    ExitCode.CONFIGURATION: "a setting, a grant or the command line is wrong",
    ExitCode.FENCED: "fenced: another owner holds the shard",
    ExitCode.POISON: "poison: a record cannot be processed; the log has its coordinates",
    ExitCode.UNAVAILABLE: "the cluster did not answer in time, brought no records of a partition, or an open transaction "
    "held input back: start again later",
    ExitCode.OFFSET_GAP: "input was deleted before it was processed",
    ExitCode.NOT_EXACTLY_ONCE: "the verification found a difference, or had nothing to compare or to show",
}


def command(
    commands: typer.Typer, *codes: ExitCode, name: str | None = None, unavailable: str = ""
) -> Callable[[Command], Command]:
    """Make a function a command: its docstring is the help, which ends in its exit codes.

    Args:
        commands: the group that it belongs to.
        *codes: the exit codes that it may end with.
        name: its name, if that is not the function's.
        unavailable: what UNAVAILABLE means for it, if not what it means for the others.
    """
    means = {ExitCode.UNAVAILABLE: unavailable} if unavailable else {}

    def decorate(function: Command) -> Command:
        help_text = help_of(function.__doc__ or "")
        commands.command(name, help=help_text, epilog=exit_codes(codes, means))(_with_options(function))
        return function

    return decorate


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """As typer reads it: each field of a dataclass that is a parameter of the function is an option of its own.

    What must be given stands in front, what the class names in ``BACK`` behind the function's own.
    """
    front, own, back = list[Parameter](), list[Parameter](), dict[int, Parameter]()
    groups: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for parameter in signature(function).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            own.append(parameter.replace(annotation=_for_typer(kind), kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        last, options = getattr(kind, "BACK", ()), get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            option = Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=_for_typer(options[field.name]))
            if field.default is MISSING:
                front.append(option)
            elif field.name in last:
                back[last.index(field.name)] = option.replace(default=field.default)
            else:
                own.append(option.replace(default=field.default))

    def call(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        with jobs_code_without_exit():
            function(**given, **made)

    parameters = [*front, *own, *(option for _, option in sorted(back.items()))]
    call.__name__ = function.__name__
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # of any function
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _for_typer(hint: Any) -> Any:
    """An `Option` as typer's own."""
    option = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Option)), None)
    if option is None:
        return hint
    names = [option.name] if option.name else []
    return Annotated[
        hint.__origin__, typer.Option(*names, metavar=option.metavar, help=option.help, min=option.min)
    ]


def exit_codes(codes: Iterable[ExitCode], means: Mapping[ExitCode, str] | None = None) -> str:
    """The epilog of a help: these exit codes and their meaning."""
    known = {**_MEANS, **(means or {})}
    return "\n".join(["", "[bold]Exit codes[/bold]", *(f"  {int(code)}  {known[code]}" for code in codes)])


def help_of(text: str) -> str:
    """A help text, its paragraphs as one line each, for the terminal's width; indented lines stay as they are.

    Square brackets are typer's markup: a backslash before them keeps them.
    """
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if line and lines and lines[-1] and not line.startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    # typer dedents what follows the first paragraph by its second line, an example's; a blank line more is its second.
    return "\n".join(lines).replace("\n\n", "\n\n\n", 1)
