//! Generates messages and services from the checked-in definition, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let definition = "cri-v1alpha2.proto";
    println!("cargo::rerun-if-changed=proto/{definition}");
    let files = protox::compile([definition], ["proto"])?;
    let build = tonic_prost_build::configure().build_client(false);
    build.generate_default_stubs(true).compile_fds(files)?;
    Ok(())
}
