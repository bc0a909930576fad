"""Laws of growth: what a batch costs as something else grows (`make growth`)."""
