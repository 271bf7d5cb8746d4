//! Generates the gRPC messages and services from the checked-in definitions, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let definitions = [
        "deviceplugin-v1beta1.proto",
        "dra-v1.proto",
        "nri-v1alpha1.proto",
        "pluginregistration-v1.proto",
        "podresources-v1.proto",
        "ttrpc.proto",
    ];
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(definitions, ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
