"""The frame around every page: header, navigation, theme, shortcuts, glossary."""
