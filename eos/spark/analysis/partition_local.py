"""Shards apart: whether each row of a transformed DataFrame is made of records of one shard, decided by its logical plan.

With ``commit="partition"`` shards commit by themselves. A run that goes on behind one that failed reads only the shards that
are left, and would make another row of the records of several. The offsets that a task commits say nothing of the rows that
it got, so it does not show later. The walk begins at the run's input, which `eos.spark.analysis.lineage` has given a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from eos.errors import UsageError
from eos.spark.analysis.lineage import mark_of, marks_in
from eos.spark.session.jvm import items, kind_of, plans_of

# Columns of the input by which the shard of a row is known. The value of an attribute with a "?" may be NULL instead:
# it comes from the side of an outer join that need not match.
_SHARD, _TOPIC, _PARTITION = "shard", "topic", "partition"
_MAYBE = "?"
Roles = Mapping[int, str]

_EACH_ROW = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "LateralJoin",  # with a lookup, a function of the row: a subquery over the input was refused before
        "LocalLimit",  # always below a GlobalLimit
        "PipeOperator",  # what stands below it says what it does
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "View",
    }
)
# What a Python function returns cannot be seen: it is trusted to keep `shard`, and the writers check what they can.
_OPAQUE = frozenset({"MapInArrow", "MapInPandas"})
_GROUPED_OPAQUE = frozenset({"FlatMapGroupsInArrow", "FlatMapGroupsInPandas"})
_COGROUPED_OPAQUE = frozenset({"FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas"})
_SET_OPERATIONS = frozenset({"Except", "Intersect", "Union"})
_JOINS = frozenset({"AsOfJoin", "Join"})
_ONE_OF_A_GROUP = frozenset({"AnyValue", "First", "Last", "Max", "Min"})
_FAITHFUL = frozenset({"bigint", "int", "string"})  # casts to these keep different shards different


def require_partition_local(frame: DataFrame, source: DataFrame, *, topics: int) -> None:
    """Refuse a frame whose rows are made of records of several shards, or whose ``shard`` is not the input's.

    The frame is made of ``source``, from `as_input`. Of a single one of ``topics`` the shards are known by ``partition`` alone.

    Raises:
        UsageError: names the operator, and the way out.
    """
    plan, *subqueries = plans_of(frame)
    mine = mark_of(source)
    shared = _definitions([plan, *subqueries])
    if any(mine in marks_in(one, shared) for one in subqueries):
        raise _mixed("a subquery over the input")
    roles = _Walk(mine, topics).of(plan)
    found = [_role(one, roles or {}) for one in items(plan.output()) if one.name() == _SHARD]
    allowed = {_SHARD} if topics > 1 else {_SHARD, _PARTITION}
    if any(role is None or role.rstrip(_MAYBE) not in allowed for role in found):
        raise UsageError(
            "the column 'shard' of the transform's rows is computed: their offsets would be committed by the transaction "
            "of another input partition. The transform must carry the column 'shard' through unchanged. "
            "Fix: .select('shard', …)"
        )


# --- inside ----------------------------------------------------------------------------------------------


def _mixed(what: str) -> UsageError:
    return UsageError(
        f"the transform makes rows of records of several input partitions ({what}), and with commit='partition' each of "
        "those is committed by itself: a run that goes on where another has failed would make other rows. "
        "Fix: do it per shard (groupBy('shard', …), Window.partitionBy('shard', …), a join on 'shard'), or commit='batch', "
        "the first time with --adopt-offsets (ownership.adopt_offsets) and no other run at work"
    )


def _definitions(plans: Iterable[Any]) -> dict[int, Any]:
    """The common table expressions of these plans by id. A reference may stand in another plan: that of a subquery."""
    found: dict[int, Any] = {}
    for node in plans:
        if kind_of(node) == "CTERelationDef":
            found[node.id()] = node
        found |= _definitions(items(node.children()))
    return found


@dataclass
class _Walk:
    """From the input up to the frame: by which attributes the shard of a row is known, node by node.

    ``None`` stands for what is not made of the input: a lookup.
    """

    mine: str
    topics: int
    # Common table expressions by id.
    shared: dict[int, tuple[Any, Roles | None]] = field(default_factory=dict)

    def of(self, node: Any) -> Roles | None:
        kind = kind_of(node)
        if kind == "SubqueryAlias" and str(node.alias()) == self.mine:
            return _by_name(node, {_SHARD, _TOPIC, _PARTITION})
        if kind == "WithCTE":
            *shared, last = items(node.children())
            for one in shared:
                self.shared[one.id()] = one, self.of(one)
            return self.of(last)
        if kind == "CTERelationRef":
            definition, roles = self.shared[node.cteId()]
            return None if roles is None else _moved([definition], [roles], node)
        below = items(node.children())
        given = [self.of(child) for child in below]
        if all(roles is None for roles in given):
            return None
        if len(given) == 1 and given[0] is not None:
            return self._of_one(node, kind, given[0])
        return self._of_several(node, kind, below, given)

    def _of_several(self, node: Any, kind: str, below: list[Any], given: list[Roles | None]) -> Roles:
        if kind in _SET_OPERATIONS:
            return self._of_set_operation(node, kind, below, given)
        if kind in _JOINS:
            return self._of_join(node, kind, given)
        if kind in _COGROUPED_OPAQUE:
            for attributes, roles in zip((node.leftAttributes(), node.rightAttributes()), given, strict=True):
                if roles is not None:
                    self._require(items(attributes), roles, "cogroup()")
            return _by_name(node, {_SHARD})
        raise _mixed(f"by the operator {kind}, which eos does not know")

    def _of_one(self, node: Any, kind: str, roles: Roles) -> Roles:
        if kind in _EACH_ROW:
            return roles
        if kind == "Project":
            return {**roles, **_renamed(items(node.projectList()), roles)}
        if kind == "Expand":  # unpivot() keeps columns, rollup() and cube() empty them
            rows = [items(one) for one in items(node.projections())]
            return _by_place(rows, [roles] * len(rows), node)
        if kind == "Aggregate":
            self._require(items(node.groupingExpressions()), roles, "an aggregate")
            return _renamed(items(node.aggregateExpressions()), roles)
        if kind == "Window":
            self._require(items(node.partitionSpec()), roles, "a window")
            return roles
        if kind in {"Deduplicate", "DeduplicateWithinWatermark"}:
            self._require(items(node.keys()), roles, "dropDuplicates()")
            return roles
        if kind == "Distinct":
            self._require(items(node.output()), roles, "distinct()")
            return roles
        if kind in _GROUPED_OPAQUE:
            self._require(items(node.groupingAttributes()), roles, "applyInPandas() or applyInArrow()")
            return _by_name(node, {_SHARD})
        if kind in _OPAQUE:
            return _by_name(node, {_SHARD})
        raise _mixed({"GlobalLimit": "limit()", "Offset": "offset()"}.get(kind, f"by the operator {kind}"))

    def _of_set_operation(self, node: Any, kind: str, below: list[Any], given: list[Roles | None]) -> Roles:
        if kind == "Union":  # a lookup's rows are of no shard, whatever their column says
            return _moved(below, [roles or {} for roles in given], node)
        mine = [(child, roles) for child, roles in zip(below, given, strict=True) if roles is not None]
        roles = _moved([child for child, _ in mine], [roles for _, roles in mine], node)
        self._require(items(node.output()), roles, f"{kind.lower()}()")
        return roles

    def _of_join(self, node: Any, kind: str, given: list[Roles | None]) -> Roles:
        left, right = given
        both = left is not None and right is not None
        if both and not (kind == "Join" and self._joined_by_shard(node, left or {}, right or {})):
            raise _mixed("a join")
        joined = str(node.joinType().sql())
        if "FULL" in joined or "RIGHT" in joined:
            left = _may_be_null(left)
        if "FULL" in joined or "LEFT OUTER" in joined:
            right = _may_be_null(right)
        return {**(left or {}), **(right or {})}

    def _joined_by_shard(self, node: Any, left: Roles, right: Roles) -> bool:
        if node.condition().isEmpty():
            return False
        equal: set[str] = set()
        for one in _conjuncts(node.condition().get()):
            if kind_of(one) in {"EqualNullSafe", "EqualTo"}:
                sides = items(one.children())
                for here, there in (sides, reversed(sides)):
                    role = _role(here, left)
                    if role is not None and role == _role(there, right):
                        equal.add(role)
        return self._is_known_by(equal)

    def _require(self, by: Iterable[Any], roles: Roles, what: str) -> None:
        if not self._is_known_by({role for one in by if (role := _role(one, roles))}):
            raise _mixed(what)

    def _is_known_by(self, roles: set[str]) -> bool:
        return _SHARD in roles or (_PARTITION in roles and (self.topics == 1 or _TOPIC in roles))


def _role(expression: Any, roles: Roles) -> str | None:
    """What an expression says of the shard of its row: which of the input's columns it is."""
    kind = kind_of(expression)
    if kind == "AttributeReference":
        return roles.get(expression.exprId().id())
    below = [_role(one, roles) for one in items(expression.children())]
    if kind == "Alias" or (kind == "Cast" and expression.dataType().simpleString() in _FAITHFUL):
        return below[0]
    if kind == "AggregateExpression" and kind_of(expression.aggregateFunction()) in _ONE_OF_A_GROUP:
        return _role(items(expression.aggregateFunction().children())[0], roles)
    if kind == "Coalesce" and below[0] is not None:
        if not below[0].endswith(_MAYBE):
            return below[0]  # it is never NULL: fillna()
        if {one and one.rstrip(_MAYBE) for one in below} == {below[0].rstrip(_MAYBE)}:
            return below[0].rstrip(_MAYBE)  # a full outer join on 'shard'
    return None


