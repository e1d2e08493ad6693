"""All mutations."""

from tests.mutants.core import CORE
from tests.mutants.spark import SPARK
from tests.mutants.verify import VERIFY

MUTATIONS = (*CORE, *SPARK, *VERIFY)
