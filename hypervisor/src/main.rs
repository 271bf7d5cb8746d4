//! The program `hypervisor`: command line of the daemon and of the Kubernetes components.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use dialects::gates::FeatureGates;
use dialects::registers::HamiForm;
use dialects::{Dialect, ResourceNames};
use extender::{ExplainError, Snapshot, Source, Terms};
use hypervisor::{
    Observation, Options, Remote, Sources, TOKEN_VARIABLE, Target, TlsFiles, TokenSource,
    UnknownProcesses, Way, log,
};
use node::pool::Scaling;
use node::{ClusterOptions, ImagePreloads};
use tracing::level_filters::LevelFilter;
use webhook::Certificates;

/// Shares the GPUs of a node among its programs: daemon, Kubernetes node agent, scheduler extender and webhook.
#[derive(Debug, Parser)]
#[command(
    name = "hypervisor",
    version,
    after_help = "\
'--version --verbose' also prints the build, as 'hypervisor version --verbose' does."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node's daemon until SIGTERM or SIGINT; SIGHUP is ignored.
    Daemon {
        /// Socket to listen on [default: /run/sluice/hypervisor.sock for root, else
        /// $XDG_RUNTIME_DIR/sluice/hypervisor.sock or /tmp/sluice-UID/hypervisor.sock]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// Share each device in this way only, instead of the one in which more gets done: for comparisons
        #[arg(long, value_name = "WAY", value_enum, hide = true)]
        share: Option<Share>,
        /// Directory for state that survives a restart: sessions, their accounts, counters [default:
        /// $STATE_DIRECTORY, else with the default socket /var/lib/sluice for root, else
        /// $XDG_STATE_HOME/sluice or the socket's folder; with --socket none]
        #[arg(long, value_name = "DIR")]
        state: Option<PathBuf>,
        /// Also serve the state over TCP, read-only, to callers with the token of --token-file or of the variable
        /// SLUICE_TOKEN. Encrypted with --tls-cert
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<SocketAddr>,
        /// File with the token: one line of at least 16 bytes, owned by this user or root, mode 600
        #[arg(long, value_name = "FILE", requires = "listen")]
        token_file: Option<PathBuf>,
        /// Use TLS with the certificate chain in this file: PEM, the server's certificate first
        #[arg(long, value_name = "FILE", requires_all = ["listen", "tls_key"])]
        tls_cert: Option<PathBuf>,
        /// Private key of the certificate: PEM, owned by this user or root, mode 600
        #[arg(long, value_name = "FILE", requires = "tls_cert")]
        tls_key: Option<PathBuf>,
        /// Action for a process that uses a GPU outside any session, and so without limits: report it; hold the
        /// sessions on that GPU until it has gone; or kill it (SIGTERM, after 10 s SIGKILL)
        #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::Report)]
        unknown_processes: Policy,
        /// NVML library for observing the GPUs, or 'none' [default: libnvidia-ml.so.1, where the loader finds
        /// it]. For the simulated GPU: libfake_nvml.so, which is installed beside libcuda_limiter.so
        #[arg(long, value_name = "PATH")]
        nvml: Option<PathBuf>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Run the Kubernetes node agent: offer fractions of GPUs to the kubelet and enforce each container's limits
    Node {
        /// Dialects whose resource names pods may use, separated by commas: vgpu-manager, volcano, hami, vgpu-rs
        #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "vgpu-manager")]
        dialects: Vec<Dialect>,
        /// Other names for resources, as pods of this cluster request them; their own names are left to others then
        #[arg(long, value_name = "NAME=OTHER,...")]
        resource_names: Option<ResourceNames>,
        /// Feature gates, with VGPU-Manager's names: CorePlugin and MemoryPlugin offer cores and memory to the kubelet;
        /// Reschedule deletes a pod that cannot get what it was promised, so that its controller creates a new one
        #[arg(long, value_name = "NAME=BOOL,...", default_value = "")]
        feature_gates: FeatureGates,
        /// Maximum number of containers that share one GPU
        #[arg(long, value_name = "NUMBER", default_value = "10")]
        device_split: NonZeroU32,
        /// MiB per unit of the memory resource
        #[arg(long, value_name = "MIB", default_value = "1")]
        memory_factor: NonZeroU32,
        /// Overcommitment of GPU time, as a factor
        #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = hundredths)]
        cores_scaling: u32,
        /// Overcommitment of GPU memory, as a factor; allocations that do not fit are placed on the host
        #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = hundredths)]
        memory_scaling: u32,
        /// File with vgpu.rs's list of GPUs, which converts a pod's TFLOPS to a fraction of a GPU
        #[arg(long, value_name = "FILE", env = "TENSOR_FUSION_GPU_INFO_PATH")]
        gpu_info: Option<PathBuf>,
        /// Format in which devices are registered with HAMi's scheduler: json, or fields for older versions
        #[arg(long, value_name = "FORM", default_value = HamiForm::Json.name())]
        hami_registration: HamiForm,
        /// Name of this node in its cluster. With it, the agent reads pods from the API server and writes the node's
        /// devices and events there
        #[arg(long, value_name = "NAME", env = "NODE_NAME")]
        node_name: Option<String>,
        /// Kubeconfig for the API server [default: the pod's service account]
        #[arg(long, value_name = "FILE", requires = "node_name")]
        kubeconfig: Option<PathBuf>,
        /// The kubelet's directory
        #[arg(long, value_name = "DIR", default_value = node::KUBELET)]
        kubelet_dir: PathBuf,
        /// Directory of allocations; each container sees its own
        #[arg(long, value_name = "DIR", default_value = node::ALLOCATIONS)]
        allocations: PathBuf,
        /// Directory with libcuda_limiter.so and libadd_path.so, which containers preload
        #[arg(long, value_name = "DIR", default_value = node::LIBRARY)]
        library: PathBuf,
        /// Copy the libraries of --library into this directory of the node and exit: an init step for images. With
        /// --hook, also copy this program
        #[arg(long, value_name = "DIR", conflicts_with = "check")]
        install: Option<PathBuf>,
        /// Socket of the node's daemon; containers get its directory mounted
        #[arg(long, value_name = "PATH", default_value = node::DAEMON)]
        daemon: PathBuf,
        /// How containers get the driver's device files: files names them, with NVIDIA_VISIBLE_DEVICES for NVIDIA's
        /// container runtime; cdi names nvidia.com/gpu=UUID, for kubelets from 1.28 on and runtimes with NVIDIA's CDI
        /// file; mounts names them and mounts the driver's libraries, for runtimes without NVIDIA support
        #[arg(long, value_name = "HOW", default_value = node::DeviceList::Files.name())]
        devices: node::DeviceList,
        /// The node's directory with libcuda.so.1, for --devices mounts [default: the usual driver directories]
        #[arg(long, value_name = "DIR")]
        driver: Option<PathBuf>,
        /// Keep the libraries of an image's own /etc/ld.so.preload, loaded behind the limiter, by a hook of the
        /// container runtime: containerd 1.7 or later with enable_cdi, or CRI-O. Without this option that file is
        /// hidden
        #[arg(long)]
        keep_image_preloads: bool,
        /// Run a DRA driver, gpu.sluice.dev, beside the device plugins: Kubernetes 1.34 or later, and a container
        /// runtime that reads CDI files
        #[arg(long, requires = "node_name")]
        dra: bool,
        /// Limit containers of KAI's pods (gpu-fraction, gpu-memory), and with shared claims of NVIDIA's DRA driver, as
        /// the container runtime creates them, by NRI: containerd 2, or 1.7 with NRI switched on [default socket:
        /// /var/run/nri/nri.sock]
        #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = node::NRI)]
        nri: Option<PathBuf>,
        /// Directory from which the container runtime reads CDI files, for --keep-image-preloads and --dra
        #[arg(long, value_name = "DIR", default_value = node::CDI)]
        cdi_dir: PathBuf,
        /// Path of the hook's program on the node, for --keep-image-preloads [default: this program]
        #[arg(long, value_name = "FILE")]
        hook: Option<PathBuf>,
        /// Check all requirements, print each problem with the command that fixes it, and exit: with 0 if nothing is
        /// broken, else with 1. Changes nothing
        #[arg(long)]
        check: bool,
        /// Print the result as JSON
        #[arg(long, requires = "check")]
        json: bool,
        /// NVML library for finding the GPUs [default: libnvidia-ml.so.1, where the loader finds it]
        #[arg(long, value_name = "PATH")]
        nvml: Option<PathBuf>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Run the admission webhook: API servers call it at /mutate and /validate to complete and check pods that request
    /// GPUs
    Webhook {
        /// Address to listen on
        #[arg(long, value_name = "ADDRESS:PORT", default_value = webhook::LISTEN)]
        listen: SocketAddr,
        /// Dialects whose resource names pods may use, separated by commas: vgpu-manager, volcano, hami, vgpu-rs
        #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "vgpu-manager")]
        dialects: Vec<Dialect>,
        /// Other names for resources, as pods of this cluster request them; their own names are left to others then
        #[arg(long, value_name = "NAME=OTHER,...")]
        resource_names: Option<ResourceNames>,
        /// Scheduler for GPU pods that name none. For its pods nodeName becomes a node selector, and a container that
        /// only counts GPUs of VGPU-Manager gets 100 cores
        #[arg(long, value_name = "NAME")]
        scheduler_name: Option<String>,
        /// Runtime class for GPU pods that name none
        #[arg(long, value_name = "NAME")]
        runtime_class: Option<String>,
        /// Use the certificate chain in this file, and read it again when it changes: PEM, the server's certificate
        /// first
        #[arg(long, value_name = "FILE", requires = "tls_key")]
        tls_cert: Option<PathBuf>,
        /// Private key of the certificate: PEM
        #[arg(long, value_name = "FILE", requires = "tls_cert")]
        tls_key: Option<PathBuf>,
        /// Without --tls-cert: namespace of the Service, and of the Secret in which replicas share a certificate of
        /// their own, valid for 90 days and replaced after 60
        #[arg(
            long,
            value_name = "NAME",
            conflicts_with = "tls_cert",
            required_unless_present = "tls_cert"
        )]
        namespace: Option<String>,
        /// Name of that Service and Secret, and of both webhook configurations, which are told which CA to trust
        #[arg(long, value_name = "NAME", default_value = webhook::NAME)]
        name: String,
        /// Kubeconfig for the API server [default: the pod's service account]
        #[arg(long, value_name = "FILE", conflicts_with = "tls_cert")]
        kubeconfig: Option<PathBuf>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Run the scheduler extender: kube-scheduler calls it at /scheduler/filter, prioritize, preempt and bind to place
    /// pods on single GPUs
    Scheduler {
        /// Address to listen on; only loopback addresses are accepted, because every caller can bind pods
        #[arg(long, value_name = "ADDRESS:PORT", default_value = extender::LISTEN)]
        listen: SocketAddr,
        /// Dialects whose resource names pods may use, separated by commas: vgpu-manager, volcano, hami
        #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "vgpu-manager")]
        dialects: Vec<Dialect>,
        /// Other names for resources, as pods of this cluster request them; their own names are left to others then
        #[arg(long, value_name = "NAME=OTHER,...")]
        resource_names: Option<ResourceNames>,
        /// Feature gates, with VGPU-Manager's names: with SerialBindNode, a pod is bound once the previous pod on its
        /// node has its GPUs; with GPUTopology, device-topology-mode link and link-strict go by NVLink
        #[arg(long, value_name = "NAME=BOOL,...", default_value = "SerialBindNode=true")]
        feature_gates: FeatureGates,
        /// Lease that chooses one of several extenders, such as kube-system/sluice-extender [default: this is the only
        /// one]
        #[arg(long, value_name = "NAMESPACE/NAME")]
        lease: Option<extender::LeaseName>,
        /// Kubeconfig for the API server [default: the pod's service account]
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Explain on which nodes a waiting pod has no room, and why
    Why {
        /// The pod
        #[arg(value_name = "[NAMESPACE/]NAME")]
        pod: String,
        #[command(flatten)]
        seen: Seen,
    },
    /// Show where waiting pods would be placed, and bind none
    Simulate {
        #[command(flatten)]
        seen: Seen,
    },
    /// Ask a running part whether it is ready, and exit with 0 if so, else with 1: a probe for containers
    Probe {
        /// The daemon's socket, the extender's ADDRESS:PORT, or the kubelet's directory device-plugins, in which one of
        /// the node agent's sockets has to accept a connection, if there are any
        #[arg(value_name = "WHOM")]
        target: String,
        /// Path to GET, such as /healthz or /readyz, which has to be answered by status 200 [default: only connect]
        #[arg(value_name = "PATH")]
        path: Option<String>,
    },
    /// Hook of --keep-image-preloads: container runtimes start it with a container's state on standard input. It always
    /// exits with 0, so that the container starts
    #[command(name = node::COMMAND)]
    KeepImagePreloads {
        /// Directory of allocations
        #[arg(long, value_name = "DIR", default_value = node::ALLOCATIONS)]
        allocations: PathBuf,
    },
    /// Generate shell completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// Directory for the pages, created if missing
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print the version
    Version {
        /// Also print commit, build and features
        #[arg(long, short)]
        verbose: bool,
    },
}

/// Options of the log, for commands that serve.
#[derive(Debug, clap::Args)]
struct LogOptions {
    /// Log level on stderr: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// Log format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: log::Format,
}

/// Parses a factor from 1 to 100 into hundredths.
fn hundredths(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a factor: expected 1 to 100, with up to two decimals");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 2 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let all: u32 = format!("{whole}{part:0<2}").parse().map_err(|_| wrong())?;
    if (100..=10_000).contains(&all) { Ok(all) } else { Err(wrong()) }
}

/// Like [`UnknownProcesses`], for clap.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    Report,
    Hold,
    Kill,
}

