//! Daemons that are not what they say.
