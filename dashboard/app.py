"""The dashboard on the FastAPI app itself: one process, one port, one Dash instance, never mounted."""

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import dash
from dash import ClientsideFunction, Dash, Input, Output
from dash.backends._fastapi import reset_current_request, set_current_request
from dash.exceptions import DependencyException
from dash.fingerprint import check_fingerprint
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from dashboard import bundle, callbacks
from dashboard.callback_bodies import CallbackBodies
from dashboard.callbacks import Candidates as Candidates
from dashboard.pages import PAGES, by_path
from dashboard.shell import layout as shell_layout
from dashboard.shell import theme
from dashboard.state.push_notifications import PushNotifications
from dashboard.static import Packed, Static
from server.query import Reader

_INDEX = """<!DOCTYPE html>
<html lang="en" data-plotly="@plotly@" data-plain="@plain@" data-push="@push@">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Rollscope @version@">
<title>{%title%}</title>
<link rel="preload" href="@font@" as="font" type="font/woff2" crossorigin>
<style>@tokens@</style>
<script>@theme@</script>
<script>@preload@</script>
{%favicon%}
{%css%}
<link rel="stylesheet" href="@style@">
<link rel="modulepreload" href="@entry@">
</head>
<body>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}<script type="module" src="@entry@"></script></footer>
</body>
</html>"""

# Loaded with the document, because text that changes its font after the first paint moves what is below it.
_FONT = "inter/inter-latin.woff2"
_SUITES = "_dash-component-suites/"
_PLOTLY = _SUITES + "plotly/package_data/plotly.min.js"
# Starts to load plotly.js with the document, on pages with charts; `assets/widgets/chart.mjs` runs it.
_PRELOAD = (
    "(function(){var r=document.documentElement.dataset,p=location.pathname.split('/').pop();"
    "if(r.plain.split(' ').includes(p))return;var l=document.createElement('link');"
    "l.id='plotly-ahead';l.rel='preload';l.as='script';l.href=r.plotly;document.head.append(l)})()"
)
# Earlier addresses of pages, which links and bookmarks still name.
_MOVED = {"targets": "sources", "preflight": "sources?tab=setup"}
# Dash's own scripts in one file; Dash requires that the document names its renderer.
_DASH = _SUITES + "dash_renderer.min.js"
_SCRIPT = re.compile(r'<script src="[^"]*/_dash-component-suites/dash/([^"]+)"></script>')
_LEFT_OUT = ("dash_table/", "deps/polyfill")
_MAP = re.compile(rb"^//# sourceMappingURL=.*", re.MULTILINE)


class _Dash(Dash):
    """Dash without Python's version and the unused WebSocket in the page's configuration; its scripts are one file."""

    _tag = ""
    dash_scripts = b""

    def _generate_scripts_html(self) -> str:
        """One tag. The call of Dash's own method registers its files, and finds the scripts.

        Tables are not used, and a browser that loads modules needs no polyfill.
        """
        if not self._tag:
            tags: str = super()._generate_scripts_html()
            names = [check_fingerprint(path)[0] for path in _SCRIPT.findall(tags)]  # type: ignore[no-untyped-call]
            folder = Path(dash.__file__).parent
            bodies = [(folder / name).read_bytes() for name in names if not name.startswith(_LEFT_OUT)]
            self.dash_scripts = b"\n;\n".join(_MAP.sub(b"", body) for body in bodies)
            digest = hashlib.sha256(self.dash_scripts).hexdigest()[:16]
            self._tag = f'<script src="{self.config.requests_pathname_prefix}{_DASH}?m={digest}"></script>'
        return self._tag

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

    Call it after the API's own routes are declared, because the last route answers every other path, and before any
    middleware that must stand outside it, such as access checks.
    """
    app = _Dash(
        __name__,
        server=api,  # type: ignore[arg-type]
        title="Rollscope",
        # Dash would flash "Updating..." in the tab's title on every tick.
        update_title="",
        index_string=_index(version, push),
        assets_folder="assets",
        # `bundle` names them, and `assets/main.mjs` starts Dash once its callbacks are registered.
        include_assets_files=False,
    )
    app.renderer = "/* started by main.mjs */"
    found = bundle.entries()
    names = {"font": _FONT, "entry": found.script, "style": found.style}
    for name, address in names.items():
        app.index_string = app.index_string.replace(f"@{name}@", app.get_asset_url(address))
    app.index_string = app.index_string.replace("@plotly@", app.config.requests_pathname_prefix + _PLOTLY)
    for old, new in _MOVED.items():
        api.add_api_route(app.config.routes_pathname_prefix + old, _moved_to(new), include_in_schema=False)
    app.layout = shell_layout.layout(PAGES, app.config.requests_pathname_prefix)
    callbacks.register(app, reader, receivers, candidates)
    if push:
        api.add_api_websocket_route(app.config.routes_pathname_prefix + "news", PushNotifications(reader).serve)
    _browser_callbacks(app)
    api.add_exception_handler(DependencyException, _no_such_resource)
    # Dash registers its assets at the first request of "/", so a browser that opens another page first would get none.
    app._setup_server()  # type: ignore[no-untyped-call]
    # Dash's own route for all paths is added when the server starts, so this one comes first.
    api.add_api_route("/{path:path}", _shell(app), methods=["GET"], include_in_schema=False)
    api.add_middleware(CallbackBodies, callbacks=app.callback_map, prefix=app.config.routes_pathname_prefix)
    files = {f"assets/{name}": body for name, body in found.files.items()} | {_DASH: app.dash_scripts}
    api.add_middleware(Static, prefix=app.config.routes_pathname_prefix, files=files)
    api.add_middleware(Packed, prefix=app.config.routes_pathname_prefix)
    return app


def _moved_to(address: str) -> Callable[[Request], Awaitable[RedirectResponse]]:
    """Redirects to a page next to the requested one, and keeps the query."""

    async def redirect(request: Request) -> RedirectResponse:
        query = request.url.query
        return RedirectResponse(address + ("&" if "?" in address else "?") * bool(query) + query, 308)

    return redirect


def _shell(app: Dash) -> Callable[[Request], Awaitable[HTMLResponse]]:
    """The document of every page; status 404 where there is no page (Dash answers 200 for any path)."""
    prefix = app.config.routes_pathname_prefix

    async def shell(request: Request) -> HTMLResponse:
        path = request.scope["path"]
        is_page = path.startswith(prefix) and by_path(path.removeprefix(prefix)) is not None
        # As Dash's own route does: the document is built for the request in this variable.
        token = set_current_request(request)  # type: ignore[no-untyped-call]
        try:
            document = app.index()  # type: ignore[no-untyped-call]
        finally:
            reset_current_request(token)  # type: ignore[no-untyped-call]
        return HTMLResponse(document, 200 if is_page else 404)

    return shell


async def _no_such_resource(request: Request, error: Exception) -> JSONResponse:
    """Answers a path below `/_dash-component-suites` that is none of Dash's files; by itself Dash answers 500."""
    return JSONResponse({"detail": "Not Found"}, 404)


def _index(version: str, push: bool) -> str:
    # Pages without charts: only there plotly.js is not fetched at once.
    plain = " ".join(page.path for page in PAGES if page.charts is None)
    page = _INDEX.replace("@tokens@", theme.css()).replace("@theme@", theme.SCRIPT).replace("@preload@", _PRELOAD)
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
    own = [hashlib.sha256(script.encode()).digest() for script in (theme.SCRIPT, _PRELOAD)]
    scripts = " ".join(["'self'", *(f"'sha256-{base64.b64encode(one).decode()}'" for one in own), *app.csp_hashes()])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
