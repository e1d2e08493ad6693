"""Trial report: one HTML file that opens anywhere: what was done to the job, and what came of it."""

from __future__ import annotations

import html
import io
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import quantiles
from typing import Any

from eos.base.listing import counted
from eos.base.printable import printable
from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.local.versions import KAFKA_VERSION
from eos.prove.trial import Proof

_COLOURS = {
    "committed": "#2e7d32",
    "aborted": "#f9a825",
    "expired": "#ef6c00",
    "unresolved": "#6a1b9a",
    "fenced": "#c62828",
}
_FAULT_COLOUR = "#c62828"
_SHOWN_IN_VAIN = 3
_ABOVE: Mapping[str, Any] = {  # a legend over the lines of a plot would hide some
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "borderaxespad": 0.2,
    "frameon": False,
    "fontsize": "small",
    "columnspacing": 1.2,
    "handletextpad": 0.2,
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
.yes { color: #2e7d32 } .no { color: #c62828 }
table { border-collapse: collapse; margin: .5em 0 } td, th { padding: .2em .9em .2em 0; text-align: left; vertical-align: top; white-space: pre-line }
svg { width: 100%; height: auto } code { background: #f3f3f3; padding: .1em .3em }
"""


def bound(faults: int) -> str:
    """What no failure in so many faults says, honestly (the rule of three)."""
    return (
        f"at most {min(1.0, 3 / faults):.1%} of such faults break it, at 95 % confidence"
        if faults
        else "nothing"
    )


def rows(proof: Proof) -> list[tuple[str, str]]:
    """The figures, as pairs of name and value."""
    happened = proof.happened
    transactions = proof.history.counts()
    report = proof.verdict.report
    in_vain = [one for one in proof.injected if not one.happened]
    why = [f"{one.fault}: {one.detail}" for one in in_vain]
    shown = [
        ("faults that happened", _counted({str(kind): count for kind, count in happened.items()})),
        ("faults after which all was judged", f"{proof.looks}"),
        ("faults that did not", "\n".join([f"{len(in_vain)}", *why[:_SHOWN_IN_VAIN]])),
        ("kinds of faults that were not drawn", ", ".join(proof.not_drawn) or "none"),
    ]
    if proof.trial.ends.has_transactions:
        shown.append(("transactions, as the log has them", _counted(proof.verdict.transactions)))
    if beside := proof.verdict.beside:
        shown.append(("written to, not declared, and not judged", ", ".join(beside)))
    if proof.ends:
        ends = {f"with {code}": count for code, count in proof.ends.items()}
        shown.append(("instances that ended and were started again", _counted(ends)))
    if proof.trial.runtime.logs_commits:
        shown += [
            ("transactions, as workers were told", _counted(transactions)),
            *_untold(proof),
        ]
    if report is not None:
        shown += [
            ("input records processed", f"{report.records:,} of {proof.records:,}"),
            *report.shown,
        ]
    if len(proof.recoveries) > 1:
        cuts = quantiles(proof.recoveries, n=100, method="inclusive")
        until = "until caught up" if proof.trial.each else "to the next commit"
        shown.append((f"recovery, {until}", f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s"))
    shown.append(("time", f"{proof.seconds:.0f} s"))
    if proof.exactly_once:
        shown.append(("what this shows", bound(happened.total())))
    said = {"exactly once": "yes", "not exactly once": "NO"}
    shown.append(("exactly once", said.get(verdict := verdict_of(proof), verdict)))
    return shown


def _untold(proof: Proof) -> list[tuple[str, str]]:
    """What was committed without an answer to a worker. A database counts no commits: there the offsets alone show it."""
    offsets = f"{proof.verdict.unknown:,}"
    if not proof.trial.ends.has_transactions:
        return [("input offsets of commits that no worker was told of", offsets)]
    return [
        ("commits that no worker was told of", f"{proof.verdict.untold:,}"),
        ("input offsets of them", offsets),
    ]


def verdict_of(proof: Proof) -> str:
    """In words."""
    if proof.verdict.against:
        return "not exactly once"
    if proof.verdict.unfinished:
        return (
            "not finished: nothing speaks against what is committed"
            if proof.verdict.report
            else "not finished, and not judged"
        )
    return "exactly once" if proof.exactly_once else f"not shown: {'; '.join(proof.not_shown)}"


def code_of(proof: Proof) -> ExitCode:
    """That the command ends with. What is not finished is for a job under fire what it is for `eos verify --complete`."""
    if proof.exactly_once:
        return ExitCode.DONE
    finished = proof.verdict.against or not proof.verdict.unfinished
    return ExitCode.NOT_EXACTLY_ONCE if finished else ExitCode.UNAVAILABLE


def figures(proof: Proof) -> dict[str, Any]:
    """The figures, for a program that reads them."""
    report, told, log = proof.verdict.report, proof.history.counts(), proof.verdict.transactions
    aborted = max(0, log.get("aborted", 0) - told["aborted"])
    known = proof.trial.runtime.is_eos  # another program does not say what it was told
    return {
        "exactly_once": proof.exactly_once,
        "against": list(proof.verdict.against),
        "unfinished": list(proof.verdict.unfinished),
        "not_shown": proof.not_shown,
        "faults": proof.happened.total(),
        "faults_by_what": dict(Counter(str(one.fault) for one in proof.injected if one.happened)),
        "faults_that_did_not_happen": sum(not one.happened for one in proof.injected),
        "not_judged": list(proof.verdict.beside),
        "not_drawn": list(proof.not_drawn),
        "looks": proof.looks,
        "records": report.records if report is not None else 0,
        "transactions": dict(log),
        "unknown": {"committed": proof.verdict.untold, "aborted": aborted} if known else {},
        "recoveries_s": [round(one, 3) for one in proof.recoveries],
        "seconds": round(proof.seconds, 1),
        "again": proof.trial.again,
    }


def require_plots() -> None:
    """Raises ConfigError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "the report is drawn with matplotlib, which is not installed. Fix: pip install 'eos-kafka[prove]'"
        )


def write_report(proof: Proof, path: Path) -> None:
    """Write the HTML file."""
    yes, verdict = proof.exactly_once, verdict_of(proof)
    verdict += "" if yes else f" (exit code {int(code_of(proof))})"
    began = datetime.fromtimestamp(proof.began, UTC)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{_text(proof.trial.reference)}: {verdict}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(proof.trial.reference)}: <span class='{'yes' if yes else 'no'}'>{verdict}</span></h1>",
        f"<p>{began:%Y-%m-%d %H:%M} UTC. Again: <code>{_text(proof.trial.again)}</code></p>",
        _table(rows(proof)),
    ]
    for heading, found in (
        ("What speaks against it", proof.verdict.against),
        ("What is not finished", proof.verdict.unfinished),
    ):
        if found:
            parts += [f"<h2>{heading}</h2>", _table([(one,) for one in found])]
    parts += [
        "<h2>What happened</h2>",
        _timeline(proof),
        "<h2>Faults</h2>",
        _table(
            [
                (
                    str(one.fault.number),
                    f"{one.began_s:.1f} s",
                    str(one.fault),
                    one.detail if one.happened else "did not happen: " + one.detail,
                )
                for one in proof.injected
            ],
            ("", "at", "fault", ""),
        ),
        "<h2>Versions</h2>",
        _table(
            [
                ("eos", version("eos-kafka")),
                ("Apache Kafka", f"{KAFKA_VERSION}, {counted(proof.trial.brokers, 'broker')}"),
                ("confluent-kafka", version("confluent-kafka")),
                ("Python", sys.version.split()[0]),
                ("system", platform.platform()),
            ]
        ),
        "</body></html>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts))


def _timeline(proof: Proof) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasSVG(figure)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    shards = sorted({one.shard for one in proof.history.ended})
    for outcome, colour in _COLOURS.items():
        ends = [one for one in proof.history.ended if one.outcome == outcome]
        if ends:
            top.scatter(
                [one.at - proof.began for one in ends],
                [shards.index(one.shard) for one in ends],
                s=10 if outcome == "committed" else 50,
                marker="|" if outcome == "committed" else "o",
                color=colour,
                label=f"{outcome} ({len(ends)})",
            )
    top.set_yticks(range(len(shards)), shards)
    top.set_title("Ends of transactions, by worker; shaded: faults", loc="left")
    if shards:
        top.legend(**_ABOVE, ncols=len(_COLOURS))
    at = [one.at_s for one in proof.samples]
    middle.plot(at, [one.lag for one in proof.samples], label="lag (input not committed)")
    middle.plot(
        at, [one.output_held_back for one in proof.samples], label="output behind the last stable offset"
    )
    middle.set_title("Offsets", loc="left")
    middle.legend(**_ABOVE, ncols=2)
    kinds = sorted({one.fault.kind for one in proof.injected})
    for one in proof.injected:
        bottom.barh(
            kinds.index(one.fault.kind),
            max(0.2, one.ended_s - one.began_s),
            left=one.began_s,
            color=_FAULT_COLOUR if one.happened else "#bbb",
        )
        if one.happened:
            for axes in (top, middle):
                axes.axvspan(
                    one.began_s, max(one.ended_s, one.began_s + 0.2), color=_FAULT_COLOUR, alpha=0.08, lw=0
                )
    bottom.set_yticks(range(len(kinds)), list(kinds))
    bottom.set_title("Faults (grey: did not happen)", loc="left")
    bottom.set_xlabel("seconds since the job was started")
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]


def _table(lines: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    head = "<tr>" + "".join(f"<th>{_text(one)}</th>" for one in heads) + "</tr>" if heads else ""
    body = "".join("<tr>" + "".join(f"<td>{_text(one)}</td>" for one in line) + "</tr>" for line in lines)
    return f"<table>{head}{body}</table>"


def _text(text: str) -> str:
    return html.escape(printable(text))


def _counted(counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    return f"{sum(counts.values()):,}" + (f" ({each})" if each else "")
