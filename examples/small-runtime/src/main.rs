//! A small container runtime for tests (CRI v1alpha2). A container is a process with its own root: the machine's
//! programs, and the kubelet's mounts, variables and devices. Images and networks exist only by name.

#![forbid(unsafe_code)]

mod images;
mod runtime;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use grpc_authority::AuthorityStream;
use small_runtime::{container, proto};
use tokio::net::UnixListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use self::images::Images;
use self::proto::image_service_server::ImageServiceServer;
use self::proto::runtime_service_server::RuntimeServiceServer;
use self::runtime::Runtime;

/// A container runtime for tests.
#[derive(Debug, Parser)]
struct Cli {
    /// Socket to listen on
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Directory of containers; their output is appended to NAME.out in it
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Directory with a subdirectory IMAGE of files per image
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Directories of CDI files; without any, CDI is not supported
    #[arg(long, value_name = "DIR")]
    cdi_dir: Vec<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Socket(#[from] std::io::Error),
    #[error("{0}")]
    Serve(#[from] tonic::transport::Error),
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("small-runtime: {fault}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(cli: Cli) -> Result<(), Fault> {
    std::fs::create_dir_all(&cli.state)?;
    let listener = UnixListener::bind(&cli.socket)?;
    // The kubelet's gRPC client (grpc-go) sends the socket's path as authority.
    let callers = UnixListenerStream::new(listener).map(|one| one.map(AuthorityStream::new));
    Server::builder()
        .add_service(RuntimeServiceServer::new(Runtime::new(cli.state, cli.images, cli.cdi_dir)))
        .add_service(ImageServiceServer::new(Images::default()))
        .serve_with_incoming(callers)
        .await?;
    Ok(())
}
