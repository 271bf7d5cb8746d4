//! A small container runtime for tests (CRI v1alpha2). A container is a process with a root of its own: the machine's
//! programs, and the mounts, variables and devices that the kubelet told. Images and networks are only names.

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
    /// Where to listen
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The folder of containers. What the containers of a name print is appended to NAME.out there
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// A folder in which a folder IMAGE has what this image has beside the machine's programs
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Folders of CDI files. Without any, devices by CDI are not understood
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
    // The kubelet calls as device plugins are called.
    let callers = UnixListenerStream::new(listener).map(|one| one.map(AuthorityStream::new));
    Server::builder()
        .add_service(RuntimeServiceServer::new(Runtime::new(cli.state, cli.images, cli.cdi_dir)))
        .add_service(ImageServiceServer::new(Images::default()))
        .serve_with_incoming(callers)
        .await?;
    Ok(())
}
