"""The cells of a page and of the shell around it, shared by browsers that show the same."""

from dashboard.charts import step_axis
from dashboard.charts.event_markers import fired
from dashboard.charts.weight_updates import updates
from dashboard.pages.alerts.data import evaluated, firing
from dashboard.pages.verdict import ribbon
from dashboard.shell.page import STATUS_SECONDS, Page, Scope
from dashboard.state.run_state import cell as state_cell
from dashboard.state.status import View
from dashboard.state.url import parse


def shown(page: Page, scope: Scope) -> View:
    """`cells`, which browsers share that show the same page of a run at the same points."""
    if scope.fresh or not scope.cursor:
        return cells(page, scope)
    span = scope.span
    when = (span.end - span.start, None if span.follow else span.end) if span else None
    key = ("cells", page.key, scope.run, scope.everything, scope.search, when, scope.at, scope.cursor)
    return scope.shared.get(key, STATUS_SECONDS, lambda: cells(page, scope))


def cells(page: Page, scope: Scope) -> View:
    """The page's own texts and the shell's."""
    count: View = {"n.firing": firing(evaluated(scope.alerts, scope.states)) or ""}
    if page.whole:
        # Nothing of one run is read: what it is about is every run's.
        return page.cells(scope) | {"life": ""} | count
    status = scope.status
    shell: View = {"life": status.lifecycle, "newest": scope.facts.newest()} | state_cell(
        status.state, status.lifecycle
    )
    if page.charts and scope.span:
        shell |= updates(scope.reader, scope.run, scope.span, scope.shared)
        shell |= ribbon(scope.reader, scope.run, scope.span, scope.shared)
        shell |= fired(scope.reader, scope.run, scope.alerts, scope.span, scope.shared)
        if parse(scope.search).by_step:
            shell |= step_axis.cells(scope.reader, scope.run, scope.span, scope.shared)
    found = page.cells(scope)
    if status.state.name == "catching_up":
        # Pills judge the present; a run that catches up shows its past.
        found = found | {key: "" for key in found if key.endswith(".p")}
    return found | shell | count
