//! Programs that change their environment to move their limits.
