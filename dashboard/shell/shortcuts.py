"""What the keyboard does on every page (`assets/core/keys.mjs`): a list in Help."""

SHORTCUTS: tuple[tuple[str, str], ...] = (
    ("?", "Open Help"),
    ("g o", "Go to Overview"),
    ("g s", "Go to Sandboxes"),
    ("g g", "Go to Generator"),
    ("g r", "Go to Rollouts"),
    ("g t", "Go to Trainer"),
    ("g a", "Go to Alerts"),
    ("g u", "Go to Runs"),
    ("g e", "Go to Explore"),
    ("g x", "Go to Sources"),
    ("g p", "Go to Sources, Setup"),
    ("g w", "Open What-if"),
    ("g h", "Open Help"),
    ("l", "Pause or resume live updates"),
    ("t", "Change the theme"),
    ("1 .. 6", "Choose the time range"),
    ("f", "Full screen for the focused chart"),
    ("← →", "Move along the focused chart; with Shift, 10 points"),
    ("Esc", "Close the open drawer, dialog or panel"),
)
"""(key, what it does). ``g o`` is one key after the other; none acts while a text field has the focus."""
