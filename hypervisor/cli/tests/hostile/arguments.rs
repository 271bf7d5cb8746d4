//! Values that mislead.