def _renamed(expressions: Iterable[Any], roles: Roles) -> Roles:
    found = {one.exprId().id(): _role(one, roles) for one in expressions if _is_named(one)}
    return {attribute: role for attribute, role in found.items() if role is not None}


def _moved(below: list[Any], given: list[Roles], node: Any) -> Roles:
    return _by_place([items(child.output()) for child in below], given, node)


def _by_place(rows: list[list[Any]], given: list[Roles], node: Any) -> Roles:
    """The roles of a node's columns: those that every one of these rows has in the column's place."""
    found: dict[int, str] = {}
    for place, column in enumerate(items(node.output())):
        roles = {_role(row[place], of_row) for row, of_row in zip(rows, given, strict=True)}
        if len(roles) == 1 and (role := roles.pop()) is not None:
            found[column.exprId().id()] = role
    return found


def _may_be_null(roles: Roles | None) -> Roles | None:
    return roles and {attribute: role.rstrip(_MAYBE) + _MAYBE for attribute, role in roles.items()}


def _by_name(node: Any, names: set[str]) -> Roles:
    return {one.exprId().id(): one.name() for one in items(node.output()) if one.name() in names}


def _conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) == "And":
        for one in items(condition.children()):
            yield from _conjuncts(one)
    else:
        yield condition


def _is_named(expression: Any) -> bool:
    return kind_of(expression) in {"Alias", "AttributeReference"}
