//! `xtask old-glibc` and `xtask emulate`: folders in which programs run on another glibc or processor.

use super::{Error, build_release, debian, path};
use crate::process::{command, output, run};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a folder with root/ (the glibc, not installed), parts/ (PARTS, whose programs run on that glibc) and cc (a C
/// compiler whose programs do so).
#[derive(clap::Args)]
pub(crate) struct OldGlibc {
    /// Suite of Debian (bullseye has 2.31, trixie 2.41), or "here"
    suite: String,
    /// Version that its glibc must have
    version: String,
    /// Folder that build-release made
    #[arg(value_parser = path)]
    parts: PathBuf,
    /// Folder to make
    #[arg(value_parser = path)]
    folder: PathBuf,
}

/// Makes a folder with parts/ (PARTS, whose programs start in an emulator of aarch64), cc (a C compiler whose programs do
/// so), and emulated (has a program do so). The emulator and its glibc are Debian's.
#[derive(clap::Args)]
pub(crate) struct Emulate {
    /// Folder that build-release --arch aarch64 made
    #[arg(value_parser = path)]
    parts: PathBuf,
    /// Folder to make
    #[arg(value_parser = path)]
    folder: PathBuf,
}

/// A folder, and the tools of a release that it uses.
struct Place<'a> {
    folder: &'a Path,
    /// The script that adapts a program.
    adapt: &'a str,
    tools: PathBuf,
}

/// Makes a folder with another glibc.
///
/// # Errors
/// That glibc is not available.
pub(crate) fn old_glibc(arguments: &OldGlibc, target: &Path) -> Result<(), Error> {
    let OldGlibc { suite, version, parts, folder } = arguments;
    let place = Place::new(folder, "on-this-glibc", target)?;
    let name = "x86_64-linux-gnu/ld-linux-x86-64.so.2";
    let in_root = || {
        let folders =
            ["lib", "lib64", "usr/lib"].map(|lib| folder.join("root").join(lib).join(name));
        folders.into_iter().find(|loader| loader.exists())
    };
    let loader = if suite == "here" {
        fs::canonicalize("/lib64/ld-linux-x86-64.so.2")?
    } else {
        if in_root().is_none() {
            debian::unpack(suite, "amd64", folder, &["libc6"])?;
        }
        in_root().ok_or_else(|| Error::Wrong(format!("libc6 of {suite} has no {name}")))?
    };
    let libraries = loader.parent().unwrap_or(Path::new("/"));
    let mut libc = Command::new(&loader);
    let said = output(libc.arg("--library-path").arg(libraries).arg(libraries.join("libc.so.6")))?;
    let said = said.lines().next().unwrap_or_default();
    if !said.contains(&format!(" version {version}.")) {
        return Err(Error::Wrong(format!("{} is not {version}: {said}", libraries.display())));
    }
    place.script(place.adapt, &place.interpreter(&loader, libraries, "$1"))?;
    place.compiler(&format!("x86_64-linux-gnu.{version}"))?;
    place.parts(parts, |_| Ok(()))?;
    println!("{said}");
    Ok(())
}

