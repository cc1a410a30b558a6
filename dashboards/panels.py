"""Panels, rows, variables and dashboards in one look, with ids, refIds and descriptions that are always there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import Dataquery, PromQueryFormat

from dashboards.queries import Query, metric_names

TAG = "kvdiag"
SCHEMA = 39
"""Of Grafana 10.4, the oldest that these are for; newer ones migrate upwards."""

NO_TRAFFIC = "No traffic"
NOT_SEEN = "Not observed"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_NAN = models.SpecialValueMap(
    options=models.DashboardSpecialValueMapOptions(
        match=models.SpecialValueMatch.NULL_AND_NAN,
        result=models.ValueMappingResult(text=NO_TRAFFIC, color="text", index=0),
    )
)

AnyPanel = timeseries.Panel | stat.Panel | table.Panel
P = TypeVar("P", timeseries.Panel, stat.Panel, table.Panel)


@dataclass(frozen=True, slots=True)
class Row:
    """A question and the panels that answer it; `collapsed` where many have nothing to show there."""

    question: str
    panels: Sequence[AnyPanel]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of label values, several or all; `query` as Grafana's `label_values(series, label)`."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Steps:
    """Colours from a value on, and where the numbers come from."""

    warning: float
    critical: float


JOB = Variable("job", "Job", "label_values(up, job)")
ENGINE = Variable("engine", "Engine", 'label_values(kvdiag_engine_up{job=~"$job"}, engine)')
SRC = Variable("src", "Prefill node", 'label_values(kvdiag_ttft_seconds_count{job=~"$job"}, prefill_node)')
DST = Variable(
    "dst", "Decode node", 'label_values(kvdiag_ttft_seconds_count{job=~"$job", prefill_node=~"$src"}, decode_node)'
)
NODE = Variable("node", "Node", 'label_values(kvdiag_rdma_port_up{job=~"$job"}, node)')
DEVICE = Variable("device", "Device", 'label_values(kvdiag_rdma_port_up{job=~"$job", node=~"$node"}, device)')
PORT = Variable(
    "port", "Port", 'label_values(kvdiag_rdma_port_up{job=~"$job", node=~"$node", device=~"$device"}, port)'
)


def lines(
    title: str,
    tells: str,
    unit: str,
    queries: Sequence[Query],
    *,
    width: int = 12,
    height: int = 9,
    stacked: bool = False,
    top: float | None = None,
    empty: str = NO_TRAFFIC,
) -> timeseries.Panel:
    """Return a panel of lines over time; `stacked` where their sum means something, `top` the greatest possible."""
    panel = _common(timeseries.Panel(), title, tells, unit, queries, width, height, empty)
    panel.min(0).show_points(common.VisibilityMode.NEVER).line_width(1).fill_opacity(30 if stacked else 5)
    panel.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
        # The legend shows three or four of many lines: the culprit is to be among them.
        .sort_by("Last *")
        .sort_desc(True)
    )
    if unit == "percentunit":
        panel.decimals(1)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if top is not None:
        panel.max(top)
    return panel


def number(
    title: str,
    tells: str,
    unit: str,
    expr: str,
    *,
    width: int = 4,
    steps: Steps | None = None,
    empty: str = NO_TRAFFIC,
) -> stat.Panel:
    """Return a panel of one number, coloured from the steps on."""
    panel = _common(stat.Panel(), title, tells, unit, [Query(expr, title)], width, 4, empty)
    panel.mappings([_NAN]).graph_mode(common.BigValueGraphMode.AREA)
    panel.color_mode(common.BigValueColorMode.VALUE).thresholds(_steps(steps))
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel


def rows_of(
    title: str,
    tells: str,
    unit: str,
    expr: str,
    *,
    names: dict[str, str],
    steps: Steps | None = None,
    link: tuple[str, str] | None = None,
    width: int = 12,
    empty: str = NO_TRAFFIC,
) -> table.Panel:
    """Return a table of the newest values: `names` renames and orders the columns, `link` is a title and an address."""
    panel = _table(title, tells, unit, expr, width, steps, empty)
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: place for place, name in enumerate(names)},
                "renameByName": names,
            },
        )
    )
    if link is not None:
        panel.data_links([dashboards.DashboardLink(link[0]).url(link[1])])
    return panel


def matrix(
    title: str, tells: str, unit: str, expr: str, *, rows: str, columns: str, steps: Steps | None = None
) -> table.Panel:
    """Return a table with one label's values down, another's across, and the newest value in each coloured cell."""
    panel = _table(title, tells, unit, expr, 12, steps, NO_TRAFFIC)
    return panel.with_transformation(
        models.DataTransformerConfig(
            id_val="groupingToMatrix",
            options={"rowField": rows, "columnField": columns, "valueField": "Value", "emptyValue": "null"},
        )
    )


def dashboard(
    uid: str, title: str, description: str, variables: Sequence[Variable], rows: Sequence[Row]
) -> models.Dashboard:
    """Return a dashboard with links to its siblings; ids count up through the panels, the same in every build."""
    builder = dashboards.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly()
    builder.time("now-1h", "now").refresh("30s").tooltip(models.DashboardCursorSync.CROSSHAIR)
    builder.link(
        dashboards.DashboardLink(TAG)
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .keep_time(True)
        .include_vars(True)
    )
    builder.with_variable(dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        builder.with_variable(
            dashboards.QueryVariable(variable.name)
            .label(variable.label)
            .datasource(_SOURCE)
            .query({"query": variable.query, "refId": variable.name, "qryType": 5})
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.NATURAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(models.VariableOption(text=["All"], value=["$__all"], selected=True))
        )
    for row in rows:
        made = dashboards.Row(row.question)
        if row.collapsed:
            for panel in row.panels:
                made.with_panel(panel)
            builder.with_row(made)
            continue
        builder.with_row(made)
        for panel in row.panels:
            builder.with_panel(panel)
    built = builder.build()
    built.schema_version = SCHEMA
    _number(built.panels or [])
    return built


def pair_link(src: str, dst: str) -> str:
    """Return the address of the pair drill-down for two nodes, which are given as Grafana spells them."""
    return f"/d/kvdiag-pair?var-src={src}&var-dst={dst}&${{__url_time_range}}&${{datasource:queryparam}}"


def _number(panels: Sequence[models.Panel | models.RowPanel]) -> None:
    """Give panels an id and targets a refId, which the builder leaves unset: alerts and links refer to them."""
    following = 0

    def give(one: models.Panel | models.RowPanel) -> None:
        nonlocal following
        following += 1
        one.id_val = following
        if isinstance(one, models.RowPanel):
            for inner in one.panels:
                give(inner)
            return
        for place, target in enumerate(one.targets or []):
            assert isinstance(target, Dataquery)
            target.ref_id = chr(ord("A") + place) if place < 26 else f"A{chr(ord('A') + place - 26)}"

    for panel in panels:
        give(panel)


def _common(
    panel: P, title: str, tells: str, unit: str, queries: Sequence[Query], width: int, height: int, empty: str
) -> P:
    names = ", ".join(metric_names([query.expr for query in queries]))
    panel.title(title).description(f"{tells}\n\nMetrics: {names}.").unit(unit).datasource(_SOURCE)
    panel.span(width).height(height).no_value(empty)
    for query in queries:
        panel.with_target(
            prometheus.Dataquery().datasource(_SOURCE).expr(query.expr).legend_format(query.legend).range()
        )
    return panel


def _table(title: str, tells: str, unit: str, expr: str, width: int, steps: Steps | None, empty: str) -> table.Panel:
    panel = _common(table.Panel(), title, tells, unit, [], width, 9, empty)
    panel.description(f"{tells}\n\nMetrics: {', '.join(metric_names([expr]))}.")
    panel.with_target(
        prometheus.Dataquery().datasource(_SOURCE).expr(expr).instant().format(PromQueryFormat.TABLE)
    ).thresholds(_steps(steps))
    if steps is not None:
        panel.cell_options(common.TableColoredBackgroundCellOptions(mode=common.TableCellBackgroundDisplayMode.BASIC))
    return panel


def _steps(steps: Steps | None) -> dashboards.ThresholdsConfig:
    found = [models.Threshold(value=None, color="green" if steps else "text")]
    if steps is not None:
        found += [
            models.Threshold(value=steps.warning, color="orange"),
            models.Threshold(value=steps.critical, color="red"),
        ]
    return dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(found)
