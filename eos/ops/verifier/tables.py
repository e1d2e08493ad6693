"""The tables of a comparison, in SQLite: from expected and found outputs to those that differ."""

from eos.ops.verifier.report import Difference

# want: the only partition that an output belongs in, if there is only one. named: the output names it itself.
# astray: a record found is in none of the several partitions that its key may be in.
SCHEMA = """
PRAGMA journal_mode = OFF;  -- nothing here is worth recovering
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA temp_store = FILE;
PRAGMA cache_size = -16384;  -- KiB; SQLite sorts in pieces of this size, and a few are in memory at once
CREATE TABLE expected (seq INTEGER PRIMARY KEY, id INT, want INT, topic INT, source INT, offset INT, outputs INT, named INT);
CREATE TABLE found (seq INTEGER PRIMARY KEY, id INT, topic INT, place INT, offset INT, astray INT);
"""
INSERT_EXPECTED = """
INSERT INTO expected (id, want, topic, source, offset, outputs, named) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
INDEX = "CREATE INDEX expected_by_id ON expected (id)"  # to look single ones up
INSERT_FOUND = "INSERT INTO found (id, topic, place, offset, astray) VALUES (?, ?, ?, ?, ?)"

# Identities that are not simply found as often as expected, from one input and in the one output partition they want.
SPECIAL = """
CREATE TABLE special (id INTEGER PRIMARY KEY, expected INT, found INT);
INSERT INTO special
SELECT id, sum(expected), sum(found) FROM (
    SELECT id, 1 AS expected, 0 AS found, source, NULL AS place, want FROM expected
    UNION ALL SELECT id, 0, 1, NULL, place, NULL FROM found
) GROUP BY id
HAVING sum(expected) <> sum(found) OR min(source) <> max(source) OR min(place) <> max(place)
    OR min(want) <> min(place) OR max(want) <> min(place);
"""

# Nothing shows which of several alike is missing or too many: the last ones are named. (CROSS JOIN keeps SQLite from
# turning the join around, for which it would have to index the large table first.)
MISSING = """
CREATE TABLE missing AS
SELECT topic, source, offset, outputs FROM (
    SELECT e.*, s.found, row_number() OVER (PARTITION BY e.id ORDER BY e.seq) AS nth
    FROM expected e CROSS JOIN special s ON s.id = e.id WHERE s.expected > s.found
) WHERE nth > found;
"""
SURPLUS = """
CREATE TABLE surplus AS
SELECT topic, place, offset, expected > 0 AS known FROM (
    SELECT f.*, s.expected, row_number() OVER (PARTITION BY f.id ORDER BY f.seq) AS nth
    FROM found f CROSS JOIN special s ON s.id = f.id WHERE s.found > s.expected
) WHERE nth > expected;
"""

# Of those found as often as expected: too few where they belong, and so too many elsewhere.
MISPLACED = """
CREATE TABLE share (id INT, place INT, wanted INT, found INT, PRIMARY KEY (id, place));
INSERT INTO share
SELECT id, place, sum(wanted), sum(found) FROM (
    SELECT e.id, e.want AS place, 1 AS wanted, 0 AS found
    FROM expected e CROSS JOIN special s ON s.id = e.id WHERE s.expected = s.found AND e.want IS NOT NULL
    UNION ALL SELECT f.id, f.place, 0, 1
    FROM found f CROSS JOIN special s ON s.id = f.id WHERE s.expected = s.found
) GROUP BY id, place;
CREATE TABLE away (id INTEGER PRIMARY KEY, want INT);
INSERT INTO away SELECT id, min(place) FROM share WHERE wanted > found GROUP BY id;
CREATE TABLE named (id INTEGER PRIMARY KEY);
INSERT INTO named SELECT DISTINCT id FROM expected WHERE named;
CREATE TABLE misplaced AS
SELECT id, topic, place, offset, want FROM (
    SELECT f.*, a.want, h.wanted, row_number() OVER (PARTITION BY f.id, f.place ORDER BY f.seq) AS nth
    FROM found f CROSS JOIN away a ON a.id = f.id CROSS JOIN share h ON h.id = f.id AND h.place = f.place
) WHERE nth > wanted
UNION ALL
SELECT id, topic, place, offset, NULL FROM found f
WHERE astray AND NOT EXISTS (SELECT 1 FROM special s WHERE s.id = f.id AND s.expected <> s.found)
    AND NOT EXISTS (SELECT 1 FROM named n WHERE n.id = f.id);
"""

# Alike outputs of one input partition in one output partition are paired first with first, second with second …: in the
# right order they can stand in no other pairing, since all of them are matched. The others are left to `ordering`.
STEPS = """
CREATE TABLE alike AS
SELECT e.id, e.source, e.seq, e.want FROM expected e CROSS JOIN special s ON s.id = e.id
WHERE s.expected = s.found AND e.id NOT IN (SELECT id FROM misplaced);
CREATE INDEX alike_by_id ON alike (id, source, seq);
CREATE TABLE steps AS
SELECT f.place, f.seq AS found_seq, f.id, e.source, e.seq AS expected_seq
FROM (SELECT id, seq, source, row_number() OVER (PARTITION BY id ORDER BY seq) AS nth FROM expected) e
JOIN (SELECT id, seq, place, row_number() OVER (PARTITION BY id ORDER BY seq) AS nth FROM found) f
ON f.id = e.id AND f.nth = e.nth
WHERE e.id NOT IN (SELECT id FROM special) AND e.id NOT IN (SELECT id FROM misplaced)
UNION ALL
SELECT f.place, f.seq, f.id, NULL, NULL FROM found f CROSS JOIN special s ON s.id = f.id
WHERE s.expected = s.found AND f.id NOT IN (SELECT id FROM misplaced)
ORDER BY 1, 2;
"""

FOLLOWING = """
SELECT seq FROM alike WHERE id = ? AND source = ? AND seq > ? AND coalesce(want = ?, 1) ORDER BY seq LIMIT 1
"""

TORN = "SELECT source, offset, count(*) AS gone, outputs FROM missing GROUP BY source, offset HAVING gone < outputs"
COUNTS = {
    Difference.LOST: "SELECT topic, count(*) FROM missing GROUP BY topic",
    Difference.DUPLICATED: "SELECT topic, count(*) FROM surplus WHERE known GROUP BY topic",
    Difference.UNEXPECTED: "SELECT topic, count(*) FROM surplus WHERE NOT known GROUP BY topic",
    Difference.MISPLACED: "SELECT topic, count(*) FROM misplaced GROUP BY topic",
}
