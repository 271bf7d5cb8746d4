//! Environment variables that connect the parts of Sluice. The variables with which users limit a program are in the
//! table of crate `config`.

/// Directory of the session whose pages a process shares; made by `sluice run`.
pub const SESSION_DIR: &str = "SLUICE_SESSION_DIR";
/// Path of the daemon's Unix socket; unset or empty: no daemon, each session keeps its own account.
pub const DAEMON_SOCKET: &str = "SLUICE_DAEMON";
/// Token for a daemon's TCP port: required by the daemon, sent by its clients.
pub const TOKEN: &str = "SLUICE_TOKEN";
/// File with that token.
pub const TOKEN_FILE: &str = "SLUICE_TOKEN_FILE";
/// File with the CA certificates that may sign a daemon's certificate; selects TLS.
pub const CA_FILE: &str = "SLUICE_CA_FILE";
/// Compute policy: `fixed` (default), `balance` or `none`.
pub const POLICY: &str = "SLUICE_POLICY";
/// JSON object, key = GPU UUID or device index, value = burst limit in percent of GPU time.
pub const SOFT_LIMIT: &str = "SLUICE_SOFT_LIMIT";
/// Weight for dividing idle time among sessions, 1 to 10000.
pub const WEIGHT: &str = "SLUICE_WEIGHT";
/// `high` (default) or `low`.
pub const PRIORITY: &str = "SLUICE_PRIORITY";
/// What happens to CUDA calls when the limiter itself fails: `closed` (default) or `open`.
pub const ON_FAILURE: &str = "SLUICE_ON_FAILURE";
/// Where work waits for a lease: `thread` (default) or `stream`.
pub const GATES: &str = "SLUICE_GATES";
/// Log level of the limiter: `off` (default), `error`, `warn`, `info`, `debug`, `trace`.
pub const LOG: &str = "SLUICE_LOG";
/// File to which the limiter logs, instead of stderr.
pub const LOG_FILE: &str = "SLUICE_LOG_FILE";
/// JSON object, key = GPU UUID or device index, value = percent of GPU time.
pub const COMPUTE_LIMIT: &str = "TENSOR_FUSION_CUDA_UP_LIMIT";
/// JSON object, key = GPU UUID or device index, value = bytes, or a percentage of the device.
pub const MEMORY_LIMIT: &str = "TENSOR_FUSION_CUDA_MEM_LIMIT";
/// JSON object, key = GPU UUID or device index, value = the part of the memory limit that may be on the device itself,
/// in bytes or as a percentage of the device.
pub const MEMORY_REAL: &str = "SLUICE_MEM_REAL";
/// Path of the simulated node's file; a variable of the simulated driver.
pub const FAKE_NODE: &str = "SLUICE_FAKE_NODE";
