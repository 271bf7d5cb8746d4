//! An upgrade while programs run.
