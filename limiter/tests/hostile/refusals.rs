//! Each refusal names the limit that refused.
