"""What the keyboard does on every page (`assets/core/keys.mjs`): the list that `?` shows."""

SHORTCUTS: tuple[tuple[str, str], ...] = (
    ("?", "Show these shortcuts"),
    ("g o", "Go to Overview"),
    ("g r", "Go to Rollouts"),
    ("g g", "Go to Generator"),
    ("g t", "Go to Trainer"),
    ("g s", "Go to Sandboxes"),
    ("g a", "Go to Alerts"),
    ("g u", "Go to Runs"),
    ("g x", "Go to Targets"),
    ("g w", "Go to What-if"),
    ("g p", "Go to Preflight"),
    ("g h", "Go to Help"),
    ("l", "Pause or resume live updates"),
    ("t", "Change the theme"),
    ("1 .. 6", "Choose the time range"),
    ("f", "Full screen for the focused chart"),
    ("← →", "Move along the focused chart; with Shift, 10 points"),
    ("Esc", "Close the open dialog or panel"),
)
"""(key, what it does). ``g o`` is one key after the other; none acts while a text field has the focus."""
