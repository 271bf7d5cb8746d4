//! `xtask package`: packages of what is shipped.

use super::build_release::{self, ARCHES, Arch};
use super::{Error, debian};
use crate::process::{command, output, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Builds what is shipped and puts into target/packages: a .deb, an .rpm, a Python wheel, an archive that runs from any folder, an
/// image with the daemon and the libraries, an archive of each library, a bill of materials (CycloneDX), and SHA256SUMS.
/// Needs dpkg-deb, rpmbuild and python3. The same commit makes the same bytes with the same tools, the same source of Rust's
/// standard library or none, and for the image the same glibc of Debian.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Processor, x86_64 or aarch64
    #[arg(long, default_value = "x86_64")]
    arch: Arch,
    /// Make them once more, from a clone in another folder, and compare
    #[arg(long)]
    check_reproducible: bool,
    /// Only get the tools
    #[arg(long)]
    tools: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAINTAINER: &str = env!("CARGO_PKG_AUTHORS");
const HOMEPAGE: &str = env!("CARGO_PKG_HOMEPAGE");

/// The image has the glibc of this suite of Debian.
const IMAGE_SUITE: &str = "bookworm";

/// Makes the packages.
///
/// # Errors
/// A tool is missing or fails, or two builds differ.
pub(crate) fn make(arguments: &Arguments, target: &Path) -> Result<(), Error> {
    for (tool, package) in [("dpkg-deb", "dpkg"), ("rpmbuild", "rpm (Fedora: rpm-build)")] {
        if !exists(tool) {
            let missing =
                format!("{tool} is missing; it comes with the system's package {package}");
            return Err(Error::Wrong(missing));
        }
    }
    build_release::tools(target)?;
    if arguments.tools {
        return Ok(());
    }
    if !fs::read_to_string("CHANGELOG.md")?.contains(&format!("\n## [{VERSION}] - ")) {
        return Err(Error::Wrong(format!("CHANGELOG.md lacks a section for {VERSION}")));
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // A package is as old as its commit.
    let epoch = env::var("SOURCE_DATE_EPOCH")
        .or_else(|_| output(&mut command("git log -1 --format=%ct")))?;
    let commit =
        env::var("SLUICE_COMMIT").or_else(|_| output(&mut command("git rev-parse HEAD")))?;
    let arch = arguments.arch;
    build_release::build_for(arch, &[], target)?;
    // The programs write their manual pages, so they have to run here.
    let host = ARCHES.into_iter().find(|host| host.name == env::consts::ARCH).unwrap_or(arch);
    if host.name != arch.name {
        build_release::build_for(host, &["sluice", "hypervisor"], target)?;
    }

    let out = target.join("packages");
    let _ = fs::remove_dir_all(&out);
    let stage = out.join("stage");
    fs::create_dir_all(&stage)?;
    let name = format!("sluice-{VERSION}-{}", arch.name);
    let making = Making { arch, epoch, commit, usr: stage.join("usr"), stage, out, name };
    let (shipped, documents_by) = (target.join(arch.shipped), target.join(host.shipped));
    run(command("scripts/lay-out.sh").arg(shipped).arg(&making.usr).arg(documents_by))?;
    making.bill_of_materials()?;
    making.archives()?;
    making.deb()?;
    making.rpm()?;
    making.wheel()?;
    if exists("apt-get") {
        making.image()?;
    } else {
        println!("SKIPPED: the image, whose glibc comes by apt-get");
    }
    fs::remove_dir_all(&making.stage)?;
    let sums = r"find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum >../packages.sums
        mv ../packages.sums SHA256SUMS";
    run(&mut making.shell(&making.out, sums))?;
    run(command("ls -l").arg(&making.out))?;
    if arguments.check_reproducible { make_again(arch, target) } else { Ok(()) }
}

fn exists(program: &str) -> bool {
    command(program).arg("--version").output().is_ok()
}

struct Making {
    arch: Arch,
    /// When the commit was made.
    epoch: String,
    commit: String,
    /// Where drafts are.
    stage: PathBuf,
    /// What is installed, below the stage.
    usr: PathBuf,
    out: PathBuf,
    /// The beginning of files' names.
    name: String,
}

impl Making {
    /// A program that does not know this machine.
    fn command(&self, line: &str) -> Command {
        let mut command = command(line);
        command.envs([("LC_ALL", "C"), ("TZ", "UTC"), ("SOURCE_DATE_EPOCH", &self.epoch)]);
        command
    }

    fn shell(&self, folder: &Path, script: &str) -> Command {
        let mut shell = self.command("bash -e -o pipefail -c");
        shell.arg(script).current_dir(folder);
        shell
    }

    fn documents(&self) -> PathBuf {
        self.usr.join("share/doc/sluice")
    }

    /// A file of deploy/packages with its placeholders filled in; `margin` begins the description's further lines.
    fn fill(&self, template: &str, margin: &str) -> Result<String, Error> {
        let about = fs::read_to_string("deploy/packages/description")?;
        let (summary, description) = about.split_once("\n\n").unwrap_or_default();
        let description = description.trim_end().replace('\n', &format!("\n{margin}"));
        let date = self.date("+%a %b %d %Y")?;
        let text = fs::read_to_string(Path::new("deploy/packages").join(template))?;
        let values = [
            ("@VERSION@", VERSION),
            ("@MAINTAINER@", MAINTAINER),
            ("@HOMEPAGE@", HOMEPAGE),
            ("@SUMMARY@", summary),
            ("@DESCRIPTION@", &description),
            ("@DATE@", &date),
        ];
        Ok(values.iter().fold(text, |text, (name, value)| text.replace(name, value)))
    }

    /// The commit's date, as `date` formats it.
    fn date(&self, format: &str) -> Result<String, Error> {
        Ok(output(self.command("date -u -d").arg(format!("@{}", self.epoch)).arg(format))?)
    }

    fn bill_of_materials(&self) -> Result<(), Error> {
        let (bill, documents) =
            (self.out.join(format!("{}.cdx.json", self.name)), self.documents());
        let mut write = self.command("python3 scripts/third-party.py");
        write.arg(format!("{}-unknown-linux-gnu", self.arch.name)).arg(&bill);
        run(write.arg(documents.join("LICENSES-of-others")))?;
        fs::copy(bill, documents.join("sluice.cdx.json"))?;
        Ok(())
    }

    /// Packs what a folder has into an archive that tells nothing of who made it and when.
    fn archive(&self, file: &str, folder: &Path, name: &str) -> Result<(), Error> {
        let mut tar = self
            .command("tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner");
        tar.arg(format!("--mtime=@{}", self.epoch)).args(["-I", "gzip -9 --no-name", "-f"]);
        Ok(run(tar.arg(self.out.join(file)).arg("-C").arg(folder).arg(name))?)
    }

    fn archives(&self) -> Result<(), Error> {
        println!("== archives");
        let all = self.out.join(&self.name);
        run(self.command("cp -R").arg(&self.usr).arg(&all))?;
        run(self.command("install -m 755 scripts/install.sh").arg(&all))?;
        run(self.command("install -m 755 deploy/packages/postrm").arg(all.join("after-removal")))?;
        self.archive(&format!("{}.tar.gz", self.name), &self.out, &self.name)?;
        fs::remove_dir_all(all)?;
        for library in ["libcuda_limiter", "libadd_path"] {
            let file = format!("{library}-{}.tar.gz", self.arch.short);
            self.archive(&file, &self.usr.join("lib/sluice"), &format!("{library}.so"))?;
        }
        Ok(())
    }

    fn deb(&self) -> Result<(), Error> {
        println!("== .deb");
        let deb = self.stage.join("deb");
        fs::create_dir_all(deb.join("DEBIAN"))?;
        run(self.command("cp -R").arg(&self.usr).arg(&deb))?;
        let documents = deb.join("usr/share/doc/sluice");
        run(self.command("install -m 644 deploy/packages/copyright").arg(&documents))?;
        let scripts = "deploy/packages/postinst deploy/packages/prerm deploy/packages/postrm";
        run(self.command(&format!("install -m 755 {scripts}")).arg(deb.join("DEBIAN")))?;
        let date = self.date("-R")?;
        let changes = format!(
            "sluice ({VERSION}-1) unstable; urgency=medium\n\n  * Release {VERSION}. Its changes are in changelog.gz.\n\n -- {MAINTAINER}  {date}\n"
        );
        fs::write(documents.join("changelog.Debian"), changes)?;
        fs::copy("CHANGELOG.md", documents.join("changelog"))?;
        for file in ["changelog", "changelog.Debian"] {
            run(self.command("gzip -9 --no-name").arg(documents.join(file)))?;
        }
        let size = output(self.command("du -sk --apparent-size").arg(deb.join("usr")))?;
        let control = self
            .fill("control", " ")?
            .replace("@ARCHITECTURE@", self.arch.debian)
            .replace("@KIB@", size.split('\t').next().unwrap_or_default());
        fs::write(deb.join("DEBIAN/control"), control)?;
        let sums = "find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums";
        run(&mut self.shell(&deb, sums))?;
        let file = format!("sluice_{VERSION}-1_{}.deb", self.arch.debian);
        Ok(run(self
            .command("dpkg-deb --root-owner-group -Zgzip --build")
            .arg(deb)
            .arg(self.out.join(file)))?)
    }

    fn rpm(&self) -> Result<(), Error> {
        println!("== .rpm");
        let (out, stage) = (self.out.display(), self.stage.display());
        let spec = self.stage.join("sluice.spec");
        fs::write(&spec, self.fill("sluice.spec", "")?)?;
        let mut build = self.command("rpmbuild -bb --quiet --target");
        build.arg(format!("{}-linux", self.arch.name));
        for definition in [
            format!("_topdir {stage}/rpm"),
            format!("_rpmdir {out}"),
            "_rpmfilename %{name}-%{version}-%{release}.%{_target_cpu}.rpm".to_owned(),
            "_binary_payload w9.gzdio".to_owned(),
            "_buildhost localhost".to_owned(),
            "use_source_date_epoch_as_buildtime 1".to_owned(),
            "clamp_mtime_to_source_date_epoch 1".to_owned(),
            "build_mtime_policy clamp_to_source_date_epoch".to_owned(),
            format!("tree {stage}"),
            format!("scripts {}/deploy/packages", env::current_dir()?.display()),
        ] {
            build.arg("--define").arg(definition);
        }
        Ok(run(build.arg(spec))?)
    }

    /// The programs and libraries alone, below the prefix of an environment as below any other. pip undoes nothing that
    /// was done with them, starts no units, and leaves folders behind that hold only folders.
    fn wheel(&self) -> Result<(), Error> {
        println!("== wheel");
        // Both names mean glibc 2.17, the oldest that what is shipped starts with; old versions of pip know the second.
        let platforms =
            ["manylinux_2_17", "manylinux2014"].map(|one| format!("{one}_{}", self.arch.name));
        let file = format!("sluice-{VERSION}-py3-none-{}.whl", platforms.join("."));
        let wheel = self.stage.join("wheel");
        let data = wheel.join(format!("sluice-{VERSION}.data"));
        let info = wheel.join(format!("sluice-{VERSION}.dist-info"));
        let libraries = data.join("data/lib/sluice");
        for folder in [data.join("data/lib"), info.join("licenses"), info.join("sboms")] {
            fs::create_dir_all(folder)?;
        }
        for (from, to) in [
            (self.usr.join("bin"), data.join("scripts")),
            (self.usr.join("lib/sluice"), libraries.clone()),
            ("deploy/packages/wheel/sluice".into(), wheel.join("sluice")),
        ] {
            run(self.command("cp -R").arg(from).arg(to))?;
        }
        fs::remove_file(libraries.join("before-removal"))?;
        // `python -m sluice` and `sluice doctor` look for it.
        fs::write(libraries.join("installed-by-pip"), format!("{file}\n"))?;
        for (from, to) in [
            ("LICENSE", "licenses"),
            ("LICENSES-of-others", "licenses"),
            ("sluice.cdx.json", "sboms"),
        ] {
            fs::copy(self.documents().join(from), info.join(to).join(from))?;
        }
        let changes = fs::read_to_string("CHANGELOG.md")?;
        let metadata = self.fill("wheel/METADATA", "")?.replace("@CHANGELOG@", changes.trim_end());
        fs::write(info.join("METADATA"), metadata)?;
        let tags = platforms.map(|platform| format!("Tag: py3-none-{platform}\n")).concat();
        let about = "Wheel-Version: 1.0\nGenerator: cargo xtask package\nRoot-Is-Purelib: false\n";
        fs::write(info.join("WHEEL"), format!("{about}{tags}"))?;
        let mut pack = self.command("python3 scripts/wheel.py");
        Ok(run(pack.arg(wheel).arg(self.out.join(file)).arg(&self.epoch))?)
    }

    fn image(&self) -> Result<(), Error> {
        println!("== container image");
        let (glibc, image) = (self.stage.join("glibc"), self.stage.join("image"));
        debian::unpack(IMAGE_SUITE, self.arch.debian, &glibc, &["libc6"])?;
        fs::create_dir(&image)?;
        let make = |line: &str| run(self.command(line).current_dir(&image));
        make(
            "mkdir -p etc dev proc run sys tmp usr/bin usr/lib/sluice usr/share/doc/libc6 usr/share/doc/sluice",
        )?;
        make("mkdir -p var/lib")?;
        make("chmod 1777 tmp")?;
        for folder in ["lib", "lib64", "usr/lib", "usr/lib64"] {
            let from = glibc.join("root").join(folder);
            if from.is_dir() {
                run(self.command("cp -a").arg(from).arg(image.join("usr")))?;
            }
        }
        run(&mut self.shell(&image, "rm -rf usr/lib/*/gconv usr/lib/*/audit"))?;
        make("ln -s usr/lib lib")?;
        if image.join("usr/lib64").is_dir() {
            make("ln -s usr/lib64 lib64")?;
        }
        fs::write(image.join("etc/passwd"), "root:x:0:0:root:/:/nonexistent\n")?;
        make("cp ../glibc/root/usr/share/doc/libc6/copyright usr/share/doc/libc6")?;
        make("cp -R ../usr/bin usr")?;
        make("cp -R ../usr/lib/sluice usr/lib")?;
        // There is no shell.
        make("rm usr/lib/sluice/before-removal")?;
        for licence in ["LICENSE", "LICENSES-of-others"] {
            make(&format!("cp ../usr/share/doc/sluice/{licence} usr/share/doc/sluice"))?;
        }
        let libc = fs::read_to_string(glibc.join("versions"))?;
        let mut write = self.command("python3 scripts/oci-image.py");
        write.arg(&image).arg(self.out.join(format!("{}.oci.tar", self.name)));
        write.args([self.arch.debian, &format!("sluice:{VERSION}"), &self.epoch]);
        write.args([
            "org.opencontainers.image.title=sluice",
            &format!("org.opencontainers.image.version={VERSION}"),
            &format!("org.opencontainers.image.revision={}", self.commit),
            "org.opencontainers.image.licenses=Apache-2.0",
            &format!("sluice.libc={}", libc.trim_end()),
        ]);
        Ok(run(&mut write)?)
    }
}

/// Makes packages once more from nothing, elsewhere. Only what is in the commit can be equal.
fn make_again(arch: Arch, target: &Path) -> Result<(), Error> {
    if !output(&mut command("git status --porcelain"))?.is_empty() {
        let changed = "what is not committed cannot be made again from a clone";
        return Err(Error::Wrong(changed.to_owned()));
    }
    let folder = tempfile::tempdir()?;
    let clone = folder.path().join("of/another/name");
    run(command("git clone --quiet --no-hardlinks .").arg(&clone))?;
    fs::create_dir(clone.join("target"))?;
    std::os::unix::fs::symlink(target.join("tools"), clone.join("target/tools"))?;
    let again = format!("cargo xtask package --arch {}", arch.name);
    run(command(&again).current_dir(&clone).env_remove("CARGO_TARGET_DIR"))?;
    let (out, other) = (target.join("packages"), clone.join("target/packages"));
    if run(command("diff").arg(out.join("SHA256SUMS")).arg(other.join("SHA256SUMS"))).is_err() {
        let kept = target.join("packages-again");
        let _ = fs::remove_dir_all(&kept);
        run(command("mv").arg(other).arg(&kept))?;
        let folders = format!("{} with {}", out.display(), kept.display());
        return Err(Error::Wrong(format!("these differ; compare {folders}")));
    }
    println!("Two builds in different folders are equal.");
    Ok(())
}
