//! Placeholder until the server side exists.
