//! The environment variables by which the parts of Sluice find each other. What users set to
//! limit a program is in the table of `config`.

/// Directory of the session whose pages a process shares; made by `sluice run`.
pub const SESSION_DIR: &str = "SLUICE_SESSION_DIR";
/// Path of the daemon's Unix socket; unset or empty: no daemon, each session keeps its own account.
pub const DAEMON_SOCKET: &str = "SLUICE_DAEMON";
/// The token that a daemon which is reached by TCP asks for, and for the daemon itself the one that it asks for.
pub const TOKEN: &str = "SLUICE_TOKEN";
/// The file with that token.
pub const TOKEN_FILE: &str = "SLUICE_TOKEN_FILE";
/// The file with the certificates of the authorities that a daemon's certificate may be of: TLS is spoken then.
pub const CA_FILE: &str = "SLUICE_CA_FILE";
/// Compute policy: `fixed` (default), `balance` or `none`.
pub const POLICY: &str = "SLUICE_POLICY";
/// JSON object, key = GPU UUID or device index, value = percent of GPU time that is never exceeded.
pub const SOFT_LIMIT: &str = "SLUICE_SOFT_LIMIT";
/// Part of idle time in relation to other sessions', 1 to 10000.
pub const WEIGHT: &str = "SLUICE_WEIGHT";
/// `high` (default) or `low`.
pub const PRIORITY: &str = "SLUICE_PRIORITY";
/// What happens to CUDA calls when the limiter itself fails: `closed` (default) or `open`.
pub const ON_FAILURE: &str = "SLUICE_ON_FAILURE";
/// Where work waits for a device: `thread` (default) or `stream`.
pub const GATES: &str = "SLUICE_GATES";
/// Log level of the limiter: `off` (default), `error`, `warn`, `info`, `debug`, `trace`.
pub const LOG: &str = "SLUICE_LOG";
/// Where the limiter writes instead.
pub const LOG_FILE: &str = "SLUICE_LOG_FILE";
/// JSON object, key = GPU UUID or device index, value = percent of GPU time.
pub const COMPUTE_LIMIT: &str = "TENSOR_FUSION_CUDA_UP_LIMIT";
/// JSON object, key = GPU UUID or device index, value = bytes, or a percentage of the device.
pub const MEMORY_LIMIT: &str = "TENSOR_FUSION_CUDA_MEM_LIMIT";
/// JSON object, key = GPU UUID or device index, value = how much of the memory limit may be on the
/// device itself, in bytes or as a percentage of the device.
pub const MEMORY_REAL: &str = "SLUICE_MEM_REAL";
/// Path of the file that holds the fake node; the simulated driver's own variable.
pub const FAKE_NODE: &str = "SLUICE_FAKE_NODE";