impl From<Policy> for UnknownProcesses {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Report => Self::Report,
            Policy::Hold => Self::Hold,
            Policy::Kill => Self::Kill,
        }
    }
}

/// A way to share a device.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Share {
    Turns,
    Overlap,
}

impl Share {
    const fn way(self) -> Way {
        match self {
            Self::Turns => Way::Turns,
            Self::Overlap => Way::Overlap,
        }
    }
}

fn main() -> ExitCode {
    if build_info::are_asked_for(std::env::args_os().skip(1)) {
        return tell_version(true);
    }
    match Cli::parse().command {
        Command::Daemon {
            socket,
            share,
            state,
            listen,
            token_file,
            tls_cert,
            tls_key,
            unknown_processes,
            nvml,
            log,
        } => {
            let tls = tls_cert.zip(tls_key);
            let tls = tls.map(|(certificate, key)| TlsFiles { certificate, key });
            let remote = match remote(listen, token_file, tls) {
                Ok(remote) => remote,
                Err(error) => error.exit(),
            };
            let off = nvml.as_deref() == Some(Path::new("none"));
            let observation =
                Observation { off, nvml, unknown_processes: unknown_processes.into() };
            let share = share.map(Share::way);
            let options = Options { socket, share, state, remote, observation };
            serve(&log, || hypervisor::run(&options, Sources::default()))
        }
        Command::Node {
            dialects,
            resource_names,
            feature_gates: gates,
            device_split: split,
            memory_factor,
            cores_scaling,
            memory_scaling,
            gpu_info,
            hami_registration: hami,
            node_name,
            kubeconfig,
            kubelet_dir: kubelet,
            allocations,
            library,
            install,
            daemon,
            devices,
            driver,
            keep_image_preloads,
            dra,
            nri,
            cdi_dir: cdi,
            hook,
            check,
            json,
            nvml,
            log,
        } => {
            if let Some(folder) = install {
                return serve(&log, || install_parts(&library, &folder, hook.as_deref()));
            }
            let program = hook.or_else(|| std::env::current_exe().ok()).unwrap_or_default();
            let options = node::Options {
                kubelet,
                allocations,
                dialects,
                gates,
                names: resource_names.unwrap_or_default(),
                split,
                memory_factor,
                library,
                daemon,
                devices,
                driver,
                dra: dra.then(|| cdi.clone()),
                nri,
                image_preloads: keep_image_preloads.then_some(ImagePreloads { cdi, program }),
                scaling: Scaling { cores: cores_scaling, memory: memory_scaling },
                gpu_info,
                hami,
                cluster: node_name.map(|node| ClusterOptions { node, kubeconfig }),
            };
            if check {
                return check_node(&options, nvml.as_deref(), json);
            }
            serve(&log, || hypervisor::run_node(&options, nvml.as_deref()))
        }
        Command::Webhook {
            listen,
            dialects,
            resource_names,
            scheduler_name: scheduler,
            runtime_class,
            tls_cert,
            tls_key,
            namespace,
            name,
            kubeconfig,
            log,
        } => {
            let certificates = match tls_cert.zip(tls_key) {
                Some((certificate, key)) => Certificates::Files { certificate, key },
                None => {
                    let namespace = namespace.unwrap_or_default();
                    Certificates::SelfIssued { namespace, name, kubeconfig }
                }
            };
            let names = resource_names.unwrap_or_default();
            let options = webhook::Options {
                listen,
                rules: webhook::Rules { dialects, scheduler, runtime_class, names },
                certificates,
                rotation: webhook::Rotation::default(),
                linger: webhook::LINGER,
            };
            serve(&log, || hypervisor::run_webhook(&options))
        }
        Command::Scheduler {
            listen,
            dialects,
            resource_names,
            feature_gates: gates,
            lease,
            kubeconfig,
            log,
        } => {
            let names = resource_names.unwrap_or_default();
            let options = extender::Options { listen, dialects, gates, names, kubeconfig, lease };
            serve(&log, || hypervisor::run_extender(&options))
        }
        Command::Why { pod, seen } => {
            seen.tell(|seen, terms| seen.why(&pod, terms), ToString::to_string)
        }
        Command::Simulate { seen } => seen.tell(
            |seen, terms| Ok(seen.simulate(terms, Instant::now())),
            |all| all.iter().map(|one| format!("{one}\n")).collect(),
        ),
        Command::Probe { target, path } => {
            let found = Target::named(&target);
            let found = found.and_then(|target| hypervisor::probe(&target, path.as_deref()));
            match found {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(&error),
            }
        }
        Command::KeepImagePreloads { allocations } => {
            if let Err(error) = node::keep_image_preloads(allocations, io::stdin()) {
                let line = format!("hypervisor: the image's own preloads are lost: {error}");
                _ = writeln!(io::stderr(), "{line}");
            }
            ExitCode::SUCCESS
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "hypervisor", &mut io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { folder } => write_manual(&folder),
        Command::Version { verbose } => tell_version(verbose),
    }
}

/// Options for a snapshot of a cluster, and for reading its pods.
#[derive(Debug, clap::Args)]
struct Seen {
    /// Nodes, as kubectl get nodes -o json prints them [default: ask the API server]
    #[arg(long, value_name = "FILE", requires = "pods", conflicts_with = "kubeconfig")]
    nodes: Option<PathBuf>,
    /// Pods, as kubectl get pods -A -o json prints them
    #[arg(long, value_name = "FILE", requires = "nodes")]
    pods: Option<PathBuf>,
    /// Kubeconfig for the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Dialects whose resource names pods may use, separated by commas
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "vgpu-manager,volcano,hami"
    )]
    dialects: Vec<Dialect>,
    /// Other names for resources, as pods of this cluster request them
    #[arg(long, value_name = "NAME=OTHER,...")]
    resource_names: Option<ResourceNames>,
    /// Feature gates, with VGPU-Manager's names: with GPUTopology, device-topology-mode link and link-strict go by
    /// NVLink
    #[arg(long, value_name = "NAME=BOOL,...", default_value = "")]
    feature_gates: FeatureGates,
}

