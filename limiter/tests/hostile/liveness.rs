//! Processes that hide from their siblings while they live.
