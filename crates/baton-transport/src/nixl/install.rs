//! NIXL for who has none: the libraries of the Python package `nixl-cu12`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::library::{NIXL_VERSION, NixlError, of_wheel};

/// The package as it is on the index, by the machine that it is for. NIXL is not in this repository, and nothing of
/// it is given on: it is fetched by whoever uses it.
const WHEEL_SHA256: [(&str, &str); 1] =
    [("x86_64", "341d0dfa499f941c054614252f1d8047d1380e33f29c87707372ff5ec7d3779a")];

/// Where an installed NIXL lies: `nixl/VERSION` in Baton's cache directory.
#[derive(Clone, Debug)]
pub struct NixlInstall {
    pub directory: PathBuf,
}

impl NixlInstall {
    /// In the cache directory `cache`.
    pub fn below(cache: &Path) -> Self {
        Self { directory: cache.join("nixl").join(NIXL_VERSION) }
    }

    pub fn is_there(&self) -> bool {
        of_wheel(&self.directory).is_file()
    }

    /// Fetches NIXL with pip and unpacks it, unless it is there. 70 MB come over the network, 250 MB stay on the disk.
    ///
    /// # Errors
    /// If there is none for this machine, or python3 or pip is missing or fails.
    pub fn fetch(&self) -> Result<(), NixlError> {
        if self.is_there() {
            return Ok(());
        }
        let io = |what: &str, error: std::io::Error| NixlError::Io(format!("{what}: {error}"));
        let machine = std::env::consts::ARCH;
        let Some((_, sha256)) = WHEEL_SHA256.iter().find(|(name, _)| *name == machine) else {
            return Err(NixlError::Io(format!(
                "there is no NIXL to fetch for {machine}; set NIXL_PREFIX to one"
            )));
        };
        let parent = self.directory.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(|error| io(&parent.display().to_string(), error))?;
        // Beside its place, and moved there when it is whole.
        let partial = tempdir_beside(&self.directory)?;
        let fetched = fetch_into(&partial, machine, sha256).and_then(|()| {
            std::fs::rename(&partial, &self.directory)
                .or_else(|error| if self.is_there() { Ok(()) } else { Err(error) })
                .map_err(|error| io("moving NIXL to its place", error))
        });
        // What is left of it is of no use; where it was moved, nothing is.
        let _ = std::fs::remove_dir_all(&partial);
        fetched
    }
}

fn tempdir_beside(directory: &Path) -> Result<PathBuf, NixlError> {
    let mut name = directory.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(name);
    std::fs::create_dir_all(&partial)
        .map_err(|error| NixlError::Io(format!("{}: {error}", partial.display())))?;
    Ok(partial)
}

fn fetch_into(directory: &Path, machine: &str, sha256: &str) -> Result<(), NixlError> {
    let requirements = directory.join("requirements.txt");
    std::fs::write(&requirements, format!("nixl-cu12=={NIXL_VERSION} --hash=sha256:{sha256}\n"))
        .map_err(|error| NixlError::Io(format!("{}: {error}", requirements.display())))?;
    // Without its dependencies, which are some gigabytes for Python programs; and for one version of Python whatever is
    // here, for the libraries are the same in all.
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"])
        .args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--timeout=20", "--retries=1"])
        .args(["--python-version=3.11", &format!("--platform=manylinux_2_28_{machine}")])
        .arg("--dest")
        .arg(directory)
        .arg("--requirement")
        .arg(&requirements);
    run(&mut pip, "pip")?;
    let wheel = std::fs::read_dir(directory)
        .map_err(|error| NixlError::Io(error.to_string()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| NixlError::Io("pip has fetched nothing".to_owned()))?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(directory), "unpacking NIXL")?;
    for left_over in [wheel, requirements] {
        let _ = std::fs::remove_file(left_over);
    }
    Ok(())
}

fn run(command: &mut Command, what: &str) -> Result<(), NixlError> {
    let output = command.output().map_err(|error| NixlError::Io(format!("python3 for {what}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(NixlError::Io(format!("{what} failed: {last}")))
}