impl Seen {
    fn tell<T>(
        self,
        told: impl FnOnce(&Snapshot, &Terms) -> Result<T, ExplainError>,
        text: impl FnOnce(&T) -> String,
    ) -> ExitCode {
        let source = match self.nodes.zip(self.pods) {
            Some((nodes, pods)) => Source::Files { nodes, pods },
            None => Source::Cluster(self.kubeconfig),
        };
        let seen = hypervisor::snapshot(&source).map_err(|error| error.to_string());
        let (dialects, gates) = (self.dialects, self.feature_gates);
        let terms = Terms { dialects, gates, names: self.resource_names.unwrap_or_default() };
        let told = seen.and_then(|seen| told(&seen, &terms).map_err(|error| error.to_string()));
        let written = told.and_then(|told| {
            let written = io::stdout().write_all(text(&told).as_bytes());
            written.map_err(|error| error.to_string())
        });
        match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        }
    }
}

/// Copies libraries, and the hook's program, into a directory of the node.
fn install_parts(library: &Path, folder: &Path, hook: Option<&Path>) -> Result<(), String> {
    node::install(library, folder).map_err(|error| error.to_string())?;
    let Some(hook) = hook else { return Ok(()) };
    let put = std::env::current_exe().and_then(|own| node::install_hook(&own, hook));
    put.map_err(|error| format!("--hook {}: {error}", hook.display()))
}

