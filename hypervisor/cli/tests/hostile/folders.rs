//! Folders that another user made, swapped or cannot enter.
