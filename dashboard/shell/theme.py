"""Colours as tokens: one place, two themes, sent as CSS variables in the page's head.

Charts use the fixed mid-tones of `TRACE`, which reach 3:1 on both backgrounds, so that switching the theme
redraws nothing: Plotly's own text and grid lines are recoloured by CSS.
"""

from collections.abc import Mapping

# One colour per actor everywhere: generator orange, trainer blue, queue teal, sandbox purple. Gold and plum are for
# data (zero advantage). Pairs a colour-blind reader confuses (orange and gold, blue and purple) never share a panel.
TRACE: Mapping[str, str] = {
    "orange": "#d45b1a",
    "blue": "#2b78d8",
    "teal": "#0d9680",
    "purple": "#9560d6",
    "gold": "#b58900",
    "plum": "#915b83",
    "grey": "#7d8794",
}
# Colours of compared runs: four hues that no colour-blind reader confuses (at least 12 apart in OKLab under each of
# three simulations) and 3:1 on both backgrounds; the second four runs have the same hues, dashed. Every line has a
# letter.
LINES: tuple[str, ...] = ("#2b6ad7", "#d45b1a", "#aa85bc", "#915b83")
LIMIT: Mapping[str, str] = {"base": "#7b8794", "watch": "#b58900", "critical": "#cf3f55"}

LIGHT: Mapping[str, str] = {
    "bg": "#f4f5f7",
    "card": "#ffffff",
    "inset": "#f4f5f7",
    "line": "#e2e5ea",
    "grid": "#e8ebef",
    "ink": "#14181f",
    "muted": "#59626f",
    "track": "#dfe3e8",
    "accent": "#b84a00",
    "link": "#1f5fb8",
    "cross": "#14181f66",
    "critical-bg": "#fde8ea",
    "critical": "#b3203a",
    "watch-bg": "#fdf1d3",
    "watch": "#7a5200",
    "ok-bg": "#e1f4ea",
    "ok": "#0b6b45",
    "unknown-bg": "#eceef1",
    "unknown": "#4d5663",
    "shadow": "0 1px 2px #14181f0d",
}
DARK: Mapping[str, str] = {
    "bg": "#0b0e13",
    "card": "#151b23",
    "inset": "#0d1117",
    "line": "#262d37",
    "grid": "#232a33",
    "ink": "#e8ebef",
    "muted": "#99a2af",
    "track": "#262d37",
    "accent": "#f2914f",
    "link": "#7fb2f5",
    "cross": "#e8ebef66",
    "critical-bg": "#3b151c",
    "critical": "#ff8f9b",
    "watch-bg": "#33270a",
    "watch": "#f0c04f",
    "ok-bg": "#0f2e22",
    "ok": "#56d6a0",
    "unknown-bg": "#232a33",
    "unknown": "#aab3bf",
    "shadow": "none",
}

# Runs before the first paint: a theme set later would flash. Its hash goes into the CSP (`app.csp`).
SCRIPT = (
    "(function(){var t='system';try{t=localStorage.getItem('rollscope-theme')||t}catch(e){}"
    "var d=t==='dark'||(t!=='light'&&matchMedia('(prefers-color-scheme: dark)').matches);"
    "var r=document.documentElement;r.dataset.theme=d?'dark':'light';r.dataset.choice=t})()"
)


def _block(selector: str, tokens: Mapping[str, str], scheme: str) -> str:
    body = "".join(f"--{name}:{value};" for name, value in tokens.items())
    return f"{selector}{{color-scheme:{scheme};{body}}}"


def css() -> str:
    """The tokens as CSS variables; `app.css` uses nothing else for colour."""
    traces = {f"c-{name}": value for name, value in TRACE.items()}
    traces |= {f"line-{i}": value for i, value in enumerate(LINES)}
    return _block(":root", {**traces, **LIGHT}, "light") + _block(":root[data-theme=dark]", DARK, "dark")


def fade(colour: str, alpha: float) -> str:
    """A hex colour as CSS `rgba()`: Plotly 4 takes only strict CSS colours."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"
