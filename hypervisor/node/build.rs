//! Makes the messages and services out of the checked-in definitions, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let definition = "deviceplugin-v1beta1.proto";
    println!("cargo::rerun-if-changed=proto/{definition}");
    let files = protox::compile([definition], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
