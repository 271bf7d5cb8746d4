//! Logs that cannot be written.
