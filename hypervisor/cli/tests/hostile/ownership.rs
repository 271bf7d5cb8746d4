//! Programs of a session that try to decide its limits.
