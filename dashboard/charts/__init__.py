"""Charts: figures, panels' points, event markers, comparison."""
