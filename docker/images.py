"""Build the images of this directory, each only if what it is made of has changed.

Usage: docker/images.py [--offline] NAME …        NAME: base, kafka, app, spark, or all
       docker/images.py --tag NAME                print the tag of an image

The context of a build is laid out in .eos/images/NAME: what is in this directory for it, and what comes from
elsewhere: for kafka the jars of Apache Kafka, for the others what docker/stage.py gathers. A hash of the whole
context and of the base goes into the image as a label.

With --offline nothing is pulled: the base of all of them is made by docker/base/build, from Debian's packages.
"""
# ruff: noqa: INP001, T201 - a script, which prints

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from eos.local.jars import jars_root
from eos.local.java import find_java
from eos.local.kafka_jars import provide_kafka
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TAGS = {
    "base": "eos-base:bookworm",
    "kafka": f"eos-kafka:{KAFKA_VERSION}",
    "app": "eos-app:dev",
    "spark": "eos-spark:dev",
}
LABEL = "eos.definition"
BUILD_TIMEOUT_S = 900  # a cold build pulls a base; none of these takes long by itself
STAGE_TIMEOUT_S = 900  # downloads jars or wheels, the first time


def main() -> int:
    """Build what is asked for; the exit code is that of the first step that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--offline", action="store_true", help="pull nothing: make the base by debootstrap")
    parser.add_argument("--tag", action="store_true", help="print the tags of the images and build nothing")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*TAGS, "all"])
    asked = parser.parse_args()
    names = list(dict.fromkeys(n for name in asked.names for n in (present() if name == "all" else [name])))
    if asked.tag:
        print("\n".join(TAGS[name] for name in names))
        return 0
    try:
        if asked.offline or "base" in names:
            subprocess.run([HERE / "base" / "build", TAGS["base"]], check=True, timeout=BUILD_TIMEOUT_S)
        for name in names:
            if name != "base":
                build(name, TAGS["base"] if asked.offline else public_base(name))
    except subprocess.CalledProcessError as error:
        print(f"{_command(error.cmd)} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def present() -> list[str]:
    """The images of this checkout; without base, which only offline builds use."""
    return [name for name in TAGS if (HERE / name / "Dockerfile").is_file()]


def public_base(name: str) -> str:
    """The default of ``ARG BASE=`` in an image's Dockerfile."""
    for line in (HERE / name / "Dockerfile").read_text().splitlines():
        if line.startswith("ARG BASE="):
            return line.removeprefix("ARG BASE=").strip()
    msg = f"docker/{name}/Dockerfile has no line ARG BASE=…"
    raise OSError(msg)


def build(name: str, base: str) -> None:
    """Lay out the context, and build unless an image of just this context is there."""
    context = ROOT / ".eos" / "images" / name
    context.parent.mkdir(parents=True, exist_ok=True)
    if name == "kafka":
        stage_kafka(context)
    else:
        subprocess.run(
            [sys.executable, HERE / "stage.py", name, context], check=True, cwd=ROOT, timeout=STAGE_TIMEOUT_S
        )
    definition = _hash(context, f"{base} {_asked(base, '{{.Id}}')}")
    if _asked(TAGS[name], f'{{{{index .Config.Labels "{LABEL}"}}}}') == definition:
        print(f"{TAGS[name]} is up to date.", flush=True)
        return
    print(f"Building {TAGS[name]} on {base}", flush=True)
    former = _asked(TAGS[name], "{{.Id}}")
    command = ["docker", "build", "--quiet", "--tag", TAGS[name]]
    command += ["--build-arg", f"BASE={base}", "--label", f"{LABEL}={definition}", str(context)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        if base != TAGS["base"] and not _asked(base, "{{.Id}}"):
            print(f"Fix: where {base} cannot be pulled, make images OFFLINE=1", file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    print(f"Built {TAGS[name]}.", flush=True)
    if former and former != _asked(TAGS[name], "{{.Id}}"):
        # Else each change leaves some hundred megabytes without a name. Refused, if anybody still uses it: good.
        subprocess.run(["docker", "image", "rm", former], capture_output=True, check=False, timeout=60)


def stage_kafka(context: Path) -> None:
    """The directory, and beside it the jars: fetched if need be, and verified against their checksums."""
    kept = jars_root(ROOT / ".eos", None) / KAFKA_JARS.directory
    # Java is asked for only where it may be needed to fetch; the jars that are there need none.
    java = "java" if kept.is_dir() else find_java()
    jars = provide_kafka(kept, java=java, kafka_home=None, progress=lambda line: print(line, flush=True))
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(HERE / "kafka", context, symlinks=True)
    (context / "libs").mkdir()
    for jar in jars.glob("*.jar"):
        shutil.copy2(jar, context / "libs")
    for path in context.rglob("*"):
        if not path.is_symlink():  # readable for the image's user, whatever the umask was
            path.chmod(path.stat().st_mode | (0o755 if os.access(path, os.X_OK) else 0o644))


def _hash(context: Path, base: str) -> str:
    """What the image is made of: names, contents, targets of links, and who may execute."""
    digest = hashlib.sha256(base.encode())
    for path in sorted(context.rglob("*")):
        digest.update(f"\0{path.relative_to(context)}\0".encode())
        if path.is_symlink():
            digest.update(f"-> {path.readlink()}".encode())
        elif path.is_file():
            digest.update(b"x" if os.access(path, os.X_OK) else b"-")
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _asked(image: str, template: str) -> str:
    """What the engine says of an image; empty if it has none of that name."""
    command = ["docker", "image", "inspect", "--format", template, image]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


def _command(command: object) -> str:
    return " ".join(map(str, command)) if isinstance(command, list) else str(command)


if __name__ == "__main__":
    sys.exit(main())
