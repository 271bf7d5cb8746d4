//! Programs that launch and die at once, again and again.
