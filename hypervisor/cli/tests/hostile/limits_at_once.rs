//! Two changes at the same time.
