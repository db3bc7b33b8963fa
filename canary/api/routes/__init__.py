"""One router per resource; each endpoint calls one function of `flow` and decides nothing."""
