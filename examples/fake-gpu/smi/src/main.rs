//! A small `nvidia-smi` for the simulated GPU. Like the real one, it queries the `libnvidia-ml.so.1` that the loader
//! finds, so a limiter in between takes effect. `sluice run --fake-gpu` puts it on the program's PATH.
//!
//! * `seen`: NVML's figures
//! * `table`: the table printed without options
//! * `query`: `--query-gpu` and `--query-compute-apps`

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test may stop where it fails"))]

mod query;
mod seen;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use query::{Format, QueryError};
use seen::Seen;

/// Shows simulated GPUs as nvidia-smi shows real ones.
#[derive(Debug, Parser)]
#[command(
    name = "nvidia-smi",
    version,
    after_help = "This is the simulated GPU's own, with the most common options of the real one."
)]
struct Cli {
    /// List the GPUs.
    #[arg(short = 'L', long, conflicts_with_all = ["query_gpu", "query_compute_apps"])]
    list_gpus: bool,

    /// Only these GPUs, by index, UUID or PCI address, with commas.
    #[arg(short = 'i', long, value_delimiter = ',')]
    id: Vec<String>,

    /// Print these figures of each GPU, with commas between them.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FIELDS",
        conflicts_with = "query_compute_apps"
    )]
    query_gpu: Vec<String>,

    /// Print these figures of each process, with commas between them.
    #[arg(long, value_delimiter = ',', value_name = "FIELDS")]
    query_compute_apps: Vec<String>,

    /// How queries are printed: csv[,noheader][,nounits].
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver: {0}")]
    Nvml(#[from] NvmlError),
    #[error("No devices were found: -i {0} names none; expected an index, a UUID or a PCI address")]
    Unknown(String),
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl Error {
    fn status(&self) -> u8 {
        match self {
            Self::Nvml(_) => 9,
            Self::Unknown(_) => 6,
            Self::Query(_) => 2,
        }
    }
}

fn main() -> ExitCode {
    let written = text(&Cli::parse());
    let (text, status) = match written {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (format!("{error}\n"), ExitCode::from(error.status())),
    };
    // Like the real one, prints errors to stdout, too.
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

fn text(cli: &Cli) -> Result<String, Error> {
    let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init()?;
    let mut seen = Seen::of(&nvml)?;
    if !cli.id.is_empty() {
        for id in &cli.id {
            if !seen.gpus.iter().any(|gpu| gpu.is(id)) {
                return Err(Error::Unknown(id.clone()));
            }
        }
        seen.gpus.retain(|gpu| cli.id.iter().any(|id| gpu.is(id)));
    }
    if cli.list_gpus {
        let line =
            |gpu: &seen::Gpu| format!("GPU {}: {} (UUID: {})\n", gpu.index, gpu.name, gpu.uuid);
        return Ok(seen.gpus.iter().map(line).collect());
    }
    if !cli.query_gpu.is_empty() {
        return Ok(query::gpus(&seen, &cli.query_gpu, cli.format)?);
    }
    if !cli.query_compute_apps.is_empty() {
        return Ok(query::processes(&seen, &cli.query_compute_apps, cli.format)?);
    }
    Ok(table::table(&seen))
}
