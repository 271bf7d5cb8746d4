//! The build information of this library, in the form that `sluice version --verbose` reads from the file.

#[cfg(feature = "frida")]
const ENGINE: (&str, &str) = (", features frida", ", engine frida-gum");
#[cfg(feature = "simulated-gum")]
const ENGINE: (&str, &str) = (", features simulated-gum", ", engine frida-gum, simulated");
#[cfg(not(any(feature = "frida", feature = "simulated-gum")))]
const ENGINE: (&str, &str) = (", features none", ", engine detour");

const PARTS: [&str; 15] = build_info::parts("libcuda_limiter.so", ENGINE.0, ENGINE.1);

#[used]
static LINE: [u8; build_info::length(&PARTS)] = build_info::joined(&PARTS);

/// The build information, without its marker.
pub(crate) fn line() -> &'static str {
    build_info::line_in(&LINE).unwrap_or_default()
}
