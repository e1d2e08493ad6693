"""All mutations."""

from tests.mutants.core import CORE
from tests.mutants.prove import PROVE
from tests.mutants.spark import SPARK
from tests.mutants.sql import SQL
from tests.mutants.verify import VERIFY

MUTATIONS = (*CORE, *SQL, *SPARK, *VERIFY, *PROVE)
