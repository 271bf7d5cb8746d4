//! What a session leaves behind, and what is still in use.
