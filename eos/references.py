"""References: the object that ``package.module:name`` names, and how the code behind it may end."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from eos.base.raised_at import raised_at
from eos.errors import ConfigError, EndedBySignal, EosError, UnclassifiedError, UsageError

T = TypeVar("T")


@contextmanager
def code_of_the_job(
    what: str, *, otherwise: str = "", passing: type[EosError] | tuple[type[EosError], ...] = ()
) -> Iterator[None]:
    """A call of the job's own code outside of records: a class of eos that it raises says nothing of this process.

    A FencedError would end it as if another owner held its shard.

    Raises:
        UsageError: the code raised a class of eos, which is the cause. A ConfigError, a UsageError and one of ``passing`` leave
            as they are.
        UnclassifiedError: with ``otherwise``, it raised anything else: names the line, and ``otherwise`` is the fix.
    """
    try:
        yield
    except (ConfigError, UsageError):
        raise
    except EosError as error:
        if isinstance(error, passing):
            raise
        raise UsageError(
            f"{what} raised {type(error).__name__}: {error}. It is the job's own code that raised it, not eos for this "
            "process. Fix: what that code calls"
        ) from error
    except Exception as error:
        if not otherwise:
            raise
        raise UnclassifiedError(
            f"{what} raised {type(error).__name__}{raised_at(error)}: {error}. Fix: {otherwise}; `eos --debug …` prints the whole "
            "traceback"
        ) from error


@contextmanager
def jobs_code_without_exit() -> Iterator[None]:
    """A block that calls the job's own code: its ``sys.exit`` would end the process, with 0 for all that a caller can see.

    Raises:
        UnclassifiedError: the code has called it; names the line.
    """
    try:
        yield
    except EndedBySignal:
        raise
    except SystemExit as error:
        raise UnclassifiedError(
            f"the job's code called sys.exit({error.code!r}){raised_at(error)}. Fix: raise an exception, or return"
        ) from error


def _split(reference: str) -> tuple[str, str]:
    """The module and the name in it."""
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(
            f"{reference!r} names no job. Fix: package.module:name, for example jobs.refunds:job"
        )
    if "/" in module_name or module_name.endswith(".py"):
        as_module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(
            f"{reference!r} names a file, and a module is asked for. Fix: {as_module}:{name}, in the folder from which Python can "
            "import it, or with --app-dir"
        )
    return module_name, name


def _imported(module_name: str, app_dir: Path) -> ModuleType:
    try:
        with code_of_the_job(f"the module {module_name!r}"):
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Of the module itself or a parent, or of what it imports.
        if error.name is None:
            raise
        if not (module_name + ".").startswith(error.name + "."):
            raise ConfigError(
                f"the module {module_name!r} imports {error.name!r}, which is not found. Fix: install it here, or correct the import"
            ) from error
        raise ConfigError(
            f"there is no module {module_name!r} under {app_dir}. Fix: run from its folder, or name it with --app-dir"
        ) from error
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename}, line {error.lineno}: {error.msg}, so the module {module_name!r} cannot be imported. Fix: correct "
            "the syntax there"
        ) from error
    except (EndedBySignal, EosError):
        raise
    except Exception as error:
        raise UnclassifiedError(
            f"the module {module_name!r} raises {type(error).__name__} when it is imported{raised_at(error)}: {error}. Fix: "
            "correct it there; `eos --debug …` prints the whole traceback"
        ) from error
    except SystemExit as error:  # it would end the command, with 0 for all that a caller can see
        raise ConfigError(
            f"the module {module_name!r} calls sys.exit({error.code!r}) when it is imported. Fix: put what it runs as a script "
            "below: if __name__ == '__main__':"
        ) from error


def load_named(reference: str, app_dir: Path, kind: type[T], title: str) -> T:
    """The object of a kind that a reference names, for example the Job of ``jobs.refunds:job``.

    ``app_dir`` is put in front of sys.path: a console script does not have the working directory there. ``title`` is the
    kind's public name, for the message.

    Raises:
        ConfigError: there is no such module or name, it is something else, or the module exits when it is imported, has a
            syntax error, or misses a module that it imports.
        UsageError: the module raises a class of eos when it is imported.
        UnclassifiedError: it raises anything else.
    """
    module_name, name = _split(reference)
    if str(app_dir) not in sys.path:
        sys.path.insert(0, str(app_dir))
    module = _imported(module_name, app_dir)
    found = getattr(module, name, None)
    if isinstance(found, kind):
        return found
    others = sorted(key for key, value in vars(module).items() if isinstance(value, kind))
    listed = f"it has: {', '.join(others)}" if others else "it has none"
    what = f" ({name!r} is a {type(found).__name__})" if found is not None else ""
    raise ConfigError(f"{module_name!r} has no {title} named {name!r}{what}; {listed}")
