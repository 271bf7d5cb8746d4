//! The client against a Poem server.
