//! Workers that report less than they use.
