//! Sockets where something else is, and where nothing can be.
