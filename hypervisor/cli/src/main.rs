//! `sluice`: runs programs under limits on the GPU.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sluice::answer_shell();
    match sluice::command_line() {
        Ok(cli) => sluice::main(cli),
        Err(status) => status,
    }
}
