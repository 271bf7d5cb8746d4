//! Pages that are full of what costs time.
