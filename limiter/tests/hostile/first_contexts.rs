//! Many processes that begin at once, before the size of a context is known.