fn remote(
    listen: Option<SocketAddr>,
    token_file: Option<PathBuf>,
    tls: Option<TlsFiles>,
) -> Result<Option<Remote>, clap::Error> {
    let Some(address) = listen else { return Ok(None) };
    let in_file = token_file.map(TokenSource::File);
    let in_variable = || std::env::var(TOKEN_VARIABLE).ok().map(TokenSource::Variable);
    let token = in_file.or_else(in_variable).ok_or_else(|| {
        let message = format!(
            "--listen needs a token: --token-file FILE, or the variable {TOKEN_VARIABLE}\n"
        );
        clap::Error::raw(clap::error::ErrorKind::MissingRequiredArgument, message)
    })?;
    Ok(Some(Remote { address, token, tls }))
}

fn write_manual(folder: &Path) -> ExitCode {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("cannot write to {}: {error}", folder.display())),
    }
}

fn check_node(options: &node::Options, nvml: Option<&Path>, json: bool) -> ExitCode {
    let told = hypervisor::check_node(options, nvml).map_err(|error| error.to_string());
    let told = told.and_then(|report| {
        let healthy = "Nothing is broken: hypervisor node can run here.";
        let broken = "hypervisor node cannot run here.";
        let text = if json {
            serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n"
        } else {
            report.told(healthy, broken)
        };
        io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(report.healthy)
    });
    match told {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

/// Prints an error to stderr: only serving commands have a log.
fn failed(error: &dyn Display) -> ExitCode {
    _ = writeln!(io::stderr(), "hypervisor: {error}");
    ExitCode::FAILURE
}

fn serve<E: Display>(log: &LogOptions, run: impl FnOnce() -> Result<(), E>) -> ExitCode {
    if log::start(log.log, log.log_format).is_err() {
        return ExitCode::FAILURE;
    }
    let ended = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(&format!("hypervisor: {error}"));
            ExitCode::FAILURE
        }
    };
    log::finish();
    ended
}

fn tell_version(verbose: bool) -> ExitCode {
    let text = if verbose {
        build_info::told("hypervisor", &[], &[])
    } else {
        format!("hypervisor {}", build_info::VERSION)
    };
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::hundredths;

    #[test]
    fn factors_have_two_decimals_and_are_1_at_least() {
        for (text, number) in
            [("1", 100), ("1.5", 150), ("2.25", 225), ("1.", 100), ("100", 10_000)]
        {
            assert_eq!(hundredths(text), Ok(number), "{text}");
        }
        for text in ["", "0.5", "-1", "1.125", "100.01", ".5", "1e3", "x", "99999999999"] {
            let said = hundredths(text).unwrap_err();
            assert!(said.contains("expected 1 to 100"), "{text}: {said}");
        }
    }
}
