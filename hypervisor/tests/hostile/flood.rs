//! Callers that register without end.
