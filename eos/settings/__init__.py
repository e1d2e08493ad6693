"""Settings: what a process is configured with, from one order of sources, checked before anything connects.

Command line, then environment, then mounted secret files, then TOML, then defaults. An unknown name is
refused wherever it was written; a combination that would break the guarantee is refused with its fix.
"""

from eos.settings.catalogue import Described
from eos.settings.root import Settings
from eos.settings.secrets import HIDDEN, is_sensitive
from eos.settings.shown import Shown

__all__ = ["HIDDEN", "Described", "Settings", "Shown", "is_sensitive"]