/// Makes a folder with an emulator.
///
/// # Errors
/// The emulator is not available.
pub(crate) fn emulate(arguments: &Emulate, target: &Path) -> Result<(), Error> {
    let Emulate { parts, folder } = arguments;
    let place = Place::new(folder, "emulated", target)?;
    let (host, guest) = (folder.join("host"), folder.join("guest"));
    // Before version 8 the emulator does not notice all code that is written.
    let qemu = host.join("root/usr/bin/qemu-aarch64");
    if !qemu.exists() {
        let own = output(&mut command("dpkg --print-architecture"))?;
        debian::unpack("trixie", &own, &host, &["qemu-user"])?;
    }
    let glibc = guest.join("root/lib");
    let loader = glibc.join("ld-linux-aarch64.so.1");
    if !loader.exists() {
        debian::unpack("bookworm", "arm64", &guest, &["libc6", "libgcc-s1"])?;
    }
    // Linked statically, so that what is preloaded is for the emulated program only.
    let mut compiler = Command::new(place.tools.join("python3"));
    compiler.args("-m ziglang cc -target x86_64-linux-musl -static -O1 -w".split(' '));
    compiler.arg(format!("-DQEMU=\"{}\"", qemu.display())).arg("-o").arg(folder.join("start"));
    run(compiler.arg("scripts/xtask/emulate/start.c"))?;

    // What was made for tests before goes on working.
    let programs = folder.join("programs");
    fs::create_dir_all(&programs)?;
    let on_its_glibc = place.interpreter(&loader, &glibc.join("aarch64-linux-gnu"), "$program");
    let (programs_shown, start) = (programs.display(), folder.join("start"));
    // The path of the emulated program stands at the end of the one that starts it.
    let adapt = format!(
        r#"program=$(mktemp -p "{programs_shown}" "$(basename "$1").XXXXXX")
mv "$1" "$program"
{on_its_glibc}
chmod 755 "$program"
cp "{}" "$1"
printf %s "$program" >"$program.path"
truncate -s 4096 "$program.path"
cat "$program.path" >>"$1"
rm "$program.path"
"#,
        start.display()
    );
    place.script(place.adapt, &adapt)?;
    place.compiler("aarch64-linux-gnu.2.36")?;
    // An emulated program looks beside itself.
    place.parts(parts, |part| {
        let link = programs.join(part.file_name().unwrap_or_default());
        let _ = fs::remove_file(&link);
        Ok(symlink(part, link)?)
    })?;
    Ok(run(Command::new(qemu).arg("--version"))?)
}

impl<'a> Place<'a> {
    fn new(folder: &'a Path, adapt: &'a str, target: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder, adapt, tools: build_release::tools(target)? })
    }

    fn script(&self, name: &str, lines: &str) -> Result<(), Error> {
        let script = self.folder.join(name);
        fs::write(&script, format!("#!/bin/sh\nset -e\n{lines}\n"))?;
        Ok(fs::set_permissions(script, fs::Permissions::from_mode(0o755))?)
    }

    /// The command that has a program run on a glibc. It goes on looking where it was built to look.
    fn interpreter(&self, loader: &Path, libraries: &Path, program: &str) -> String {
        let (tools, loader, libraries) =
            (self.tools.display(), loader.display(), libraries.display());
        format!(
            r#""{tools}/patchelf" --set-interpreter "{loader}" --force-rpath --add-rpath "{libraries}" "{program}""#
        )
    }

    /// Writes a C compiler whose programs are adapted. Warnings are for the compiler that the tests were written with.
    fn compiler(&self, target: &str) -> Result<(), Error> {
        let (tools, folder, adapt) = (self.tools.display(), self.folder.display(), self.adapt);
        let lines = format!(
            r#""{tools}/python3" -m ziglang cc -target {target} -w "$@"
while [ $# -gt 0 ]; do
    [ "$1" != -shared ] || exit 0
    [ "$1" != -o ] || made=$2
    shift
done
"{folder}/{adapt}" "$made""#
        );
        self.script("cc", &lines)
    }

    /// Copies parts, adapts the programs among them, and goes through them.
    fn parts(&self, from: &Path, each: impl Fn(&Path) -> Result<(), Error>) -> Result<(), Error> {
        let parts = self.folder.join("parts");
        let _ = fs::remove_dir_all(&parts);
        run(command("cp -r").arg(from).arg(&parts))?;
        for part in fs::read_dir(parts)? {
            let part = part?.path();
            if part.extension().is_none_or(|kind| kind != "so") {
                run(Command::new(self.folder.join(self.adapt)).arg(&part))?;
            }
            each(&part)?;
        }
        Ok(())
    }
}
