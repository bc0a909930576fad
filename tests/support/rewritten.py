"""Events about a table that ALTER TABLE rewrote, which tests of other events leave out."""

_ABOUT = ("Bronze keeps earlier values", "after the rewrite or type change before")


def is_about_rewrite(sentence: str) -> bool:
    """Return whether an event says that a table was rewritten, or what a comparison found then."""
    return any(text in sentence for text in _ABOUT)
