"""The dashboard on the FastAPI app itself: one process, one port, one Dash instance, never mounted."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output
from dash.exceptions import DependencyException
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from dashboard import callbacks
from dashboard.callback_bodies import CallbackBodies
from dashboard.callbacks import Candidates as Candidates
from dashboard.pages import PAGES
from dashboard.shell import layout as shell_layout
from dashboard.shell import theme
from dashboard.state.push_notifications import PushNotifications
from dashboard.static import Packed, Static
from server.query import Reader

_INDEX = """<!DOCTYPE html>
<html lang="en" data-plain="@plain@" data-push="@push@">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Rollscope @version@">
<title>{%title%}</title>
<link rel="preload" href="@font@" as="font" type="font/woff2" crossorigin>
<style>@tokens@</style>
<script>@script@</script>
{%favicon%}
{%css%}
</head>
<body>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""

# Loaded with the document, because text that changes its font after the first paint moves what is below it.
_FONT = "inter/inter-latin.woff2"


class _Dash(Dash):
    """Dash without Python's version and the unused WebSocket in the page's configuration."""

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = super()._config()  # type: ignore[no-untyped-call]
        return {key: value for key, value in config.items() if key not in ("python_version", "websocket")}


def attach(
    api: FastAPI, reader: Reader, *, version: str, receivers: Sequence[str] | None = None,
    candidates: Candidates | None = None, push: bool = True,
) -> Dash:  # fmt: skip
    """Puts the dashboard on ``api`` at ``/`` and returns it.

    ``receivers``: names of the configured receivers; the Alerts page reports an empty list. None: unknown.
    ``candidates``: what could be watched, for a page without any run: (what it is, the command).
    ``push``: tabs are notified of new data over a WebSocket (`dashboard.state.push_notifications`); without it they
    poll.

    Call it after the API's own routes are declared (Dash adds a catch-all when the app starts) and before
    any middleware that must stand outside it, such as access checks.
    """
    app = _Dash(
        __name__,
        server=api,  # type: ignore[arg-type]
        title="Rollscope",
        # Dash would flash "Updating..." in the tab's title on every tick.
        update_title="",
        index_string=_index(version, push),
        assets_folder="assets",
    )
    app.index_string = app.index_string.replace("@font@", app.get_asset_url(_FONT))
    app.layout = shell_layout.layout(PAGES, app.config.requests_pathname_prefix)
    callbacks.register(app, reader, receivers, candidates)
    if push:
        api.add_api_websocket_route(app.config.routes_pathname_prefix + "news", PushNotifications(reader).serve)
    _browser_callbacks(app)
    api.add_exception_handler(DependencyException, _no_such_resource)
    # Dash registers its assets at the first request of "/", so a browser that opens another page first would get none.
    app._setup_server()  # type: ignore[no-untyped-call]
    api.add_middleware(CallbackBodies, callbacks=app.callback_map, prefix=app.config.routes_pathname_prefix)
    api.add_middleware(Static, prefix=app.config.routes_pathname_prefix)
    api.add_middleware(Packed, prefix=app.config.routes_pathname_prefix)
    return app


async def _no_such_resource(request: Request, error: Exception) -> JSONResponse:
    """Answers a path below `/_dash-component-suites` that is none of Dash's files; by itself Dash answers 500."""
    return JSONResponse({"detail": "Not Found"}, 404)


def _index(version: str, push: bool) -> str:
    # Pages without charts: only there plotly.js is not fetched at once (`assets/28-graphs.js`).
    plain = " ".join(page.path for page in PAGES if page.charts is None)
    page = _INDEX.replace("@tokens@", theme.css()).replace("@script@", theme.SCRIPT)
    return page.replace("@version@", version).replace("@plain@", plain).replace("@push@", "on" if push else "off")


def _browser_callbacks(app: Dash) -> None:
    """Callbacks that run in the browser, by name: an inline one would need a hash of its own in the CSP."""
    wiring = (
        ("open", Output("view", "data"), [Input("url", "pathname"), Input("url", "search")]),
        ("boot", Output("sink", "data"), [Input("boot", "data")]),
        ("pull", Output("pull", "data"), [Input("clock", "n_intervals")]),
        ("apply", Output("sink", "data", allow_duplicate=True), [Input("delta", "data")]),
    )
    for name, output, triggers in wiring:
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("rollscope", name), output, *triggers, prevent_initial_call=name != "open"
        )


def csp(app: Dash) -> str:
    """A Content-Security-Policy for the dashboard: scripts from here or by hash, none inline, no eval.

    Styles stay open: Plotly writes a style sheet at run time.
    """
    own = base64.b64encode(hashlib.sha256(theme.SCRIPT.encode()).digest()).decode()
    scripts = " ".join(["'self'", f"'sha256-{own}'", *app.csp_hashes()])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
