//! `xtask fuzz`: a fuzz target, guided by coverage.

use super::Error;
use crate::process::{command, output, run};
use std::env;
use std::path::Path;
use std::process::Command;

/// Runs a fuzz target of utils/session/fuzz with the pinned toolchain; needs a C++ compiler. The tests run the same
/// checks over random bytes, a fixed number of times.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    target: Target,
    /// How long
    #[arg(default_value_t = 60)]
    seconds: u32,
    /// Options of libFuzzer
    #[arg(allow_hyphen_values = true)]
    options: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// Any bytes as a session's page
    Page,
    /// Any bytes as a library that a program loads
    Library,
    /// Any bytes as a function that is patched, and as the list of mappings
    Code,
    /// Any text as the value of an option or a variable
    Values,
    /// Any bytes as what a client of gRPC sends
    Authority,
}

/// What `cargo fuzz build --sanitizer none` passes.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Runs it.
///
/// # Errors
/// Something was found, or it does not compile.
pub(crate) fn run_target(arguments: &Arguments) -> Result<(), Error> {
    let package = Path::new("utils/session/fuzz");
    let target = clap::ValueEnum::to_possible_value(&arguments.target);
    let target = target.map_or_else(String::new, |target| target.get_name().to_owned());
    // A target of its own, so that build scripts are not instrumented.
    let compiler = output(&mut command("rustc -vV"))?;
    let host = compiler.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let mut build = command("cargo build --release --bin");
    build.args([&target, "--target", host]).current_dir(package).env("RUSTFLAGS", FLAGS);
    // It takes the flags of the instrumentation, which are rustc's own.
    run(build.env("RUSTC_BOOTSTRAP", "1"))?;
    let built = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let mut fuzz = Command::new(
        env::current_dir()?.join(package).join(built).join(host).join("release").join(target),
    );
    fuzz.arg(format!("-max_total_time={}", arguments.seconds)).current_dir(package);
    fuzz.args(["-timeout=20", "-max_len=4096", "-print_final_stats=1"]).args(&arguments.options);
    Ok(run(&mut fuzz)?)
}
